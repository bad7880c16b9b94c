"""What reports and show say of the three logs of "State of training on Metal", as its reader knows them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queue_runner.cli import show
from queue_runner.control import import_log
from queue_runner.model import parse_selector
from queue_runner.monitor import run_view
from queue_runner.monitor.run_details import details
from queue_runner.reports._common import printing
from queue_runner.store import read
from tests.reports.report_fixture import Store, rows, words

pytestmark = pytest.mark.process

LOGS = Path(__file__).resolve().parents[1] / "golden" / "parsers"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "metal_post"


def put(store: Store, file: str, text: str, **labels: str) -> None:
    """Import one log from a text."""
    log = store.layout.home / file
    log.write_text(text)
    import_log.import_logs(store.layout, [log], "nanogpt", labels)


@pytest.fixture
def store(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(tmp_path / "home")
    yield made
    made.db.close()


@pytest.fixture
def post(store: Store) -> Store:
    """The post's logs, taken in as `mpsq import` does: runs 1.1, 2.1, 3.1."""
    for name, device, compiled in (
        ("cpu_eager", "cpu", "off"),
        ("mps_eager", "mps", "off"),
        ("mps_compile", "mps", "on"),
    ):
        put(store, f"{name}.log", (LOGS / f"metal_post_{name}.log").read_text(), device=device, compile=compiled)
    return store


