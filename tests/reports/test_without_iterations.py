"""Runs that have no times of iterations, and curves that have no time at some value: reports say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_runner.control import import_log
from queue_runner.reports._common import printing
from tests.ingest.test_parse_trainer import V4
from tests.reports.report_fixture import Store, words
from tests.reports.test_reports import store  # noqa: F401  (fixture)


def test_a_trainers_log_has_its_mean_step_and_why_there_is_no_more(store: Store, tmp_path: Path) -> None:  # noqa: F811
    log = tmp_path / "trainer.log"
    log.write_bytes(V4)
    import_log.import_logs(store.layout, [log], "trainer", {"device": "mps"})
    result = store.report()
    (section,) = [one for one in result.sections if "mean of the whole training" in one.title]
    assert section.rows[0]["mean_step_s"] == pytest.approx(1 / 3.45)
    text = printing.as_text("devices", result, "table", explain=True)
    assert "mean step, ms" in text and "289.9" in text
    assert "not compared" in words(result) and "TrainerCallback" in words(result)


def test_a_value_without_a_time_says_why(store: Store) -> None:  # noqa: F811
    store.run(params={"batch_size": 8})
    store.run(params={"batch_size": 16}, taints={"contended": ("invalid", "others used the machine")})
    store.run(params={"batch_size": 32}, median_s=None)
    text = printing.as_text("scaling", store.report("scaling"), "table", explain=True)
    assert "invalid:" in text and "  contended" in text and "no iterations" in text
    assert "fits: 32" in text and "was tried" in text


def test_iterations_that_are_all_warm_up_give_no_answer(store: Store) -> None:  # noqa: F811
    for size, real_s in ((4, 10.0), (8, 24.0)):
        for _ in range(2):
            store.run(
                params={"batch_size": size}, summary={"median_s": None, "mad_s": None, "n_measure": 0, "n_iters": 10},
                exit={"real_s": real_s},
            )  # fmt: skip
    text = " ".join(printing.as_text("devices", store.report(), "table").split())
    assert all(x in text for x in ("nothing to compare", "ran 10 iterations", "warm-up"))
    assert " x slower" not in text and "wall" not in text


def test_the_probes_of_one_search_are_one_curve(store: Store) -> None:  # noqa: F811
    """2 was of other code and without torch in its fingerprint: the answer of the search is 8 all the same."""
    for value, software in ((2, {"code": "a" * 64}), (4, {"code": "b" * 64, "torch": "2.13"}), (8, {"code": "c" * 64})):
        store.run(
            workload=None, framework=None, params={"n": value}, find_max="n=2:8", software=software,
            argv=("./train",), config=None,
        )  # fmt: skip
    result = store.report("scaling")
    text = printing.as_text("scaling", result, "table", explain=True)
    assert {row["value"] for row in result.rows} == {2, 4, 8}
    assert text.count("largest n that fits") == 1 and "largest n that fits: 8" in text
    assert "code=" not in text and "unset" not in text


def test_commands_show_the_least_and_the_most_time_and_differ_in_what_prepares_them(store: Store) -> None:  # noqa: F811
    for prepare, times in (("", (1.0, 1.5, 2.0)), ("drop caches", (7.0, 8.0, 9.0))):
        for real_s in times:
            store.run(
                workload=None, framework=None, config=None, argv=("./sort",), prepare=prepare,
                summary={"median_s": None, "mad_s": None, "n_measure": 0, "n_iters": 0}, exit={"real_s": real_s},
            )  # fmt: skip
    text = printing.as_text("devices", store.report(), "table", explain=True)
    rows = [line.split() for line in text.splitlines() if "min" in line.split() or " 9" in line]
    assert ["median", "min", "max", "user", "sys"] in rows, text
    assert any({"7", "9"} <= {*row} or {"7.000", "9.000"} <= {*row} for row in rows), text
    assert "prepare=none" in text and "prepare=drop caches" in text


def test_the_gallery_has_the_wall_time_of_commands_and_counts_failures_of_all_rows(store: Store) -> None:  # noqa: F811
    known = {"framework": None, "config": None, "dtype": None, "device": None, "compile": None, "workload": None}
    store.run(median_s=None, argv=("sleep", "1"), name="sleep 1", exit={"real_s": 1.5}, **known)  # type: ignore[arg-type]
    store.run(median_s=None, argv=("false",), name="false", outcome="FAILED", exit_code=1, **known)  # type: ignore[arg-type]
    result = store.report("gallery")
    (row,) = result.rows
    assert (row["median_s"], row["time_of"]) == (1.5, "run")
    text = printing.as_text("gallery", result, "table")
    assert "wall s" in text and "1.500" in text and "ms/iter" not in text
    assert "1 run left" in text and "out (FAILED)" in text, "the page counts them, too"


def test_the_gallery_shows_no_part_of_a_path_or_of_code_with_one(store: Store) -> None:  # noqa: F811
    """Of "4/2; n = 1" it left "n = 1", and of a path the words after its first space."""
    for n in "12":
        paths = (
            "-c",
            f"4/2; n = {n}",
            f"--data=/home/me/of {n}",
            "--x",
            f"-{n}",
            f"/tmp/{n}",
            "--out",
            f"/tmp/out {n}",
        )
        known = {"framework": None, "config": None, "dtype": None, "device": None, "compile": None, "workload": None}
        argv = ("python3", *paths, "--n", n)
        store.run(median_s=None, argv=argv, name="python3", exit={"real_s": 1.5}, **known)  # type: ignore[arg-type]
    arguments = [row["settings"]["arguments"] for row in store.report("gallery").rows]
    assert arguments == ["--x -1 --n 1", "--x -2 --n 2"]


def test_missing_runs_are_offered_as_they_were_selected(store: Store) -> None:  # noqa: F811
    """It offered to queue what is missing of another submission, and named g5 where there was none."""
    for group in (1, 2):
        for batch in (8, 16):
            ended = {} if batch == 8 else {"outcome": "FAILED", "exit_code": 1}
            store.run(params={"batch_size": batch}, group=group, **ended)  # type: ignore[arg-type]
    newest = words(store.report("missing"))
    assert all(x in newest for x in ("only, g2:", "mpsq report missing g1", "mpsq rerun g2 --missing"))
    filtered = words(store.report("missing", where=["device=cpu"]))
    assert "mpsq rerun 2 4 --missing queues" in filtered


def test_a_window_without_measured_iterations_is_named(store: Store) -> None:  # noqa: F811
    for device in ("cpu", "mps"):
        store.iterations(store.run(device), [0.1] * 50)
    text = words(store.report(iters="1000:2000"))
    assert "iteration in 1,000 to 2,000" in text and "warm-up" not in text


def test_wall_times_have_neither_a_window_nor_few_iterations(store: Store) -> None:  # noqa: F811
    for device, taints in (("cpu", {}), ("mps", {"wrong_clock": ("caveat", "the detail")})):
        store.iterations(store.run(device, summary={"n_measure": 3}, taints=taints), [0.1] * 3)
    assert {row["time_of"] for row in store.report(iters="0:2").rows} == {"phase"}
    windowed = words(store.report(iters="0:2"))
    assert all(x not in windowed for x in ("of iterations 0 to 2", "measured iterations per run", "wider --iters"))
    assert "--iters applies to" in windowed and "--iters applies to" not in words(store.report())
    store.db.execute("UPDATE summaries SET measure_s = NULL")
    assert {row["time_of"] for row in store.report().rows} == {"run"}
    assert "measured iterations" not in words(store.report())
