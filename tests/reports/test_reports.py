"""Reports over a real store: the default table, its honesty, the other reports, and what bad options get."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from queue_runner import reports
from queue_runner.control import import_log
from queue_runner.errors import UsageError
from queue_runner.monitor import answers
from queue_runner.monitor.answers import prepare
from queue_runner.monitor.answers.run_query import Context, Row
from queue_runner.reports._common import printing
from queue_runner.reports._common import report_options as _options
from queue_runner.reports._common.document import Result
from queue_runner.reports.breakdown import PARTS
from queue_runner.spec import Aim
from tests.reports.report_fixture import FLOPS_PER_ITER, TOKENS_PER_ITER, Store, rows, words

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
INVALID = {"contended": ("invalid", "other programs used 40% of the machine's cores meanwhile")}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "locks"))
    made = Store(tmp_path / "home")
    yield made
    made.db.close()


POST = {
    "cpu_eager": """...
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2655, time 119984.47ms, mfu -100.00%
iter 10: loss 3.1338, time 1973.80ms, mfu 0.19%
iter 20: loss 2.7556, time 1984.34ms, mfu 0.19%
iter 30: loss 2.6094, time 1988.45ms, mfu 0.19%
iter 40: loss 2.5535, time 1983.75ms, mfu 0.19%
iter 50: loss 2.5237, time 2003.05ms, mfu 0.19%
""",
    "mps_eager": """...
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2639, time 25857.56ms, mfu -100.00%
iter 10: loss 3.1459, time 220.50ms, mfu 1.69%
iter 20: loss 2.7319, time 221.44ms, mfu 1.69%
iter 30: loss 2.6226, time 221.30ms, mfu 1.69%
iter 40: loss 2.5756, time 220.74ms, mfu 1.69%
iter 50: loss 2.5239, time 220.24ms, mfu 1.69%
...
iter 4990: loss 0.8203, time 276.23ms, mfu 1.33%
step 5000: train loss 0.6166, val loss 1.7099
iter 5000: loss 0.8117, time 33010.34ms, mfu 1.19%
3588.66 real 90.18 user 32.03 sys
""",
    "mps_compile": """...
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2672, time 85292.53ms, mfu -100.00%
iter 10: loss 3.1471, time 304.79ms, mfu 1.22%
iter 20: loss 2.7730, time 305.33ms, mfu 1.22%
iter 30: loss 2.6538, time 306.39ms, mfu 1.22%
iter 40: loss 2.5960, time 306.01ms, mfu 1.22%
iter 50: loss 2.5479, time 305.41ms, mfu 1.22%
...
iter 4990: loss 0.8286, time 329.89ms, mfu 1.11%
step 5000: train loss 0.6221, val loss 1.7106
iter 5000: loss 0.8242, time 1255915.73ms, mfu 1.00%
39039.74 real 72.21 user 21.28 sys
""",
}
"""The three logs of the post "State of training on Metal"."""


@pytest.fixture
def post(store: Store, tmp_path: Path) -> Store:
    """The post's logs, taken in as `mpsq import` does."""
    for name, text in POST.items():
        log = tmp_path / f"{name}.log"
        log.write_text(text)
        labels = {"device": name.split("_")[0], "compile": "on" if "compile" in name else "off"}
        import_log.import_logs(store.layout, [log], "nanogpt", labels)
    return store


@pytest.fixture
def grid(store: Store) -> Store:
    """cpu and mps, eager and compiled, 5 runs each."""
    for k in range(5):
        for device, median_s in (("cpu", 2.0), ("mps", 0.22)):
            for compiled in (False, True):
                excess = 0.5 + compiled * (20.0 if k == 0 else 3.0)
                store.run(
                    device,
                    compiled,
                    median_s * (1.4 if compiled else 1) * (1 + k / 1000),
                    hello={"compile_cache": ("cold" if k == 0 else "warm") if compiled else None},
                    summary={"first_iter_excess_s": excess, "projected_real_s": 5000 * median_s},
                )
    return store


def test_the_posts_own_figures_over_iterations_10_to_50(post: Store) -> None:
    found = rows(post.report(vs="device=cpu,compile=off", iters="10:50"))
    assert f"{found['mps eager']['speedup']:.2f}" == "8.99"
    assert f"{found['mps compiled']['speedup']:.2f}" == "6.50"
    assert f"{found['mps compiled']['median_s'] / found['mps eager']['median_s']:.2f}" == "1.38"
    assert [found[name]["n_measure"] for name in found] == [5, 5, 5]


def test_a_row_that_has_not_started_is_named_by_its_code(store: Store) -> None:
    """It was "code=unset", since no run had reported it."""
    for group, code in enumerate("abc"):
        done = {"outcome": "SUCCEEDED", "median_s": 0.1} if code != "c" else {"outcome": None, "median_s": None}
        given = {"workload": None, "name": "a.py", "argv": ("a.py",), "software": {"code": code * 64}}
        store.run(**given, **done, group=group + 1)
    sql = "UPDATE jobs SET spec_hash = 'another', spec_json = json_set(spec_json, '$.code', ?) WHERE group_id = 3"
    store.db.execute(sql, ["c" * 64])
    assert {row["label"] for row in store.report().rows} >= {"code=aaaaaaaa", "code=bbbbbbbb", "code=cccccccc"}