@pytest.mark.parametrize("columns", [80, 60])
def test_the_posts_logs_are_answered_in_fifteen_lines(
    post: Store, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = printing.as_text("devices", post.report(), "table").splitlines()
    assert len(lines) <= printing.MOST_LINES and max(map(len, lines)) <= columns
    assert any(line.endswith("1.38 x slower on mps (undecided)") for line in lines)
    golden = LOGS.parent / f"metal-post-{columns}.txt"
    if os.environ.get("MPSQ_WRITE_GOLDENS"):
        golden.write_text("\n".join(lines) + "\n")
    assert golden.read_text().splitlines() == lines


def test_the_command_that_repeats_an_import_is_whole(store: Store) -> None:
    text = (LOGS / "metal_post_mps_eager.log").read_text()
    put(store, "a log.txt", text, device="mps", compile="on", name="the post's")
    title = store.db.execute("SELECT title FROM groups ORDER BY id DESC").fetchone()[0]
    again = ["mpsq", "import", "a log.txt", "--parser", "nanogpt", "--set", "device=mps", "--set", "compile=on"]
    assert shlex.split(title) == [*again, "--name", "the post's"]


def shown(store: Store, name: str = "devices", **options: Any) -> str:
    return printing.as_text(name, store.report(name, **options), "table", explain=True)


def page(store: Store, run: str) -> str:
    """What `mpsq show` prints of a run, without the line breaks."""
    with read.reading(store.layout.db) as connection:
        (view,) = run_view.select(connection, [parse_selector(run)])
        return " ".join(show._text(details(store.layout, connection, view), same_job=False).split())


def test_losses_are_of_evaluations_and_have_their_step(post: Store) -> None:
    found = rows(post.report())
    eager = found["mps eager"]
    assert (eager["eval_train_loss"], eager["eval_val_loss"], eager["eval_step_last"]) == (0.6166, 1.7099, 5000)
    assert eager["loss_last"] == 0.8117, "of one batch, on which it trained"
    assert "mps eager              8      0.8117      0.6166    1.7099    5,000" in shown(post)
    assert all(x in page(post, "2.1") for x in ("step 5,000:", "train loss 0.6166", "val loss 1.7099"))


def test_a_run_that_stopped_at_50_is_not_put_beside_step_5000_silently(post: Store) -> None:
    cpu = rows(post.report())["cpu eager"]
    assert (cpu["eval_val_loss"], cpu["eval_step_last"]) == (4.2823, 0)
    said = words(post.report())
    assert all(x in said for x in ("different steps", "cpu eager at step 0;", "mps eager at step 5,000"))
    assert "different steps" not in words(post.report(where=["device=mps"])), "these two are of one step"
    text = page(post, "1.1")
    assert all(x in text for x in ("step 0:", "train loss 4.2874", "val loss 4.2823", "on to iteration 50"))


def test_an_arm_of_runs_that_were_evaluated_at_different_steps_has_no_loss(store: Store) -> None:
    for n in (1, 2):
        text = f"step {n}: train loss {n}.5, val loss {n}.6\niter {n}: loss 2.0, time 1.00ms, mfu 1.00%\n"
        put(store, f"{n}.log", text, device="cpu", compile="off", name="same")
    [row] = store.report().rows
    assert (row["eval_step_first"], row["eval_step_last"], row["eval_train_loss"]) == (1, 2, None)
    assert "1 to 2" in shown(store)


def test_a_split_that_was_not_evaluated_last_is_not_taken_from_an_earlier_step(store: Store) -> None:
    run_id = store.run("cpu", False, 1.0)
    store.db.execute("UPDATE evals SET i = 50 WHERE run_id = ? AND split = 'train'", [run_id])
    [row] = store.report().rows
    assert (row["eval_train_loss"], row["eval_val_loss"], row["eval_step_last"]) == (None, 2.0, 105)


def test_the_printed_mfu_stands_beside_ours_and_says_of_which_peak(post: Store) -> None:
    for run, share, rate in (
        ("1.1", "0.19 %", "593 GFLOP/s"),
        ("2.1", "1.69 %", "5.27 TFLOP/s"),
        ("3.1", "1.22 %", "3.81"),
    ):
        text = page(post, run)
        assert f"train.py: {share} of" in text and f"312 TFLOP/s, bf16: {rate}" in text
        assert "unknown: the FLOP" in text


def test_the_mfu_of_a_run_needs_a_known_peak(store: Store) -> None:
    store.run("cpu", False, 1.0, hello={"flops_per_iter": 2e12})
    assert "unknown: 2.00 TFLOP/s" in page(store, "1.1")
    store.layout.config.write_text("[peak_tflops]\ncpu = 4.0\n")
    assert all(x in page(store, "1.1") for x in ("50.0 %: 2.00 TFLOP/s", "4.00 TFLOP/s (given by"))


def test_the_breakdown_says_what_a_log_can_tell_and_adds_up(post: Store) -> None:
    result = post.report("breakdown")
    told = {(row["label"], row["part"]): row["dur_s"] for row in result.rows}
    assert told["mps compiled", "with eval"] == pytest.approx(1255.91573) and told["mps eager", "with eval"] < 34
    assert told["mps eager", "1st iter"] == pytest.approx(25.85756)
    for arm, real_s in (("mps eager", 3588.66), ("mps compiled", 39039.74)):
        parts = [told[arm, part] for part in ("1st iter", "with eval", "other iters", "not in log")]
        assert sum(parts) == pytest.approx(real_s) == told[arm, "real"]
    assert told["cpu eager", "real"] is None and told["cpu eager", "not in log"] is None
    assert told["cpu eager", "other iters"] == pytest.approx(9.93339)
    said = words(result)
    assert all(x in said for x in ("3.1: its log", "8 of 5,001", "305.7 ms", "1,526 s"))
    assert "1.1: real time unknown" in said and "logs tell" in shown(post, "breakdown")


def test_runs_with_phases_are_broken_down_as_before(store: Store) -> None:
    store.iterations(store.run("cpu", False, 1.0), [1.0, 1.0])
    result = store.report("breakdown")
    assert [row["part"] for row in result.rows][:2] == ["setup", "compile"] and "not in log" not in words(result)


def test_the_files_that_were_handed_out_are_those_that_are_tested() -> None:
    if not SHARED.is_dir():
        pytest.skip("../shared/data/metal_post is not here")
    for log in SHARED.glob("*.log"):
        assert log.read_bytes() == (LOGS / f"metal_post_{log.name}").read_bytes()


def test_logs_of_which_nobody_said_the_device_and_the_mode_are_rows_of_their_own(store: Store) -> None:
    """Eager and compiled, on the CPU and the GPU, pooled into one median: "nanogpt 3/3 510 ± 80"."""
    for name in ("cpu_eager", "mps_eager", "mps_compile"):
        put(store, f"{name}.log", (LOGS / f"metal_post_{name}.log").read_text())
    assert [*rows(store.report("devices"))] == ["cpu_eager", "mps_compile", "mps_eager"]
    assert {*rows(store.report("breakdown"))} == {"cpu_eager", "mps_compile", "mps_eager"}
    assert "of unknown device" in words(store.report("devices"))
    (pooled,) = store.report("devices", group_by="device").rows
    assert pooled["n_valid"] == 3
    assert "differ in log:" in words(store.report("devices", group_by="device"))


def test_logs_of_one_name_from_two_folders_are_two_rows(store: Store) -> None:
    for speed in ("10", "20"):
        put(store, "train.log", "".join(f"iter {k}: loss 4.0, time {speed}.00ms, mfu 1.0%\n" for k in range(20)))
    assert [*rows(store.report("devices"))] == ["train (1.1)", "train (2.1)"]


def test_repeats_with_device_and_mode_are_one_row(store: Store) -> None:
    for k in range(3):
        text = "".join(f"iter {k}: loss 4.0, time 1{k}.00ms, mfu 1.0%\n" for k in range(20)) + "\n" * k
        put(store, f"run{k}.log", text, device="mps", compile="on")
    (row,) = store.report("devices").rows
    assert row["n_valid"] == 3
