"""Modes of torch.compile in reports: a row each, with the eager row as twin, and never pooled."""

from __future__ import annotations

import pytest

from queue_runner.errors import UsageError
from tests.reports.report_fixture import Store, rows, words
from tests.reports.test_reports import store  # noqa: F401  (fixture)

TIMES = {False: 0.4, True: 0.2, "reduce-overhead": 0.1, "max-autotune": 0.05}


@pytest.fixture
def modes(store: Store) -> Store:  # noqa: F811
    for compiles, median_s in TIMES.items():
        summary = {"first_iter_excess_s": 0.5 if compiles is False else 20.5}
        store.run("cuda", compiles, median_s, hello={"compile_cache": "cold"} if compiles else {}, summary=summary)
    return store


def test_each_mode_is_a_row_with_the_eager_row_as_its_twin(modes: Store) -> None:
    result = modes.report()
    found = {row["compile"]: row for row in result.rows}
    assert {mode: row["median_s"] for mode, row in found.items()} == TIMES and len(result.rows) == 4
    assert [*found] == [False, True, "max-autotune", "reduce-overhead"]
    assert {row["compile_cost_s"] for row in found.values()} == {None, 20.0}
    assert found["max-autotune"]["speedup"] == pytest.approx(8)
    assert "reduce-overhead) was 4.00 x" in words(result)
    assert "max-autotune costs 20.0 s" in words(result)


def test_a_mode_is_a_baseline_and_a_selection(modes: Store) -> None:
    found = rows(modes.report(vs="compile=reduce-overhead"))
    assert found["cuda compiled"]["speedup"] == pytest.approx(0.5)
    assert rows(modes.report(vs="compile=on"))["cuda eager"]["speedup"] == pytest.approx(0.5)
    assert {*rows(modes.report(where=["compile=max-autotune,off"]))} == {"cuda eager", "cuda compiled(max-autotune)"}
    assert len(rows(modes.report(where=["compile=on"]))) == 3
    with pytest.raises(UsageError, match='compile cannot be "fast"'):
        modes.report(vs="compile=fast")


def test_reports_of_single_runs_name_the_mode(modes: Store) -> None:
    labels = [row["label"] for row in modes.report("time").rows]
    assert "compiled(reduce-overhead)" in labels[2]


@pytest.mark.parametrize("name", ["frameworks", "train-vs-infer", "breakdown"])
def test_no_report_pools_two_modes(modes: Store, name: str) -> None:
    modes.run("cuda", False, 0.3, framework="jax")
    for compiles, median_s in TIMES.items():
        modes.run("cuda", compiles, median_s / 3, workload="nanogpt-eval", params={"mode": "eval"})
    text = str([row.values() for row in modes.report(name).rows])
    assert all(f"compiled({mode})" in text or f"'{mode}'" in text for mode in ("reduce-overhead", "max-autotune"))