def test_the_post_in_words(post: Store) -> None:
    text = words(post.report(iters="10:50"))
    for sentence in (
        "undecided: mps eager was 8.99 x faster than cpu eager, 220.7 vs 1,984 ms/iter",
        "mps compiled was 6.50 x faster than cpu eager",
        "mps compiled was 1.38 x slower than eager",
        "the order of the runs is unknown",
        "real time of a run (median): 39,039.7 s of mps compiled, 3,588.7 s of mps eager",
        "losses before the first step agree within 0.1 %: 4.2823 (val)",
        "iterations 10 to 50",
        "a = unsynced: times taken without synchronizing the device",
        "include the first evaluation",
        "imported logs do not name their machine",
    ):
        assert sentence in text


def test_what_a_log_does_not_say_is_none_and_no_column(post: Store) -> None:
    result = post.report()
    found = rows(result)["cpu eager"]
    assert [found[name] for name in ("real_s", "user_s", "max_rss_bytes", "mfu", "tokens_per_s")] == [None] * 5
    shown = printing.as_text("devices", result, "table", explain=True)
    assert "speedup" in shown and "eval val" in shown
    assert not [word for word in ("tokens/s", "TFLOP/s", "MFU", "RSS") if word in shown]
    assert None in {row["real_s"] for row in post.report("time").rows}
    assert "max RSS" not in printing.as_text("time", post.report("time"), "table")


def test_all_numbers_of_a_row(grid: Store) -> None:
    found = rows(grid.report())
    assert list(found) == ["cpu eager", "cpu compiled", "mps eager", "mps compiled"]
    cell = found["mps compiled"]
    median_s = 0.22 * 1.4 * 1.002
    assert cell["median_s"] == pytest.approx(median_s)
    assert (cell["n_valid"], cell["n_runs"], cell["spread_over"]) == (5, 5, "runs")
    assert cell["tokens_per_s"] == pytest.approx(TOKENS_PER_ITER / median_s)
    assert cell["flops_per_s"] == pytest.approx(FLOPS_PER_ITER / median_s)
    assert cell["mfu"] is None  # the device said no name
    assert (cell["compile_cost_s"], cell["compile_cache"], cell["compile_cost_warm_s"]) == (20.0, "cold", 3.0)
    assert found["mps eager"]["compile_cost_s"] is None
    assert cell["verdict"] == "faster" and cell["speedup_low"] < cell["speedup"] < cell["speedup_high"]
    assert found["cpu compiled"]["verdict"] == "slower"
    assert found["cpu eager"]["is_baseline"] and found["cpu eager"]["speedup"] == 1.0
    assert cell["projected_real_s"] == pytest.approx(1100)


def test_tables_fit_into_80_columns(grid: Store) -> None:
    grid.run("mps", False, 0.3, taints=INVALID)
    for name in ("devices", "breakdown", "time", "iterations"):
        text = printing.as_text(name, grid.report(name), "table", explain=True)
        rules = [line for line in text.splitlines() if line.startswith("---")]
        assert max(map(len, rules), default=0) <= 80, name


def test_mfu_has_a_sourced_peak_and_never_a_gpus_for_a_cpu(store: Store) -> None:
    machine = {"gpus": [{"name": "Apple M1 Max", "cores": 32}]}
    for device in ("cpu", "mps"):
        store.run(device, False, 0.22, machine=machine, hello={"device_name": "Apple M1 Max"})
    result = store.report()
    found = rows(result)
    assert found["cpu eager"]["mfu"] is None
    assert found["mps eager"]["mfu"] == pytest.approx(FLOPS_PER_ITER / 0.22 / (32 * 128 * 2 * 1.296e9))
    [note] = [note for note in result.notes if note.startswith("MFU")]
    assert all(x in note for x in ("10.6 TFLOP/s", "Apple M1 Max", "fp32 (32 cores"))


def test_a_gpu_without_a_built_in_peak_gets_the_command_that_measures_it(store: Store) -> None:
    for device in ("cpu", "mps"):
        store.run(
            device,
            False,
            0.22,
            machine={"gpus": [{"name": "Apple M5", "cores": 10}]},
            hello={"device_name": "Apple M5"},
        )
    [note] = [note for note in store.report().notes if note.startswith("MFU")]
    assert "Apple M5 is unknown" in note and "matmul --config peak" in note


def test_runs_of_two_gpus_are_a_row_with_the_peak_of_both(store: Store) -> None:
    for gpus, median_s in ((1, 0.2), (2, 0.1)):
        store.run("cuda", False, median_s, gpus=gpus)
    for gpus, median_s in ((1, 2.0), (2, 1.5)):
        store.run("cpu", False, median_s, gpus=gpus)
    found = rows(store.report(peak_tflops={"cuda": 10.0}))
    assert sorted(found) == ["cpu eager", "cpu eager processes=2", "cuda eager", "cuda eager 2 GPUs"]
    one, two = found["cuda eager"], found["cuda eager 2 GPUs"]
    assert two["mfu"] == pytest.approx(one["mfu"]) and two["peak_flops"] == 2e13
    assert two["peak_source"].startswith("2 GPUs, each: given")
    assert set(rows(store.report(where=["gpus=2"]))) == {"cuda eager 2 GPUs", "cpu eager"}


