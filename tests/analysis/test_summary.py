"""One run in one row: the centre is of measure alone, and the wall time adds up."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_runner.analysis.phases import RUN_PHASES, other_remark, phase_seconds
from queue_runner.analysis.points import EvalPoint, IterationPoint, PhaseMark
from queue_runner.analysis.summary import Summary, summarize
from queue_runner.model import PHASES
from queue_runner.store import schema


def row(i: int, dur_s: float, phase: str = "measure", loss: float | None = None, **memory: int) -> IterationPoint:
    return IterationPoint(i, dur_s, loss, PHASES.index(phase), 1, **memory)


def marks(*edges: tuple[float, str, str]) -> list[PhaseMark]:
    return [PhaseMark(*border) for border in edges]


WHOLE = marks(
    (1.0, "setup", "begin"),
    (3.0, "setup", "end"),
    (3.0, "compile", "begin"),
    (8.0, "compile", "end"),
    (8.0, "measure", "begin"),
    (10.0, "eval", "begin"),
    (12.0, "checkpoint", "begin"),
    (12.5, "checkpoint", "end"),
    (14.0, "eval", "end"),
    (20.0, "measure", "end"),
)


def test_the_fields_are_the_columns_of_the_store() -> None:
    columns = {column.name for column in schema.summaries.c} - {"run_id"}
    assert columns == {name for name in asdict(Summary()) if name != "course"}


def test_an_empty_run_knows_nothing() -> None:
    assert summarize(iterations=[]) == Summary()


def test_the_centre_is_of_measure_alone() -> None:
    rows = [
        row(0, 30.0, "compile", 4.2),
        row(1, 2.0, "warmup", 4.0),
        *(row(i, 1 + i / 100, loss=4 - i / 10) for i in range(2, 12)),
    ]
    rows += [row(12, 99.0, "eval_iter", 2.0)]
    found = summarize(iterations=rows)
    assert (found.n_iters, found.n_measure) == (13, 10)
    assert found.median_s == pytest.approx(1.065) and found.mad_s == pytest.approx(0.025)
    assert (found.q1_s, found.q3_s) == (pytest.approx(1.0425), pytest.approx(1.0875))
    assert (found.min_s, found.max_s) == (1.02, 1.11) and found.mean_s == pytest.approx(1.065)
    assert found.first_iter_s == 30 and found.first_iter_excess_s == pytest.approx(28.935)
    assert found.drift_ratio == pytest.approx(1.095 / 1.035) and len(found.course.segments) == 1
    assert (found.loss_first, found.loss_last, found.loss_min) == (4.2, 2.0, 2.0)


def test_losses_that_are_not_numbers() -> None:
    found = summarize(iterations=[row(0, 1, loss=4.0), row(1, 1, loss=3.0), row(2, 1, loss=math.inf)])
    assert (found.loss_last, found.loss_min) == (math.inf, 3.0)
    assert summarize(iterations=[row(0, 1, loss=math.nan)]).loss_min is None


def test_the_last_finite_loss_of_a_run_that_became_nan_is_not_its_last() -> None:
    rows = [row(0, 1, loss=4.0), row(1, 1, loss=3.0), row(2, 1, loss=None)]
    assert summarize(iterations=rows, nan_loss=True).loss_last is None
    assert summarize(iterations=rows).loss_last == 3.0  # a log that tells no loss with every iteration
    assert summarize(iterations=[*rows, row(3, 1, loss=2.5)], nan_loss=True).loss_last == 2.5
    assert summarize(iterations=[], nan_loss=True).loss_last is None


def test_a_log_that_begins_late_has_no_first_iteration() -> None:
    assert summarize(iterations=[row(10, 1.0), row(20, 1.0)]).first_iter_s is None


def test_memory_and_validation_loss() -> None:
    evals = [
        EvalPoint(0, "val", "loss", 4.3),
        EvalPoint(5, "val", "loss", 1.7),
        EvalPoint(5, "train", "loss", 0.6),
        EvalPoint(5, "val", "accuracy", 0.5),
    ]
    found = summarize(
        iterations=[row(0, 1, allocated_bytes=7), row(1, 1, allocated_bytes=9, reserved_bytes=11)], evals=evals
    )
    assert (found.val_loss_last, found.peak_allocated_bytes, found.peak_reserved_bytes) == (1.7, 9, 11)


def test_phases_are_exclusive_and_add_up_to_real() -> None:
    found = summarize(iterations=[], phases=WHOLE, real_s=27.5, slept_s=2.0)
    assert (found.setup_s, found.compile_s, found.warmup_s, found.measure_s) == (2, 5, 0, 8)
    assert (found.eval_s, found.checkpoint_s, found.other_s) == (3.5, 0.5, pytest.approx(6.5))


def test_an_open_phase_ends_with_the_process() -> None:
    cut = WHOLE[:6]  # killed during the evaluation
    found = summarize(iterations=[], phases=cut, real_s=15.0)
    assert (found.measure_s, found.eval_s, found.other_s) == (2, 5, 1)
    assert summarize(iterations=[], phases=cut).eval_s == 0


def test_edges_in_disorder_are_borne() -> None:
    disorder = marks(
        (1, "eval", "end"), (2, "measure", "begin"), (3, "eval", "begin"), (5, "measure", "end"), (4, "setup", "begin")
    )
    assert phase_seconds(disorder) == {"measure": 1, "eval": 2}
    assert phase_seconds(marks((2, "eval_iter", "begin"))) == {}


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.sampled_from(RUN_PHASES), st.sampled_from(["begin", "end"])), max_size=30),
    st.floats(0, 1e6),
    st.floats(0, 1e3),
)
def test_whatever_the_marks_the_parts_add_up(
    edges: list[tuple[float, str, str]], real_s: float, slept_s: float
) -> None:
    found = summarize(iterations=[], phases=marks(*edges), real_s=real_s, slept_s=slept_s)
    if not edges:
        assert found.other_s is None
        return
    parts = [getattr(found, f"{name}_s") for name in RUN_PHASES]
    assert all(part >= 0 for part in parts) and found.other_s is not None
    assert math.fsum([*parts, found.other_s, slept_s]) == pytest.approx(real_s, abs=1e-6)


def test_a_negative_remainder_says_what_it_is() -> None:
    assert other_remark(None) is None and other_remark(0.3) is None
    assert "granularity" in (other_remark(-0.004) or "")
    assert "may be wrong" in (other_remark(-3.0) or "")


def evaluated(*at: int) -> list[EvalPoint]:
    return [EvalPoint(i, "val", "loss", 2.0) for i in at]


def test_the_projection_adds_what_is_missing() -> None:
    rows = [row(0, 5.0, "warmup"), *(row(i, 1.0) for i in range(1, 100))]
    phases = marks((0, "eval", "begin"), (6, "eval", "end"))
    found = summarize(iterations=rows, phases=phases, evals=evaluated(0, 50), real_s=120.0, planned_iters=300)
    assert found.projected_real_s == pytest.approx(120 + 200 + 5 * 3)  # evaluations at 100, 150, ..., 300
    assert summarize(iterations=rows, real_s=120.0, planned_iters=100).projected_real_s is None
    assert summarize(iterations=rows, real_s=120.0).projected_real_s is None


def test_the_projection_of_a_log_without_a_real_time() -> None:
    """The post's CPU run: 50 iterations shown, no `time` line."""
    rows = [row(0, 119.98447, "warmup"), *(row(i, 1.98434) for i in (10, 20, 30, 40, 50))]
    found = summarize(iterations=rows, planned_iters=5001)
    assert found.projected_real_s == pytest.approx(119.98447 + 5000 * 1.98434)
    assert summarize(iterations=rows[1:], planned_iters=5001).projected_real_s is None


def test_the_cost_of_an_evaluation_inside_an_iteration() -> None:
    rows = [
        row(0, 9.0, "warmup"),
        *(row(i, 11.0 if i % 10 == 0 else 1.0, "eval_iter" if i % 10 == 0 else "measure") for i in range(1, 21)),
    ]
    found = summarize(iterations=rows, evals=evaluated(0, 10, 20), real_s=50.0, planned_iters=41)
    assert found.projected_real_s == pytest.approx(50 + 20 * 1 + 2 * 10)
