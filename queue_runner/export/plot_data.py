"""The data of a plot: for each comparison the rows of the report, their runs, and every iteration of these."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from queue_runner import reports, units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import Arm
from queue_runner.errors import UsageError
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Context, Options
from queue_runner.reports import devices
from queue_runner.store.read import tuples

T = TypeVar("T")

MOST_COMPARISONS = 4
"""Comparisons in one picture; further ones are counted."""
LOG_FROM = 8
"""The least ratio of the longest to the shortest time at which the axis of times is logarithmic."""


class PlotPoint(Struct, frozen=True):
    """An iteration. `measured`: in the phase `measure`, which alone counts for the times of reports."""

    i: int
    dur_s: float
    loss: float | None
    measured: bool


class ValidationLoss(NamedTuple):
    i: int
    value: float


class PlotRun(Struct, frozen=True):
    """A run that ended: `value_s` is its median time per iteration, or the real time of a run without iterations."""

    name: str
    used: bool
    value_s: float | None
    points: Sequence[PlotPoint]
    evals: Sequence[ValidationLoss]


class Comparison(Struct, frozen=True):
    """A family of the report, and the runs that ended of each of its rows."""

    family: Family
    rows: Sequence[tuple[Arm, Sequence[PlotRun]]]

    @property
    def runs(self) -> Iterator[PlotRun]:
        return (run for _, runs in self.rows for run in runs)

    @property
    def points(self) -> Iterator[PlotPoint]:
        return (point for run in self.runs for point in run.points)


class Plot(Struct, frozen=True):
    """`notes` are sentences about comparisons and runs that are not drawn."""

    comparisons: Sequence[Comparison]
    notes: Sequence[str] = field(default_factory=list)

    @property
    def size(self) -> str:
        """The number of drawn rows, runs and points: "2 rows, 8 runs, 1,600 iterations"."""
        rows = sum(len(comparison.rows) for comparison in self.comparisons)
        runs = sum(1 for comparison in self.comparisons for _ in comparison.runs)
        points = sum(1 for comparison in self.comparisons for _ in comparison.points)
        return ", ".join([units.counted(rows, "row"), units.counted(runs, "run"), units.counted(points, "iteration")])


def read(connection: sqlite3.Connection, options: Options) -> Plot:
    """Read the newest comparison, or those of the chosen runs. Raises: UsageError when there is nothing to draw."""
    connection.execute("BEGIN")
    chosen, values = select_runs.condition(connection, options)
    context = Context(options, connection, chosen, values)
    result = reports.run(devices.NAME, connection, replace(options, newest=True))
    ended = [family for family in result.families if any(arm.ended for arm in family.arms)]
    if not ended:
        raise UsageError(select_runs.nothing(context), "mpsq status shows the queue")
    shown = ended[: MOST_COMPARISONS if options.chosen else 1]
    notes = []
    if left := len(ended) - len(shown):
        which = "mpsq report g4 --plot or --where select runs" if not options.chosen else "select fewer runs"
        notes.append(f"{units.counted(left, 'older comparison')} not drawn: {which}")
    comparisons = [_comparison(family, context) for family in shown]
    runs = [run for comparison in comparisons for run in comparison.runs]
    if bare := [run.name for run in runs if run.value_s is None and not run.points]:
        notes.append(f"ended without numbers, and not drawn: {', '.join(bare)}")
    return Plot(comparisons, notes)


def _comparison(family: Family, context: Context) -> Comparison:
    arms = [arm for arm in family.arms if arm.ended]
    ids = [row.run_id for arm in arms for row in arm.ended]
    points = _by_run(context, "v_iteration", "i, dur_s, loss, phase = 'measure'", ids, PlotPoint)
    is_loss = "split = 'val' AND metric = 'loss' AND value IS NOT NULL"
    losses = _by_run(context, f"(SELECT * FROM v_eval WHERE {is_loss})", "i, value", ids, ValidationLoss)
    rows = []
    for arm in arms:
        used = {row.run_id for row in arm.used}
        drawn = [(row.run_id, row) for row in arm.ended]
        runs = [PlotRun(row.run, k in used, row.median_s, points.get(k, []), losses.get(k, [])) for k, row in drawn]
        rows.append((arm, runs))
    return Comparison(family, rows)


def _by_run(
    context: Context, view: str, columns: str, ids: Sequence[int], kind: Callable[..., T]
) -> dict[int, list[T]]:
    """Return the rows of the requested iterations by run, in the order of each run's file."""
    where = f"run_id IN ({', '.join(map(str, ids))}) AND i BETWEEN ? AND ?"
    sql = f"SELECT run_id, {columns} FROM {view} WHERE {where} ORDER BY run_id, offset"
    rows: dict[int, list[T]] = {}
    for run_id, *values in tuples(context.connection, sql, context.options.iters or (0, 2**62)):
        rows.setdefault(run_id, []).append(kind(*values))
    return rows