def test_a_peak_of_the_users_own(store: Store) -> None:
    store.run("mps", False, 0.22)
    found = rows(store.report(peak_tflops={"mps": 10.0}))["mps eager"]
    assert found["mfu"] == pytest.approx(FLOPS_PER_ITER / 0.22 / 1e13)
    assert "by the user" in found["peak_source"]


def test_invalid_runs_are_left_out_and_said(store: Store) -> None:
    for device, median_s in (("cpu", 2.0), ("mps", 0.2)):
        store.run(device, False, median_s)
    store.run("mps", False, 0.9, taints=INVALID)
    for _ in range(2):
        store.run("mps", False, None, outcome="FAILED", exit_code=1, reason="RuntimeError: boom")
    result = store.report()
    assert rows(result)["mps eager"]["median_s"] == 0.2
    assert (rows(result)["mps eager"]["n_valid"], rows(result)["mps eager"]["n_runs"]) == (1, 4)
    assert "2.2 contended (other programs" in words(result)
    assert "2.3, 2.4 FAILED(1): RuntimeError: boom" in words(result)
    counted = store.report(include_invalid=True)
    assert rows(counted)["mps eager"]["median_s"] == pytest.approx(math.sqrt(0.2 * 0.9))
    assert "--all (contended): 2.2" in words(counted)


def test_a_report_of_invalid_runs_alone_is_not_empty(store: Store) -> None:
    store.run("cpu", False, 2.0, taints=INVALID)
    store.run("mps", False, 0.2, taints={"slept": ("invalid", "the machine slept 3.0 s")})
    result = store.report()
    assert rows(result)["mps eager"]["median_s"] == 0.2
    assert all(row["speedup"] is None for row in result.rows)
    assert "slept (the machine" in words(result) and "is not compared" in words(result)


def test_caveats_are_marked_and_explained(store: Store) -> None:
    store.run("cpu", False, 2.0, taints={"battery": ("caveat", "the machine ran on battery")})
    result = store.report()
    table = result.sections[0]
    assert [column.show(table.rows[0]) for column in table.columns if column.key == "marks"] == ["a"]
    assert any(note.startswith("a = battery") and "(run 1.1)" in note for note in result.notes)


def test_runs_that_have_not_ended_are_counted_apart(store: Store) -> None:
    store.run("cpu", False, 2.0)
    store.run("cpu", False, None, outcome=None)
    result = store.report()
    assert rows(result)["cpu eager"]["n_runs"] == 1 and "1 run has not" in words(result)


def test_two_machines_are_never_compared(store: Store) -> None:
    store.run("cpu", False, 2.0, machine={"name": "a"})
    store.run("mps", False, 0.2, machine={"name": "b"})
    result = store.report()
    assert all(row["speedup"] is None for row in result.rows)
    assert "runs of 2 machines" in words(result)


def test_machines_of_one_kind_answer_together(store: Store) -> None:
    """Another driver, or other hardware, is another kind."""
    like_a: dict[str, Any] = {"machine": {"cpu": "x"}, "software": {"system": {"gpu_driver": "1"}}}
    other_kinds = {"d": {"software": {"system": {"gpu_driver": "2"}}}, "e": {"machine": {"cpu": "y"}}}
    for at, name in enumerate("abcacde"):
        facts = {**like_a, **other_kinds.get(name, {})}
        machine = {**facts["machine"], "id": name}
        for device, time_s in (("cpu", 2.0), ("mps", 0.2)):
            store.run(device, False, time_s * (1 + at / 1000), machine=machine, software=facts["software"], group=1)
    result = store.report()
    counts = [(row["n_machines"], row["n_runs"]) for row in result.rows if row["device"] == "mps"]
    assert counts == [(1, 1), (1, 1), (3, 5)]
    assert any("10.0" in line and "5 rounds on 3 machines" in line for line in result.lines)
    assert "of 3 kinds of" in words(result)
    assert any("5 runs" in section.title and "on 3 machines" in section.title for section in result.sections)


def test_a_ratio_to_another_machine_is_refused_with_the_reason(store: Store) -> None:
    """ "Near a desktop NVIDIA": two arms of two machines, with the baseline that a user would ask for."""
    store.run("cpu", False, 2.0, machine={"name": "mac"})
    store.run("mps", False, 0.2, machine={"name": "mac"})
    store.run("cuda", False, 0.1, machine={"name": "desktop"})
    result = store.report(vs="device=cuda")
    assert all(row["speedup"] is None for row in result.rows if row["device"] != "cuda")
    assert "runs of 2 machines" in words(result)
    with pytest.raises(UsageError, match="never compares two machines") as caught:
        store.report(vs="machine=desktop")
    assert "its own CPU" in caught.value.hint


def test_software_that_differs_is_a_named_factor(store: Store) -> None:
    for version in ("2.13.0", "2.14.0"):
        store.run("mps", False, 0.2, version=version)
    assert sorted(rows(store.report())) == ["torch=2.13.0", "torch=2.14.0"]


