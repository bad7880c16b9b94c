"""Summary of one run: iterations, phases and clocks become the one row that reports read.

Pure: points in file order in, a Summary out. Only logged iterations count, for example every tenth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from queue_runner.analysis import stats, steadiness
from queue_runner.analysis.phases import RUN_PHASES, phase_seconds
from queue_runner.analysis.points import EvalPoint, IterationPoint, PhaseMark
from queue_runner.model import PHASES

_COMPILE, _WARMUP, _MEASURE, _EVAL_ITER = map(PHASES.index, ("compile", "warmup", "measure", "eval_iter"))


@dataclass(frozen=True, kw_only=True)
class RunNumbers:
    """The numbers of a run. Times belong to `measure` iterations unless named otherwise; None is unknown."""

    n_iters: int | None = None
    n_measure: int | None = None
    median_s: float | None = None
    mad_s: float | None = None
    """raw, not scaled to a standard deviation: see stats.mad"""
    q1_s: float | None = None
    q3_s: float | None = None
    mean_s: float | None = None
    first_iter_s: float | None = None
    """first iteration of the process: with compilation, and in a foreign log with the first evaluation"""
    first_iter_excess_s: float | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    val_loss_last: float | None = None
    setup_s: float | None = None
    compile_s: float | None = None
    warmup_s: float | None = None
    measure_s: float | None = None
    eval_s: float | None = None
    checkpoint_s: float | None = None
    other_s: float | None = None
    """real - slept - the six phases, signed: see phases.other_remark"""
    projected_real_s: float | None = None
    """estimated real time of all planned iterations, including those before a resume; None if none is missing"""
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Summary(RunNumbers):
    """Summary of a run, as it is stored."""

    n_iters: int = 0
    n_measure: int = 0
    min_s: float | None = None
    max_s: float | None = None
    first_third_median_s: float | None = None
    last_third_median_s: float | None = None
    drift_ratio: float | None = None
    """last over first; only descriptive: `course` decides whether the run drifted"""
    course: steadiness.IterationProfile = field(default_factory=steadiness.IterationProfile)
    loss_min: float | None = None


def describe(times: Sequence[float]) -> dict[str, float | None]:
    """Return the centre and spread of times in seconds, as fields of Summary; None where there are no times."""
    if not times:
        return dict.fromkeys(("median_s", "mad_s", "q1_s", "q3_s", "mean_s"))
    middle = stats.median(times)
    q1, q3 = stats.quartiles(times)
    mean = math.fsum(times) / len(times)
    return {"median_s": middle, "mad_s": stats.mad(times, middle), "q1_s": q1, "q3_s": q3, "mean_s": mean}


def summarize(
    *,
    iterations: Sequence[IterationPoint],
    phases: Sequence[PhaseMark] = (),
    evals: Sequence[EvalPoint] = (),
    real_s: float | None = None,
    slept_s: float | None = None,
    planned_iters: int | None = None,
    eval_interval: int | None = None,
    resumed: bool = False,
    nan_loss: bool = False,
) -> Summary:
    """Summarize one run; of a resumed one only its own part.

    Open phases end with the process. A job that reported no phases has None for all of them and for other_s.
    `nan_loss`: a loss was NaN, which the store keeps as None, so a last loss of None is not replaced by an earlier one.
    """
    measured = [point for point in iterations if point.phase == _MEASURE]
    times = [point.dur_s for point in measured]
    centre = describe(times)
    middle = centre["median_s"]
    numbers = [point.i for point in measured]
    first_third, last_third = stats.thirds(numbers, times) or (None, None)
    first = _first_iteration(iterations)
    losses = [point.loss for point in iterations if point.loss is not None]
    lost = nan_loss and iterations[-1].loss is None if iterations else False
    val = [point.value for point in evals if point.split == "val" and point.metric == "loss"]
    spent: dict[str, float] = {}
    awake_s = None if real_s is None else real_s - (slept_s or 0.0)
    if phases:
        seconds = phase_seconds(phases, awake_s)
        spent = {f"{name}_s": seconds.get(name, 0.0) for name in RUN_PHASES}
    return Summary(
        n_iters=len(iterations),
        n_measure=len(times),
        **centre,
        min_s=min(times, default=None),
        max_s=max(times, default=None),
        first_iter_s=first,
        first_iter_excess_s=None if first is None or middle is None else first - middle,
        first_third_median_s=first_third,
        last_third_median_s=last_third,
        drift_ratio=last_third / first_third if first_third and last_third is not None else None,
        course=steadiness.course(numbers, times),
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses and not lost else None,
        loss_min=min(filter(math.isfinite, losses), default=None),
        val_loss_last=val[-1] if val else None,
        **spent,
        other_s=awake_s - math.fsum(spent.values()) if phases and awake_s is not None else None,
        projected_real_s=_projected(
            iterations, evals, middle, spent.get("eval_s"), real_s, planned_iters, eval_interval, resumed
        ),
        peak_allocated_bytes=_greatest(point.allocated_bytes for point in iterations),
        peak_reserved_bytes=_greatest(point.reserved_bytes for point in iterations),
    )


def _greatest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _first_iteration(iterations: Sequence[IterationPoint]) -> float | None:
    """Return the seconds of the first iteration of the process; None for a log that begins later."""
    if not iterations:
        return None
    first = iterations[0]
    return first.dur_s if first.i == 0 or first.phase in (_COMPILE, _WARMUP) else None


def _projected(
    iterations: Sequence[IterationPoint],
    evals: Sequence[EvalPoint],
    middle: float | None,
    eval_s: float | None,
    real_s: float | None,
    planned_iters: int | None,
    eval_interval: int | None,
    resumed: bool,
) -> float | None:
    """Estimate the real seconds of all planned iterations: the real time, plus the median for each missing iteration,
    plus the mean evaluation for each missing one (if there are two, or their interval is known). Of a resumed run, the
    iterations before its first are missing too.

    Without a real time (a truncated log), that is estimated as well: the first iteration, plus the median for each
    other.
    """
    if middle is None or planned_iters is None:
        return None
    done = max(point.i for point in iterations) + 1
    before = iterations[0].i if resumed else 0
    missing = planned_iters - done + before
    first = _first_iteration(iterations)
    if missing <= 0 or (real_s is None and first is None):
        return None
    so_far = real_s if real_s is not None else (first or 0.0) + (done - before - 1) * middle
    evaluations = _missing_evals(evals, before, done, planned_iters, eval_interval)
    return so_far + missing * middle + evaluations * _eval_cost(iterations, evals, middle, eval_s)


def _missing_evals(
    evals: Sequence[EvalPoint], before: int, done: int, planned_iters: int, eval_interval: int | None
) -> int:
    at = sorted({point.i for point in evals})
    interval = eval_interval or (round(stats.median(b - a for a, b in pairwise(at))) if len(at) > 1 else 0)
    if interval <= 0:
        return 0
    after = planned_iters // interval - (done - 1) // interval if done < planned_iters else 0
    return after + before // interval


def _eval_cost(
    iterations: Sequence[IterationPoint], evals: Sequence[EvalPoint], middle: float, eval_s: float | None
) -> float:
    """Return the seconds of one evaluation: from its phase, or the excess over the median of iterations with one."""
    inside = [point.dur_s - middle for point in iterations if point.phase == _EVAL_ITER]
    if inside:
        return stats.median(inside)
    n = len({point.i for point in evals})
    return eval_s / n if eval_s and n else 0.0
