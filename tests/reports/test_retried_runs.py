"""A retry of a run that had succeeded replaces it in every report, page and plot: neither pooled nor left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queue_runner.reports._common import printing
from tests.reports.report_fixture import words
from tests.reports.test_compare import compare, lines
from tests.reports.test_microbenchmarks import Benches

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path: Path) -> Benches:
    """Three rounds of two batch sizes; the first run of each was slow, and retried."""
    made = Benches(tmp_path / "home")
    for size in (8, 16):
        batch = {"params": {"batch_size": size}, "hello": {"tokens_per_iter": 10.0 * size}}
        first, *_ = [made.run(median_s=time_s, **batch) for time_s in (0.4, 0.1, 0.1)]
        made.retry(first, median_s=0.1, **batch)
    return made


def test_a_curve_has_the_time_of_the_retry(store: Benches) -> None:
    for options in ({}, {"include_invalid": True}):
        result = store.report("scaling", **options)
        assert [(row["n_timed"], row["median_s"]) for row in result.rows] == [(3, pytest.approx(0.1))] * 2
        assert "3/3" in printing.as_text("scaling", result, "table") and "left out" not in words(result)


def test_the_history_of_a_row_has_the_time_of_the_retry(store: Benches) -> None:
    for group in (2, 3, 4, 5, 6, 7, 8, 9):
        store.retry(store.run(median_s=0.4, group=group), median_s=0.1, group=group)
    (row,) = store.report("trend").rows
    assert [(point["n_runs"], point["value"]) for point in row["points"]] == [(1, pytest.approx(0.1))] * 8


def test_both_sides_of_a_comparison_have_three_valid_runs(store: Benches) -> None:
    for _ in range(3):
        store.run(params={"batch_size": 4}, hello={"tokens_per_iter": 40.0})
    assert "valid runs" not in lines(compare(store, "1", "3"), "differs")


def test_the_gallery_marks_no_row(store: Benches) -> None:
    result = store.report("gallery")
    assert not any(row.excluded for row in result.items) and "left out" not in words(result)


def test_an_attempt_that_failed_or_is_invalid_does_not_count_beside_its_retry(tmp_path: Path) -> None:
    made = Benches(tmp_path / "home")
    for size in (8, 16):
        batch: dict[str, Any] = {"params": {"batch_size": size}}
        made.retry(made.run(taints={"slept": ("invalid", "the machine slept")}, **batch), **batch)
        made.retry(made.run(outcome="FAILED", exit_code=1, median_s=None, **batch), **batch)
    for name in ("scaling", "gallery"):
        for options in ({}, {"include_invalid": True}):
            text = printing.as_text(name, made.report(name, **options), "table")
            assert text.count("2/2") == 2 and not any("2/2" in line and "!" in line for line in text.splitlines())


def test_a_microbenchmark_that_was_retried_is_not_left_out(store: Benches) -> None:
    store.matmul(times=[4e-3])
    retry = store.matmul(times=[1e-3])
    store.db.execute("UPDATE runs SET repeat = 1, attempt = 2 WHERE id = ?", [retry])
    result = store.report("matmul")
    assert [(row["n_runs"], row["median_s"]) for row in result.rows] == [(1, 1e-3)]
    assert "left out" not in words(result)
