"""What a plot shows: for each comparison the rows of the report, their runs, and every iteration of these."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from queue_runner import reports, units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.significance import Verdict
from queue_runner.errors import UsageError
from queue_runner.reports import devices
from queue_runner.reports._common import arm_tables, select_runs
from queue_runner.reports._common.document import Context, Options

MOST_COMPARISONS = 4
"""Comparisons in one picture; further ones are counted."""
LOG_FROM = 8
"""The least ratio of the longest to the shortest time at which the axis of times is logarithmic."""


@dataclass(frozen=True)
class PlotPoint:
    """An iteration. `measured`: in the phase `measure`, which alone counts for the times of reports."""

    i: int
    dur_s: float
    loss: float | None
    measured: bool


@dataclass(frozen=True)
class PlotRun:
    """A run that ended: `value_s` is its median time per iteration, or the real time of a run without iterations."""

    name: str
    used: bool
    value_s: float | None
    points: Sequence[PlotPoint]
    evals: Sequence[tuple[int, float]]
    """(iteration, validation loss)"""


@dataclass(frozen=True)
class PlotRow:
    label: str
    runs: Sequence[PlotRun]
    mean_s: float | None
    """the geometric mean of the used runs"""
    is_baseline: bool
    verdict: Verdict | None


@dataclass(frozen=True)
class Comparison:
    title: str
    rows: Sequence[PlotRow]
    per_iteration: bool
    """whether values are times per iteration; else they are real times"""
    baseline: str
    per_work: str
    """ "token" or "sample" where ratios are of the time per token or sample"""

    @property
    def runs(self) -> Iterator[PlotRun]:
        return (run for row in self.rows for run in row.runs)

    @property
    def points(self) -> Iterator[PlotPoint]:
        return (point for run in self.runs for point in run.points)


@dataclass(frozen=True)
class Plot:
    """`notes` are sentences about what is not drawn."""

    comparisons: Sequence[Comparison]
    notes: Sequence[str] = field(default_factory=list)

    def said(self) -> str:
        """Return what is drawn: "2 rows, 8 runs, 1,600 iterations"."""
        rows = sum(len(one.rows) for one in self.comparisons)
        runs = sum(1 for one in self.comparisons for _ in one.runs)
        points = sum(1 for one in self.comparisons for _ in one.points)
        return ", ".join([units.counted(rows, "row"), units.counted(runs, "run"), units.counted(points, "iteration")])


def read(connection: sqlite3.Connection, options: Options) -> Plot:
    """Read the newest comparison, or those of the chosen runs. Raises: UsageError when there is nothing to draw."""
    connection.execute("BEGIN")
    chosen, values = select_runs.condition(connection, options)
    context = Context(options, connection, chosen, values)
    result = reports.run(devices.NAME, connection, replace(options, newest=True))
    ended = [family for family in result.families if _ended(family)]
    if not ended:
        raise UsageError(select_runs.nothing(context), "mpsq status shows the queue")
    shown = ended[: MOST_COMPARISONS if options.chosen else 1]
    notes = []
    if left := len(ended) - len(shown):
        which = "mpsq report g4 --plot or --where select runs" if not options.chosen else "select fewer runs"
        notes.append(f"{units.counted(left, 'older comparison')} not drawn: {which}")
    return Plot([_comparison(family, context) for family in shown], notes)


def _ended(family: Family) -> bool:
    return any(arm.ended for arm in family.arms)


def _comparison(family: Family, context: Context) -> Comparison:
    arms = [arm for arm in family.arms if arm.ended]
    ended = [row for arm in arms for row in arm.ended]
    first, last = context.options.iters or (0, 2**62)
    points = context.by_run(
        "SELECT run_id, i, dur_s, loss, phase FROM v_iteration WHERE run_id IN ({runs}) AND i BETWEEN ? AND ?"
        " ORDER BY run_id, offset",
        ended,
        [first, last],
    )
    losses = context.by_run(
        "SELECT run_id, i, value FROM v_eval WHERE run_id IN ({runs}) AND split = 'val' AND metric = 'loss'"
        " AND value IS NOT NULL AND i BETWEEN ? AND ? ORDER BY run_id, offset",
        ended,
        [first, last],
    )
    rows = [_row(family, arm, points, losses) for arm in arms]
    base = family.baseline.label if family.baseline is not None else ""
    return Comparison(arm_tables.caption(family), rows, not family.wall, base, family.per_work)


def _row(family: Family, arm: Arm, points: Mapping[int, list[Any]], losses: Mapping[int, list[Any]]) -> PlotRow:
    used = {row.run_id for row in arm.used}
    runs = [
        PlotRun(
            row.run,
            row.run_id in used,
            row.median_s,
            [PlotPoint(p["i"], p["dur_s"], p["loss"], p["phase"] == "measure") for p in points.get(row.run_id, [])],
            [(one["i"], one["value"]) for one in losses.get(row.run_id, [])],
        )
        for row in arm.ended
    ]
    pair = family.pair(arm)
    return PlotRow(
        arm.label, runs, arm.median_s if arm.used else None, arm is family.baseline, pair.verdict if pair else None
    )


def without_numbers(plot: Plot) -> list[str]:
    """Name the runs that ended without a number to draw."""
    bare = [run.name for one in plot.comparisons for run in one.runs if run.value_s is None and not run.points]
    return [f"ended without numbers, and not drawn: {', '.join(bare)}"] if bare else []


def summary(plot: Plot) -> dict[str, Any]:
    """Return what is drawn as mpsq.plot/1 has it: the rows and runs of each comparison, iterations counted."""
    return {"comparisons": [_summary(one) for one in plot.comparisons]}


def _summary(comparison: Comparison) -> dict[str, Any]:
    return {
        "title": comparison.title,
        "per_iteration": comparison.per_iteration,
        "rows": [
            {
                "label": row.label,
                "is_baseline": row.is_baseline,
                "mean_s": row.mean_s,
                "speedup": row.verdict.speedup if row.verdict else None,
                "speedup_low": row.verdict.low if row.verdict else None,
                "speedup_high": row.verdict.high if row.verdict else None,
                "runs": [
                    {"run": run.name, "used": run.used, "value_s": run.value_s, "iterations": len(run.points)}
                    for run in row.runs
                ],
            }
            for row in comparison.rows
        ],
    }