def test_settings_are_factors_and_runs_can_be_chosen_by_them(store: Store) -> None:
    for n_layer in (2, 4):
        store.run("cpu", False, 0.1 * n_layer, params={"n_layer": n_layer})
    assert len(store.report(where=["n_layer=4"]).rows) == 1
    assert len(store.report(where=["n_layer=2,4"]).rows) == 2
    found = store.report(vs="n_layer=2")
    assert [row["speedup"] for row in found.rows] == [1.0, pytest.approx(0.5)]


@pytest.mark.parametrize("options", [{}, {"group_by": "device"}, {"group_by": "workload"}])
def test_a_mode_of_a_workload_is_never_pooled_with_another(store: Store, options: dict[str, Any]) -> None:
    """A job in another mode than training says in its hello that it is another workload (jobs/harness/training.py)."""
    for _ in range(4):
        store.run(median_s=0.1)
        store.run(median_s=9.0, params={"mode": "sample"}, hello={"workload": "nanogpt-sample"})
    result = store.report(**options)
    assert sorted((row["workload"], row["median_s"], row["n_runs"]) for row in result.rows) == [
        ("nanogpt", 0.1, 4),
        ("nanogpt-sample", 9.0, 4),
    ]
    assert not any(row["speedup"] for row in result.rows), "nor compared"
    asked = "SELECT max(median_s) FROM v_run WHERE workload = 'nanogpt'"  # nor by one that knows nothing of modes
    assert store.db.execute(asked).fetchone()[0] == 0.1


def test_choosing_runs(grid: Store) -> None:
    grid.run("mps", False, 0.1, tags=["hot"], ended_at=2e9)
    assert list(rows(grid.report(where=["device=mps,compile=off"]))) == ["mps eager"]
    assert [row["n_runs"] for row in grid.report(where=["tag=hot"]).rows] == [1]
    assert [row["n_runs"] for row in grid.report(since="1h", now=2e9).rows] == [1]
    assert [row["n_runs"] for row in grid.report(selectors=["1"]).rows] == [5]
    assert len(grid.report(selectors=["g1"]).rows) == 4
    nothing = grid.report(where=["device=tpu"])
    assert nothing.rows == [] and "device: cpu, mps" in words(nothing)
    grid.run(params={"lr": 0.1})
    assert "of lr: 0.1" in words(grid.report(where=["lr=7"]))


