"""The answer to a question: its runs as rows that are compared, and the words on them. Reports and the worker share it.

Only the default report's way of comparing is here; other reports group the same prepared runs in their own ways.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from queue_runner import units
from queue_runner.analysis.comparison import Family, compare
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import mean_interval
from queue_runner.model import Selector
from queue_runner.monitor.answers import prepare, select_runs, sweeps
from queue_runner.monitor.answers.run_query import Context, Options
from queue_runner.spec import DECIDED
from queue_runner.store import read

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


def open_sentences(connection: sqlite3.Connection) -> list[str]:
    """Return how far each submission with --until is: "g4: open after 5 rounds, about 3 more"."""
    sql = "SELECT id, same_within FROM groups WHERE until IS NOT NULL AND closed_at IS NULL ORDER BY id"
    sentences = []
    for group_id, same_within in read.tuples(connection, sql).fetchall():
        families = of_group(connection, group_id, same_within)
        rounds = max((pair.verdict.n for family in families for pair in family.pairs), default=0)
        more = rounds_left(families)
        about = f", about {more} more" if rounds and more else ""
        sentences.append(f"g{group_id}: open after {units.counted(rounds, 'round')}{about}")
    return sentences


def end(families: Sequence[Family], goal: str) -> str:
    """Return why more rounds would add nothing to what --until asks for; "" if they may.

    Each row needs its word, or with a width such as "1%" an interval that narrow: of the ratio to its baseline, or of
    its own time where nothing is compared.
    """
    pairs = [pair for family in families for pair in family.pairs]
    if goal == DECIDED:
        if not pairs:
            return "there are no two rows with times to compare"
        return DECIDED if all(pair.verdict.decided for pair in pairs) else ""
    intervals = [
        *((pair.verdict.low, pair.verdict.high) for pair in pairs),
        *(mean_interval(arm.times) or (None, None) for family in families if not family.pairs for arm in family.arms),
    ]
    widths = [None if low is None or high is None else 2 * (high - low) / (high + low) for low, high in intervals]
    reached = all(width is not None and width <= units.parse_percent(goal, "--until") for width in widths)
    return f"intervals of {goal} or less" if reached else ""


def rounds_left(families: Sequence[Family]) -> int | None:
    """Return about how many more rounds decide every row; 0 if each has its word, None if nobody can tell."""
    verdicts = [pair.verdict for family in families for pair in family.pairs if not pair.verdict.decided]
    if any(verdict.more is None for verdict in verdicts):
        return None
    return max((verdict.more or 0 for verdict in verdicts), default=0)
