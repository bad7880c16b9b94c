"""Time and loss of each iteration, for uPlot: complete, or the lowest and highest of each stretch, with a note."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import Arm
from queue_runner.model import PHASES
from queue_runner.pages.dots import colour
from queue_runner.pages.run_records import RunRecords
from queue_runner.reports._common import arm_tables
from queue_runner.store.read import tuples

MOST_POINTS = 160_000
"""Points of a page, of time and of loss together: some 1.3 MB of text, and drawn in under a second."""
MOST_RUNS = 100
"""Runs of a page whose iterations are drawn."""
MEASURE = PHASES.index("measure")
_DIGITS = 5
"""Significant digits of a value: beyond what a line on a screen shows."""

Values = list[float | None]


class IterationPlot(Struct, frozen=True):
    """The iterations of one run in their order: number, seconds, loss (None where unknown), phase."""

    i: Sequence[int] = ()
    dur_s: Sequence[float | None] = ()
    loss: Sequence[float | None] = ()
    phase: Sequence[int] = ()


class Plots(Struct, frozen=True):
    """The data of all plots, and what to say of them."""

    families: Sequence[Mapping[str, Any]]
    notes: Sequence[str]


def plots(evidence: RunRecords) -> Plots:
    """Read the iterations of the runs and thin them to what fits a page."""
    chosen, n_left = _chosen(evidence)
    courses = {run_id: course for run_id in chosen if (course := _read(evidence, run_id)).i}
    total = sum(2 * len(course.i) for course in courses.values())
    stretch = 1 if total <= MOST_POINTS else math.ceil(2 * total / MOST_POINTS)
    families = [made for family in evidence.families if (made := _plot(family, courses, stretch)) is not None]
    notes = []
    if stretch > 1:
        notes.append(
            f"{units.counted(total // 2, 'iteration')} are too many for a page: of every {stretch} the lowest and the"
            " highest are drawn, so that no outlier is missing; mpsq report iterations --format csv has each"
        )
    elif courses:
        notes.append(
            f"all {units.count(total // 2)} iterations are drawn" if total > 2 else "the one iteration is drawn"
        )
    if n_left:
        notes.append(
            f"of {len(chosen) + n_left} runs {len(chosen)} are drawn: as many of each row as there is room for"
        )
    return Plots(families, notes if families else [])


def _chosen(evidence: RunRecords) -> tuple[list[int], int]:
    """Return the runs to draw: in turn one of each arm until there are MOST_RUNS; and how many are left out."""
    arms = [[row.run_id for row in arm.runs] for family in evidence.families for arm in family.arms]
    in_turn = dict.fromkeys(
        run_id for k in range(max(map(len, arms), default=0)) for run_ids in arms for run_id in run_ids[k : k + 1]
    )
    return [*in_turn][:MOST_RUNS], len([*in_turn][MOST_RUNS:])


def _read(evidence: RunRecords, run_id: int) -> IterationPlot:
    """Read the iterations of a run; of a number that a resumed run repeats, the last."""
    first, last = evidence.context.options.iters or (0, 2**62)
    sql = "SELECT i, dur_s, loss, phase FROM iterations WHERE run_id = ? AND i BETWEEN ? AND ? ORDER BY offset"
    points = {row[0]: row for row in tuples(evidence.context.connection, sql, [run_id, first, last])}
    return IterationPlot(*zip(*(points[i] for i in sorted(points)), strict=True)) if points else IterationPlot()


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")


def _plot(family: Family, courses: Mapping[int, IterationPlot], stretch: int) -> Mapping[str, Any] | None:
    """Return the data of a family: `x` of all runs, and by run the values at each x."""
    shown = [(at, arm, row) for at, arm in enumerate(family.arms) for row in arm.runs if row.run_id in courses]
    if not shown:
        return None
    profiles = [_per_unit(courses[row.run_id], arm, family.per_work) for _, arm, row in shown]
    xs = _xs(profiles, stretch)
    at_x = {x: k for k, x in enumerate(xs)}
    used = {row.run_id for arm in family.arms for row in arm.used}
    measured = [d for course in profiles for d, p in zip(course.dur_s, course.phase, strict=True) if p == MEASURE and d]
    every = [d for course in profiles for d in course.dur_s if d is not None]
    inside = (min(measured), max(measured)) if measured else (min(every, default=0.0), max(every, default=1.0))
    return {
        "caption": arm_tables.caption(family),
        "unit": family.per_work or "iteration",
        "x": xs,
        "arms": [{"label": arm.label, "colour": colour(at)} for at, arm in enumerate(family.arms)],
        "runs": [
            {
                "run": row.run,
                "arm": at,
                "used": row.run_id in used,
                "dur": _laid_out(course.i, course.dur_s, at_x, stretch),
                "loss": _laid_out(course.i, course.loss, at_x, stretch),
            }
            for (at, _, row), course in zip(shown, profiles, strict=True)
        ],
        "measured": inside,
        "outside": sum(not inside[0] <= d <= inside[1] for d in every),
    }


def _per_unit(course: IterationPlot, arm: Arm, unit: str) -> IterationPlot:
    """Return the times of a token or sample where these are compared."""
    work = arm.work(unit) if unit else None
    return replace(course, dur_s=[d and d / work for d in course.dur_s]) if work else course


def _xs(courses: Iterable[IterationPlot], stretch: int) -> list[float]:
    """Return the places of the values: iterations, or two of each stretch."""
    if stretch == 1:
        return sorted({i for course in courses for i in course.i})
    starts = sorted({i // stretch * stretch for course in courses for i in course.i})
    return [x for start in starts for x in (start, start + stretch / 2)]


def _laid_out(
    numbers: Sequence[int], values: Sequence[float | None], at_x: Mapping[float, int], stretch: int
) -> Values:
    """Return the values at each x; of a stretch its lowest and its highest, in the order in which they came."""
    laid_out: Values = [None] * len(at_x)
    if stretch == 1:
        for i, value in zip(numbers, values, strict=True):
            laid_out[at_x[i]] = _rounded(value)
        return laid_out
    parts: dict[int, list[float]] = {}
    for i, value in zip(numbers, values, strict=True):
        if value is not None and math.isfinite(value):
            parts.setdefault(i // stretch * stretch, []).append(value)
    for start, part in parts.items():
        low, high = min(part), max(part)
        ends = (low, high) if part.index(low) < part.index(high) else (high, low)
        at = at_x[start]
        laid_out[at : at + 2] = map(_rounded, ends)
    return laid_out
