"""Summary of one run: iterations, phases and clocks become the one row that reports read.

Pure: rows in, a Summary out. Rows have the columns of the tables `iterations`, `phases` and `evals`, in file order;
`phase` of an iteration is an index into model.PHASES. Only logged iterations count, for example every tenth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from queue_runner.analysis import stats, steadiness
from queue_runner.analysis.phases import RUN_PHASES, phase_seconds
from queue_runner.model import PHASES

Rows = Sequence[Mapping[str, Any]]

_COMPILE, _WARMUP, _MEASURE, _EVAL_ITER = map(PHASES.index, ("compile", "warmup", "measure", "eval_iter"))


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of a run. Times are of `measure` iterations unless named otherwise; None is unknown."""

    n_iters: int = 0
    n_measure: int = 0
    median_s: float | None = None
    mad_s: float | None = None
    """raw, not scaled to a standard deviation: see stats.mad"""
    q1_s: float | None = None
    q3_s: float | None = None
    mean_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    first_iter_s: float | None = None
    """first iteration of the process: with compilation, and in a foreign log with the first evaluation"""
    first_iter_excess_s: float | None = None
    first_third_median_s: float | None = None
    last_third_median_s: float | None = None
    drift_ratio: float | None = None
    """last over first; only descriptive: `course` decides whether the run drifted"""
    course: steadiness.IterationProfile = field(default_factory=steadiness.IterationProfile)
    loss_first: float | None = None
    loss_last: float | None = None
    loss_min: float | None = None
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
    iterations: Rows,
    phases: Rows = (),
    evals: Rows = (),
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
    measured = [row for row in iterations if row["phase"] == _MEASURE]
    times = [row["dur_s"] for row in measured]
    centre = describe(times)
    middle = centre["median_s"]
    numbers = [row["i"] for row in measured]
    first_third, last_third = stats.thirds(numbers, times) or (None, None)
    first = _first_iteration(iterations)
    losses = [row["loss"] for row in iterations if row["loss"] is not None]
    lost = nan_loss and iterations[-1]["loss"] is None if iterations else False
    val = [row["value"] for row in evals if row["split"] == "val" and row["metric"] == "loss"]
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
        peak_allocated_bytes=_greatest(iterations, "allocated_bytes"),
        peak_reserved_bytes=_greatest(iterations, "reserved_bytes"),
    )


def _greatest(rows: Rows, key: str) -> int | None:
    return max((row[key] for row in rows if row[key] is not None), default=None)


def _first_iteration(iterations: Rows) -> float | None:
    """Return the seconds of the first iteration of the process; None for a log that begins later."""
    if not iterations:
        return None
    first = iterations[0]
    seconds: float = first["dur_s"]
    return seconds if first["i"] == 0 or first["phase"] in (_COMPILE, _WARMUP) else None


def _projected(
    iterations: Rows,
    evals: Rows,
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
    done: int = max(row["i"] for row in iterations) + 1
    before = iterations[0]["i"] if resumed else 0
    missing = planned_iters - done + before
    first = _first_iteration(iterations)
    if missing <= 0 or (real_s is None and first is None):
        return None
    so_far = real_s if real_s is not None else (first or 0.0) + (done - before - 1) * middle
    evaluations = _missing_evals(evals, before, done, planned_iters, eval_interval)
    return so_far + missing * middle + evaluations * _eval_cost(iterations, evals, middle, eval_s)


def _missing_evals(evals: Rows, before: int, done: int, planned_iters: int, eval_interval: int | None) -> int:
    at = sorted({row["i"] for row in evals})
    interval = eval_interval or (round(stats.median(b - a for a, b in pairwise(at))) if len(at) > 1 else 0)
    if interval <= 0:
        return 0
    after = planned_iters // interval - (done - 1) // interval if done < planned_iters else 0
    return after + before // interval


def _eval_cost(iterations: Rows, evals: Rows, middle: float, eval_s: float | None) -> float:
    """Return the seconds of one evaluation: from its phase, or the excess over the median of iterations with one."""
    inside = [row["dur_s"] - middle for row in iterations if row["phase"] == _EVAL_ITER]
    if inside:
        return stats.median(inside)
    n = len({row["i"] for row in evals})
    return eval_s / n if eval_s and n else 0.0
