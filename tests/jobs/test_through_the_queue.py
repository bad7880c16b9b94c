"""The thin path through the whole: submit, worker, warden, real training, store, report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from queue_runner.store import read
from tests import forked_programs, named_rows
from tests.forked_programs import work

pytestmark = pytest.mark.slow

SUBMIT = ["submit", "--no-gate", "--no-preflight", "nanogpt", "--config", "tiny", "--device", "cpu"]
BY_OTHERS = {"contended", "slept", "swapping", "gpu_contended", "throttled", "stolen", "unwatched"}
"""What other processes may do to a run of these tests."""


def mpsq(*arguments: str, code: int = 0) -> str:
    done = forked_programs.run(*arguments)
    assert done.returncode == code, done.stderr
    return done.stdout


def settings(**values: object) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def rows(layout: Layout) -> list[named_rows.Row]:
    with read.reading(layout.db) as connection:
        return named_rows.runs(connection)


def test_nanogpt_is_queued_trained_and_reported(layout: Layout, tmp_path: Path) -> None:
    small = settings(max_iters=12, eval_interval=6, warmup_iters=2, n_layer=1, n_embd=32, block_size=16, batch_size=4)
    mpsq(*SUBMIT, "--dtype", "bf16", "--repeats", "2", "--seed", "1337", *small)
    mpsq("worker", "--until-idle")
    stored = rows(layout)
    assert [row["outcome"] for row in stored] == ["SUCCEEDED"] * 2
    for row in stored:
        assert (row["n_iters"], row["n_measure"], row["device"], row["workload"]) == (12, 9, "cpu", "nanogpt")
        assert row["flops_per_iter"] > 0 and row["tokens_per_iter"] > 0 and row["params"] > 0
        assert row["median_s"] > 0 and row["loss_last"] < row["loss_first"]
        assert "wrong_loss" not in (row["taints"] or "")
        parts = ("setup_s", "compile_s", "warmup_s", "measure_s", "eval_s", "checkpoint_s", "other_s", "slept_s")
        assert sum(row[part] for part in parts) == pytest.approx(row["real_s"], abs=1e-6)
        assert all(row[part] > -0.05 for part in parts)
    took = []
    for row in stored:
        with read.reading(layout.db) as connection:
            notes = named_rows.detail(connection, "notes", row["run_id"])
            metrics = named_rows.detail(connection, "metrics", row["run_id"])
            (found_exit,) = connection.execute("SELECT exit_json FROM exits WHERE run_id = ?", [row["run_id"]])
        assert "reference_in_run" not in {note["kind"] for note in notes}
        assert "cpu_s" in {metric["name"] for metric in metrics}, "the CPU time at the borders of phases"
        took.append(json.loads(found_exit["exit_json"])["prepared"])
    assert {one["exit_code"] for one in took} == {0}
    assert took[1]["user_s"] < took[0]["user_s"] / 2, "a repeat finds what is prepared"
    assert stored[0]["loss_last"] == stored[1]["loss_last"]  # one seed, one machine: repeats repeat
    assert "bf16" in mpsq("report")
    breakdown = json.loads(mpsq("report", "breakdown", "--json"))
    assert breakdown["rows"]
    assert "prepared: seconds" in mpsq("report", "time")


def test_the_code_that_was_submitted_is_the_code_that_runs(layout: Layout) -> None:
    mpsq(*SUBMIT, *settings(max_iters=2))
    (row,) = rows(layout)
    script = layout.snapshots / row["snapshot_hash"] / "nanogpt_torch.py"
    script.write_text("print('the snapshot ran')")
    work()
    assert (layout.run_dir("1.1") / "stdout.log").read_text() == "the snapshot ran\n"
    assert "unobserved" in rows(layout)[0]["taints"].split(",")


def test_a_device_that_is_not_there_is_its_own_outcome(layout: Layout) -> None:
    if sys.platform == "darwin":
        pytest.skip("mps may be there")
    mpsq(*SUBMIT[:-1], "mps")
    work()
    (row,) = rows(layout)
    assert row["outcome"] == "DEVICE_UNAVAILABLE" and "mps" in row["reason"]
    mpsq("wait", "1", code=3)


def test_a_foreign_trainer_is_read_live_by_its_parser(layout: Layout, tmp_path: Path) -> None:
    log = Path(__file__).resolve().parents[3] / "shared" / "data" / "nanogpt_logs" / "small_cpu_eager.log"
    if not log.exists():
        pytest.skip("the shared logs are not here")
    mpsq("submit", "--parser", "nanogpt", "--", "/bin/cat", str(log))
    work()
    (row,) = rows(layout)
    assert (row["n_iters"], row["outcome"]) == (31, "SUCCEEDED")
    taints = set(row["taints"].split(",")) - BY_OTHERS
    assert taints == {"unsynced", "wrong_clock"}  # it tells the times of another run, within a second of its own
    assert row["real_s"] < 4, "the real time is the warden's, not what the log says of another run"


def test_bench_runs_to_its_report(layout: Layout) -> None:
    """In the foreground, by a worker that it starts; a pipe answers no question."""
    few = settings(max_iters=8, warmup_iters=1, batch_size=2)
    words = [
        "bench",
        "nanogpt",
        "--no-gate",
        "--no-preflight",
        "--device",
        "cpu",
        "--compile",
        "off",
        "--config",
        "tiny",
    ]
    assert "ms/iter" in mpsq(*words, "--repeats", "1", *few)