def test_grouping_says_what_it_pools(grid: Store) -> None:
    result = grid.report(group_by="device")
    assert [row["n_runs"] for row in result.rows] == [10, 10]
    assert "differ in compile:" in words(result)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"vs": "devcie=cpu"}, 'no column or setting "devcie"', 'did you mean "device"'),
        ({"vs": "device"}, "is not KEY=VALUE", "device=cpu"),
        ({"vs": "device=cpu,mps"}, "has 2 values", "one row"),
        ({"vs": "device=cuda"}, "none of the rows", "cpu eager"),
        ({"vs": "device=cpu"}, "matches 2 rows", "compile=off"),
        ({"vs": "seed=1"}, "the rows are not grouped by seed", "--group-by"),
        ({"vs": "compile=maybe"}, 'compile cannot be "maybe"', "compile=on"),
        ({"where": ["1=1;drop table runs--"]}, "no column or setting", ""),
        ({"where": ["median_s) OR (1=1"]}, "no column or setting", ""),
        ({"group_by": "device,nonsense"}, 'no column or setting "nonsense"', ""),
        ({"group_by": "tag"}, "tags select runs", "--where"),
        ({"group_by": "device,,"}, "empty name", ""),
        ({"since": "yesterday"}, "yesterday", "2026-11-20"),
        ({"since": "2026-99-01"}, "is not a date", "3d"),
        ({"iters": "50:10"}, "is not FIRST:LAST", "10:50"),
        ({"iters": "ten"}, "is not FIRST:LAST", "10:50"),
        ({"selectors": ["99"]}, "there is no job 99", "mpsq list"),
    ],
)
def test_bad_options_get_a_sentence_and_a_hint(grid: Store, options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        grid.report(**options)
    assert message in error.value.message and hint in error.value.hint


@pytest.mark.parametrize("evil", ["x' OR '1'='1", 'x"; DROP TABLE runs; --', "%", "\x00", "'" * 50])
def test_values_are_never_sql(grid: Store, evil: str) -> None:
    assert grid.report(where=[f"device={evil}"]).rows == []
    grid.run("cpu", False, 1.0, params={"we'ird": 1})
    assert len(grid.report(where=["we'ird=1"]).rows) == 1
    assert sqlite3.connect(grid.layout.db).execute("SELECT count(*) FROM runs").fetchone()[0] == 21


def test_time_is_a_table_with_the_memory_of_the_gpu_where_there_is_one(grid: Store) -> None:
    text = printing.as_text("time", grid.report("time", selectors=["1.1"]), "table")
    heading, _, run, unit = (" ".join(line.split()) for line in text.splitlines())
    assert (heading, unit) == ("run real user sys max RSS", "real, user, sys: seconds")
    assert run == "1.1 nanogpt tiny cpu eager fp32 30.00 50.00 2.00 477 MiB"
    grid.run("cuda", True, 0.01, summary={"peak_reserved_bytes": 3 << 30}, outcome="SUCCEEDED")
    grid.run("cuda", True, None, outcome="FAILED", exit_code=1)
    text = printing.as_text("time", grid.report("time", where=["device=cuda"]), "table")
    assert "GPU memory" in text and "3.00 GiB" in text and "FAILED" in text
    grid.run("xpu", exit={"slept_s": 2.0})
    slept = printing.as_text("time", grid.report("time", where=["device=xpu"]), "table")
    assert "sys, slept: seconds" in slept


def test_times_of_a_sweep_name_the_settings_that_differ(store: Store) -> None:
    for lr in ("1e-3", "1e-4"):
        store.run(name="train.py", workload=None, argv=("train.py", lr), params={"lr": lr, "layers": 2})
    labels = [row["label"] for row in store.report("time").rows]
    assert [label.split()[-1] for label in labels] == ["lr=1e-3", "lr=1e-4"] and "layers" not in labels[0]


def test_breakdown_adds_up_to_real(grid: Store) -> None:
    result = grid.report("breakdown")
    for label in {row["label"] for row in result.rows}:
        parts = {row["part"]: row["dur_s"] for row in result.rows if row["label"] == label}
        assert math.fsum(parts[part] for part in PARTS) == pytest.approx(parts["real"])
    assert sum(row["share"] for row in result.rows if row["part"] != "real") == pytest.approx(4.0)


def test_the_time_of_the_preparation_stands_apart(store: Store) -> None:
    prepared = json.dumps({"prepared": {"real_s": 9.7, "user_s": 47.0, "sys_s": 0.5, "exit_code": 0}})
    store.run(exit={"user_s": 18.0, "sys_s": 2.0, "exit_json": prepared})
    result = store.report("time")
    assert result.rows[0]["prepared_s"] == 9.7
    assert "prepared" in [column.title for column in result.sections[0].columns]
    assert "prepared: seconds" in words(result)


def test_breakdown_of_a_run_without_phases_shows_real_alone(store: Store) -> None:
    phases = ("setup", "compile", "warmup", "measure", "eval", "checkpoint", "other")
    store.run("mps", False, 0.2, summary={f"{name}_s": None for name in phases})
    result = store.report("breakdown")
    assert {row["part"]: row["dur_s"] for row in result.rows}["setup"] is None
    assert "no phases reported" in words(result)


def test_iterations_of_the_chosen_runs_or_of_the_newest(store: Store) -> None:
    first, second = store.run("cpu", False, 0.1), store.run("mps", False, 0.1)
    for run_id in (first, second):
        store.iterations(run_id, [0.1, 0.2, 0.3])
    newest = store.report("iterations")
    assert [(row["run"], row["i"]) for row in newest.rows] == [("2.1", 0), ("2.1", 1), ("2.1", 2)]
    assert "newest run only" in words(newest)
    assert len(store.report("iterations", since="2001-01-01").rows) == 6
    chosen = store.report("iterations", selectors=["g1"], iters="1:2")
    assert [(row["run"], row["i"]) for row in chosen.rows] == [("1.1", 1), ("1.1", 2), ("2.1", 1), ("2.1", 2)]


@pytest.mark.parametrize("name", reports.names())
def test_every_report_of_an_empty_store_says_so(store: Store, name: str) -> None:
    result = store.report(name)
    assert result.rows == [] and "mpsq worker" in words(result)


@pytest.mark.parametrize("name", reports.names())
def test_every_report_has_what_a_report_must_have(name: str) -> None:
    report = reports.load(name)
    assert name == report.NAME and report.HELP and report.SQL.startswith("SELECT") and "{chosen}" in report.SQL
    assert len({column.key for column in report.COLUMNS}) == len(report.COLUMNS)


@pytest.mark.parametrize("name", reports.names())
def test_every_row_has_every_column(grid: Store, name: str) -> None:
    result: Result = grid.report(name)
    keys = {column.key for column in result.columns}
    assert all(keys <= row.keys() for row in result.rows)


def test_a_report_of_its_own_suits_a_workload() -> None:
    assert reports.suited(["opcheck", "opcheck"], "devices") == "ops"
    assert reports.suited(["nanogpt"], "devices") == reports.suited([None, "opcheck"], "devices") == "devices"


def test_an_unknown_report_gets_the_nearest_name() -> None:
    with pytest.raises(UsageError) as error:
        reports.load("divices")
    assert 'mean "devices"' in error.value.hint


def test_a_report_of_sql_and_columns_alone(grid: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least that a new file in reports/ needs."""
    plain = type("plain", (), {"NAME": "plain", "SQL": "SELECT run FROM v_run WHERE {chosen}", "COLUMNS": ()})
    monkeypatch.setattr(reports, "load", lambda _: plain)
    assert len(grid.report("plain", where=["device=cpu"]).rows) == 10


def test_the_default_report_over_many_runs_reads_no_iteration(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.many(300)
    seen: list[str] = []
    read = Context.read

    def watched(self: Context, sql: str, more: Sequence[Any] = ()) -> list[Row]:
        seen.append(sql)
        return read(self, sql, more)

    monkeypatch.setattr(Context, "read", watched)
    assert [row["n_runs"] for row in store.report().rows] == [75] * 4
    assert not any("iteration" in sql.replace("per_iter", "").split("FROM", 1)[1] for sql in seen)
    assert len(seen) < 10


def test_dates_and_ages() -> None:
    assert _options.moment("2h", now=1e9) == 1e9 - 7200
    assert _options.moment("2026-11-20", now=0) == _options.moment("2026-11-20T00:00", now=0)


def test_the_first_iteration_is_of_the_runs_whose_compile_cost_stands_beside_it(store: Store) -> None:
    """Cold and warm starts are two things: the median of 20 s and 1 s is nobody's."""
    for cache, first_s in (("cold", 20.0), ("warm", 1.0), ("warm", 1.0), ("warm", 1.0)):
        store.run("cpu", True, 0.1, hello={"compile_cache": cache}, summary={"first_iter_s": first_s})
    result = store.report()
    assert result.rows[0]["first_iter_s"] == 20.0
    assert "with a cold cache" in printing.as_text("devices", result, "table", explain=True)


def test_commands_with_other_arguments_are_rows_of_their_own(store: Store) -> None:
    """--set names settings; what stands in the command itself is one as well."""
    for batch in (8, 8, 64):
        store.run(workload=None, argv=("python", "train.py", "--device=cpu", "--seed=1", f"--batch={batch}"))
    store.run("mps", workload=None, argv=("python", "train.py", "--device=mps", "--seed=2", "--batch=8"))
    found = rows(store.report())
    assert {label: row["n_runs"] for label, row in found.items()} == {
        "cpu eager --batch=8": 2,
        "cpu eager --batch=64": 1,
        "mps eager --batch=8": 1,
    }


def test_a_negative_value_has_its_option(store: Store) -> None:
    for value in ("0.1", "-0.1", "-.5", "--verbose"):
        store.run(workload=None, argv=("python", "train.py", "--lr", value))
    assert {*rows(store.report())} == {"--lr 0.1", "--lr -0.1", "--lr -.5", "--verbose"}


def test_a_setting_within_an_argument_makes_one_difference(store: Store) -> None:
    for lr in ("1e-3", "1e-4"):
        argv = ("python", "-c", f"train(lr={lr})", f"--out=out_{lr}")
        store.run(workload=None, argv=argv, params={"lr": lr})
    result = store.report()
    assert {*rows(result)} == {"lr=1e-3", "lr=1e-4"} and "also differ" not in words(result)


def test_a_value_that_the_command_has_by_chance_makes_no_difference(store: Store) -> None:
    for x in range(3):
        store.run(workload=None, argv=("sh", "-c", f"sleep 0.0{x}; [ {x} != 2 ]"), params={"x": x})
    result = store.report()
    assert {*rows(result)} == {"x=0", "x=1", "x=2"} and "also differ" not in words(result)


def test_a_variable_that_differs_is_named_as_users_type_it(store: Store) -> None:
    """It was "OMP NUM THREADS"."""
    for device, n in (("cpu", "8"), ("mps", "4")):
        store.run(device, variables={"OMP_NUM_THREADS": n}, hello={"data_name": n})
    assert "also differ in OMP_NUM_THREADS and data name" in words(store.report("devices"))


def test_a_row_that_failed_stays_beside_those_that_are_compared_by_their_whole_time(store: Store) -> None:
    for x in range(3):
        end: dict[str, Any] = {"outcome": "FAILED", "exit_code": 1} if x == 2 else {}
        argv, nothing = ("python", "go.py", str(x)), {"framework": None, "config": None, "dtype": None}
        store.run(None, None, None, workload=None, argv=argv, params={"x": x}, summary={"n_iters": 0}, **nothing, **end)
    (family,) = store.report().families
    assert [row["time_of"] for row in store.report().rows] == ["run"] * 3 and len(family.arms) == 3


def test_the_same_command_on_two_devices_is_compared_as_one(store: Store) -> None:
    for device in ("cpu", "mps"):
        store.run(device, workload=None, argv=("python", "train.py", "--device", device))
    assert list(rows(store.report())) == ["cpu eager", "mps eager"]


def test_one_iteration_has_no_spread(store: Store) -> None:
    store.run(summary={"n_measure": 1, "mad_s": 0.0})
    assert store.report().rows[0]["spread_s"] is None


def test_the_newest_of_many_comparisons_are_shown_and_all_are_told(store: Store) -> None:
    for k in range(9):
        store.run(config=f"c{k}", group=k + 1)
    result = store.report()
    assert len(result.rows) == 9 and result.rows[0]["config"] == "c8"
    titles = [section.title for section in result.sections if section.title]
    assert [t.split(",")[0] for t in titles] == ["A: nanogpt c8", "B: nanogpt c7", "C: nanogpt c6", "D: nanogpt c5"]
    text = printing.as_text("devices", result, "table")
    note = " ".join(text.split()).partition("not shown: ")[2]
    assert all(f"g{group} (test)" in note for group in (5, 4, 3)) and "and 2 more" in note
    assert "mpsq report g5 shows one" in note
    assert len([s for s in store.report(where=["workload=nanogpt"]).sections if s.title]) == 9


def test_vs_names_the_row_without_a_setting_and_hints_what_can_be_typed(store: Store) -> None:
    asked = "device=mps,compile=off,mps_layout_optimization=unset"
    assert "no run" in words(store.report(vs=asked))
    for variables in ({}, {"TORCHINDUCTOR_LAYOUT_OPTIMIZATION": "0"}):
        for compile in (False, True):
            store.run("mps", compile, software={"versions": {"torch": "2.13.0"}, "variables": variables})
    with pytest.raises(UsageError) as refused:
        store.report(vs="device=mps,compile=off")
    assert asked in (refused.value.hint or "")
    result = store.report(vs=asked)
    assert [row["label"] for row in result.rows if row["is_baseline"]] == ["mps eager"]
    with pytest.raises(UsageError, match="--vs workload=nothing matches none of the rows"):
        store.report(vs="workload=nothing")


@pytest.mark.parametrize("name", ["devices", "frameworks", "memory", "numerics", "breakdown", "train-vs-infer"])
def test_tables_of_two_machines_say_which(store: Store, name: str) -> None:
    for cpu in ("one", "two"):
        said = {"params": 1000, "workload": "nanogpt", "samples_per_iter": 4}
        machine = {"cpu": cpu, "cores_logical": 8, "gpus": [{"cores": 32, "name": cpu}]}
        for framework, device in (("torch", "cpu"), ("torch", "cuda"), ("jax", "cuda")):
            run_id = store.run(device, framework=framework, machine=machine, hello=said)
            for i in range(3):
                store._insert(
                    "iterations", run_id=run_id, offset=i, i=i, dur_s=0.1, loss=4.0, phase=3, synced=1, reserved_bytes=9
                )  # fmt: skip
        if name == "train-vs-infer":
            told = {**said, "workload": "nanogpt-eval"}
            store.run("cpu", params={"mode": "eval"}, machine=machine, hello=told)
    result = store.report(name)
    titles = [section.title for section in result.sections if section.title]
    assert titles and len(titles) == len({*titles}) and all("machine " in title for title in titles)
    (first, *_) = store.db.execute("SELECT hash FROM fingerprints WHERE data_json LIKE '%one%'").fetchone()
    alone = store.report(name, where=[f"machine={first[:10]}"])
    assert alone.rows and not any("machine " in section.title for section in alone.sections)
    if name == "devices":
        assert f"machine {first[:7]}: one, 8 cores" in words(result) and "one with 32 GPU" in words(result)


def test_a_run_that_ended_as_nan_has_no_finite_last_loss(store: Store) -> None:
    lost = {"diverged": ("invalid", "the loss is not a number from iteration 7 on")}
    store.run("cpu", taints=lost, summary={"loss_first": 4.2, "loss_last": None})
    result = store.report("devices")
    assert math.isnan(result.rows[0]["loss_last"])
    assert " nan" in printing.as_text("devices", result, "table", explain=True).split("ms/iter: the")[0]
    assert '"loss_last": "nan"' in printing.as_text("devices", result, "json")
    store.run("cpu", summary={"loss_first": 4.2, "loss_last": 2.0})
    assert store.report("devices").rows[0]["loss_last"] == 2.0  # of the runs that count
    assert math.isnan(store.report("devices", include_invalid=True).rows[0]["loss_last"])


def test_time_per_token_is_told_per_token(store: Store) -> None:
    store.run("cpu", hello={"tokens_per_iter": 100.0})
    store.run("mps", hello={"tokens_per_iter": 200.0})
    text = words(store.report())
    assert all(x in text for x in ("was 2.00 x faster", "per token", "2,000 vs 1,000 tokens/s"))


def test_long_names_still_fit_into_80_columns(store: Store) -> None:
    for name in ("a" * 100, "b" * 100):
        store.run(hello={"optimizer": name}, config="c" * 100)
    text = "".join(
        printing.as_text(name, store.report(name), "table", explain=True) for name in ("devices", "breakdown")
    )
    lines = [line for line in text.splitlines() if not any(letter * 81 in line for letter in "abc")]
    assert max(map(len, lines)) <= 80 and sum("…" in line for line in lines) >= 2


def test_rounds_of_one_submission_are_compared_and_runs_one_after_the_other_are_not(store: Store) -> None:
    for k in range(6):
        for device, median_s in (("cpu", 0.2), ("mps", 0.1)):
            store.run(device, False, median_s * 1.1**k + k / 1e4, group=1)
            store.run(device, False, median_s * 1.1**k + k / 1e4, group=2 + (device == "mps"), params={"n": 1})
    together, apart = (rows(store.report(where=[f"group={groups}"]))["mps eager"] for groups in ("1", "2,3"))
    assert (together["verdict"], together["n_rounds"], together["undecided_because"]) == ("faster", 6, None)
    assert (apart["verdict"], apart["n_rounds"]) == ("undecided", 0)
    assert "may favour one side" in apart["undecided_because"]


def test_a_row_with_two_speeds_in_earlier_submissions_waits(store: Store) -> None:
    """Three rounds that happen to fall on one level would give a word at once."""

    def three_rounds(group: int, *levels: float) -> None:
        for k, level in enumerate(levels):
            store.run("cpu", median_s=0.1 + k / 1e5, group=group)
            store.run("mps", median_s=0.1 * level + k / 1e5, group=group)

    three_rounds(1, 1.02, 1.08, 1.02)
    three_rounds(2, 1.02, 1.02, 1.02)
    assert rows(store.report(selectors=["g2"]))["mps eager"]["verdict"] == "slower"
    three_rounds(3, 1.08, 1.02, 1.08)
    three_rounds(4, 1.02, 1.02, 1.02)
    row = rows(store.report(selectors=["g4"]))["mps eager"]
    assert row["verdict"] == "undecided" and "8 rounds" in row["undecided_because"]
    assert rows(store.report(selectors=["g2"]))["mps eager"]["verdict"] == "slower", "what came later changes nothing"
    assert rows(store.report(selectors=["g1", "g2", "g3", "g4"]))["mps eager"]["verdict"] == "slower"
    for k in range(3):
        store.run("cpu", median_s=0.3 + k / 1e5, group=5)
        store.run("mps", median_s=0.1 * 1.02 + k / 1e5, group=5)
    row = rows(store.report(selectors=["g5"]))["mps eager"]
    assert row["verdict"] == "faster", "two speeds that close do not explain three times the speed"


def test_a_later_job_that_ran_before_a_selected_run_is_an_earlier_one(store: Store) -> None:
    for group, level in ((1, 1.02), (2, 1.08)):
        for k in range(4):
            store.run("cpu", median_s=0.1 * level + k / 1e5, group=group)
    store.run("cpu", group=1)
    for selector, has_levels in (("1.5", True), ("1", False)):
        (family,) = store.report(selectors=[selector]).families
        assert (family.arms[0].runs[-1].earlier_levels > 0) is has_levels


def test_earlier_runs_are_looked_for_between_two_jobs(store: Store) -> None:
    """A queue of years has thousands of jobs of a question before and after those that may count."""
    plan = store.db.execute(f"EXPLAIN QUERY PLAN {prepare._EARLIER}", ["[]", 1, 1]).fetchall()
    steps = [step for *_, step in plan]
    assert any("jobs_question (<expr>=? AND rowid>? AND rowid<?)" in step for step in steps), steps
    assert not any(step.startswith("SCAN jobs") for step in steps), steps


def test_rows_that_where_hides_count_as_words(store: Store) -> None:
    for k in range(4):
        for at, device in enumerate(("cpu", "mps", "cuda", "xpu")):
            store.run(device, False, 0.1 * (1 + (at + k * 3) % 4 / 500) / (1 + at / 20))
    every, some = (rows(store.report(where=where))["mps eager"] for where in ([], ["device=cpu,mps"]))
    assert some["speedup_low"] == pytest.approx(every["speedup_low"], rel=0.02)
    store.db.execute("INSERT INTO groups (id, created_at, title, seed) VALUES (2, 1e9, 'other', 0)")
    store.db.execute("UPDATE jobs SET group_id = 2 WHERE device IN ('cuda', 'xpu')")
    alone = rows(store.report(where=["device=cpu,mps"]))["mps eager"]
    assert alone["speedup_low"] > some["speedup_low"]


def test_by_time_overrides_the_metric_of_the_submission(store: Store) -> None:
    for k in range(5):
        for device in ("cpu", "mps"):
            store.metric(store.run(device, False, 0.1 + k / 1e5), "score", k + (device == "cpu"))
    store.db.execute("UPDATE groups SET aim = ?", [Aim("score", {"": 0.2}).to_json()])
    assert store.report().lines[0].startswith("undecided: score of")
    result = store.report(by="time")
    assert "the same within 20 %" in result.lines[0] and "verdict on time" not in words(result)
    (family,) = result.families
    assert answers.reached([family], "decided")


def test_the_metric_that_comes_first_may_be_missing_in_the_first_row(store: Store) -> None:
    for k in range(5):
        store.run("cpu", False, 0.2)
        for device in ("cuda", "mps"):
            store.metric(store.run(device, False, 0.1 + k / 1e5), "score", k + (device == "mps"))
    result = store.report(by="score", vs="device=cuda")
    assert [column.key for column in result.sections[0].columns][1] == "score_value"


def test_the_margin_of_practically_the_same_is_an_option(store: Store) -> None:
    for k in range(5):
        for device in ("cpu", "mps"):
            store.run(device, False, 0.1 + k / 1e5)
    same = rows(store.report())["mps eager"]
    assert (same["verdict"], same["same_within"]) == ("the same", 0.01)
    close = rows(store.report(same_within="0.01%"))["mps eager"]
    assert (close["verdict"], close["same_within"]) == ("undecided", 1e-4)


def test_a_removed_report_names_its_successor(store: Store) -> None:
    with pytest.raises(UsageError) as refused:
        store.report("throughput")
    assert "train-vs-infer" in (refused.value.hint or "")
