"""The answer to a question: its runs as rows that are compared, and the words on them. Reports and the worker share it.

Only the default report's way of comparing is here; other reports group the same prepared runs in their own ways.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from queue_runner.analysis.comparison import Family, compare
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.model import Selector
from queue_runner.monitor.answers import prepare, select_runs, sweeps
from queue_runner.monitor.answers.run_query import Context, Options

SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} ORDER BY job_id, number"


def compared(prepared: Sequence[ReportedRun], context: Context) -> tuple[list[ReportedRun], list[Family]]:
    """Return the runs with what their submission swept, and the families that they form, each row judged.

    Raises: UsageError when --vs or --group-by is invalid.
    """
    rows = sweeps.add(prepared, context, "name" in context.options.vs)
    return rows, compare(rows, replace(prepare.question(rows, context), sweeps=True))


def of_group(connection: sqlite3.Connection, group_id: int, same_within: float | None = None) -> list[Family]:
    """Return the families of a submission as the default report judges them."""
    options = Options(selectors=[Selector(f"g{group_id}", group=group_id)], same_within=same_within)
    context = Context(options, connection, *select_runs.condition(connection, options))
    return compared(prepare.prepare(context.runs(SQL), context), context)[1]
