"""The stored records behind the runs of a report, read at once: taints, phases, samples."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import reports
from queue_runner.analysis import comparison
from queue_runner.analysis.comparison import Family, Question
from queue_runner.analysis.grouping import MAIN
from queue_runner.analysis.points import PhaseMark
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.machine_records import SensorSample, read_samples
from queue_runner.model import Taint
from queue_runner.monitor.answers import prepare, select_runs
from queue_runner.monitor.answers.run_query import Context, Options
from queue_runner.reports._common.arm_rows import newest_first
from queue_runner.reports._common.document import Result
from queue_runner.store.read import tuples

MOST_RUNS = 500
"""Runs of a report without comparisons whose records are read."""


class RunRecords(Struct, frozen=True):
    """The arms of a report and the stored records of their runs, by run_id."""

    context: Context
    families: Sequence[Family]
    taints: Mapping[int, Sequence[Taint]]
    marks: Mapping[int, Sequence[PhaseMark]]
    samples: Mapping[int, Sequence[SensorSample]]
    compared: bool = True
    """whether the report compares the arms"""

    @property
    def runs(self) -> list[ReportedRun]:
        """All runs of the arms, each once."""
        return [*{row.run_id: row for family in self.families for arm in family.arms for row in arm.runs}.values()]


def gather(name: str, result: Result, connection: sqlite3.Connection, options: Options) -> RunRecords:
    """Read the stored records of the runs of the report `name`. Raises: UsageError as the report itself."""
    condition, values = select_runs.condition(connection, options)
    context = Context(options, connection, condition, values)
    return _with_records(context, list(result.families) or _families(name, context), bool(result.families))


def of_run(connection: sqlite3.Connection, run_id: int) -> RunRecords:
    """Read the stored records of one run, whatever became of it."""
    context = Context(Options(include_invalid=True), connection, "run_id = ?", [run_id])
    stored = context.runs(f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}}")
    runs = [run.changed(compile=run.compile_mode or run.compile) for run in stored]
    return _with_records(context, comparison.families(runs, Question(MAIN, include_invalid=True)), False)


def _with_records(context: Context, families: Sequence[Family], compared: bool) -> RunRecords:
    runs = [row for family in families for arm in family.arms for row in arm.runs]
    if not runs:
        return RunRecords(context, [], {}, {}, {}, False)
    ids = ", ".join(str(run.run_id) for run in runs)

    def read(table: str, columns: str, order: str = "run_id") -> dict[int, list[Any]]:
        sql = f"SELECT run_id, {columns} FROM {table} WHERE run_id IN ({ids}) ORDER BY {order}"
        rows = by_key(tuples(context.connection, sql), lambda row: row[0])
        return {run_id: [values for _, *values in of_run] for run_id, of_run in rows.items()}

    taints, marks = read("taints", "kind, severity, detail"), read("phases", "t_s, name, edge", "offset")
    samples = read("conditions", "at, data_json")
    return RunRecords(
        context,
        families,
        {run_id: [Taint(*row) for row in rows] for run_id, rows in taints.items()},
        {run_id: [PhaseMark(*row) for row in rows] for run_id, rows in marks.items()},
        {run_id: read_samples(map(tuple, rows)) for run_id, rows in samples.items()},
        compared,
    )


def _families(name: str, context: Context) -> list[Family]:
    """Return the runs that a report selects as arms, the newest MOST_RUNS, for one that compares none itself."""
    ids = context.tuples(f"SELECT DISTINCT run_id FROM ({reports.query(reports.load(name), context)})")
    newest = ", ".join(str(run_id) for (run_id,) in sorted(ids)[-MOST_RUNS:])
    alone = replace(
        context, options=replace(context.options, vs={}, group_by=()), chosen=f"run_id IN ({newest})", values=[]
    )
    rows = alone.runs(f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} ORDER BY job_id, number")
    rows = prepare.prepare(rows, alone)
    return newest_first(comparison.families(rows, prepare.question(rows, alone))) if rows else []
