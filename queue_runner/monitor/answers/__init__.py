"""The answer to a question: its runs as rows that are compared, and the words on them. Reports and the worker share it.

Only the default report's way of comparing is here; other reports group the same prepared runs in their own ways.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import extensions, units
from queue_runner.analysis import comparison, run_metrics
from queue_runner.analysis.comparison import Family, Pair, Question
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import mean_interval
from queue_runner.analysis.stats import by_key
from queue_runner.model import PREFLIGHT, Selector, State
from queue_runner.monitor.answers import prepare, select_runs, sweeps
from queue_runner.monitor.answers.run_query import Context, Options
from queue_runner.spec import DECIDED
from queue_runner.store import read

MOST_HIDDEN = 1000
"""Jobs of the same submissions that are read although they are not chosen: they belong to the question."""
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} ORDER BY job_id, number"


Ask = Callable[[Iterable[ReportedRun], Context], tuple[list[ReportedRun], Question]]
"""Returns prepared runs with what their submission swept, and how they are compared."""


def asked(prepared: Iterable[ReportedRun], context: Context) -> tuple[list[ReportedRun], Question]:
    """Return how the default report compares: what a submission swept distinguishes rows."""
    rows = sweeps.add(prepared, context, "name" in context.options.vs)
    return rows, replace(prepare.question(rows, context), sweeps=True)


def compared(
    prepared: Sequence[ReportedRun], context: Context, ask: Ask = asked
) -> tuple[list[ReportedRun], list[Family]]:
    """Return the runs with what their submission swept, and the families that they form, each row judged.

    Raises: UsageError when --vs or --group-by is invalid.
    """
    rows, question = ask(prepared, context)
    return rows, comparison.compare(rows, question, whole(rows, context, ask))


def whole(rows: Sequence[ReportedRun], context: Context, ask: Ask = asked) -> list[Family]:
    """Return the families of all runs of the submissions of these rows, not compared, if the user's choice hides some
    of their jobs; else none. More than MOST_HIDDEN jobs are not read: a family without rows stands for them."""
    if not (context.options.chosen or context.options.sides):
        return []
    jobs = {job for (job,) in context.by_groups("SELECT id FROM jobs WHERE group_id IN ({groups})", rows)}
    if not (hidden := jobs - {row.job_id for row in rows}):
        return []
    if len(hidden) > MOST_HIDDEN:
        return [Family({}, [])]
    groups = ", ".join({str(row.group_id) for row in rows if row.group_id is not None})
    chosen = f"number <> {PREFLIGHT} AND group_id IN ({groups})"
    options = replace(context.options, where={}, since=None, selectors=())  # only a pair that is shown needs its levels
    everything = Context(options, context.connection, chosen, ())
    return comparison.families(*ask(prepare.windowed(everything.runs(SQL), everything), everything))


def of_group(connection: sqlite3.Connection, group_id: int) -> list[Family]:
    """Return the families of a submission as the default report judges them."""
    options = Options(selectors=[Selector(f"g{group_id}", group=group_id)])
    context = Context(options, connection, *select_runs.condition(connection, options))
    return compared(prepare.prepare(context.runs(SQL), context), context)[1]


class _Part(Struct, frozen=True):
    """A part of what --until asks for: the word on a pair, or the width of an interval. `why` says what stands against
    it, where no further round removes that."""

    reached: bool
    why: str = ""


def reached(families: Sequence[Family], goal: str) -> str:
    """Return what --until asked for, once it is reached; else ""."""
    if (added := extensions.goal(goal)) is not None:
        return added(families)
    parts = _parts(families, goal)
    if not parts or _without_run(families) or not all(part.reached for part in parts):
        return ""
    return DECIDED if goal == DECIDED else f"each interval is at most {goal} wide"


def obstacle(families: Sequence[Family], goal: str) -> str:
    """Return why no further round reaches what --until asks for, and what to do; "" while one may."""
    if extensions.goal(goal) is not None:
        return ""
    parts = _parts(families, goal)
    if any(not (part.reached or part.why) for part in parts):
        return ""
    last = ((arm.label, arm.ended[-1]) for arm in _without_run(families))
    missing = (f"no run of job {run.job_id} ({label}) counts: mpsq show {run.run} says why" for label, run in last)
    is_one = sum(len(family.arms) for family in families) == 1
    why = "all jobs are equal" if is_one else "mpsq report --explain says how the rows differ"
    alone = () if parts else (f"no two rows can be compared: {why}",)
    return next(iter([*missing, *(part.why for part in parts if not part.reached), *alone]), "")


def _parts(families: Sequence[Family], goal: str) -> list[_Part]:
    """Each row needs its words, on the time and on each metric of --metric; or with a width such as "1%" an interval
    that narrow: of the ratio to its baseline, or of its own time where nothing is compared."""
    parts = []
    for family, pair in ((each, pair) for each in families for pair in each.pairs):
        names = f"{pair.arm.label} vs {pair.baseline.label}"
        for answer in family.answers(pair).values() if goal == DECIDED else [pair.verdict]:
            reached = answer.decided if goal == DECIDED else _is_narrow((answer.low, answer.high), goal)
            parts.append(_Part(reached, f"{names}: {answer.why}" if answer.is_final else ""))
        if goal == DECIDED:
            absent = family.named & family.metrics.keys() - pair.metrics.keys()
            parts += [
                _Part(False, f"no verdict on {name}: {_why_absent(family, pair, name)}") for name in sorted(absent)
            ]
    if goal != DECIDED:
        rows = [arm for family in families if not family.pairs for arm in family.arms if arm.times]
        parts += [_Part(_is_narrow(mean_interval(arm.times) or (None, None), goal)) for arm in rows]
    return parts


def _why_absent(family: Family, pair: Pair, name: str) -> str:
    """Return why a pair is not compared by a metric that others are."""
    without = next((arm for arm in (pair.arm, pair.baseline) if run_metrics.mean(arm, name) is None), pair.arm)
    return family.metrics[name] or f"no run of {without.label} has it: mpsq show {without.runs[-1].run}"


def _is_narrow(interval: tuple[float | None, float | None], goal: str) -> bool:
    low, high = interval
    width = math.inf if low is None or high is None else 2 * (high - low) / (high + low)
    return width <= units.parse_percent(goal, "--until")


def _without_run(families: Sequence[Family]) -> list[Arm]:
    """Return the rows of which runs have ended, and none counts."""
    return [arm for family in families for arm in family.arms if arm.ended and not arm.timed]


def closed_sentences(connection: sqlite3.Connection, families: Sequence[Family], offers_rounds: bool) -> list[str]:
    """Return why no further round follows in the submissions in which a row has no word, unless some wait or have been
    added. The command that adds rounds is not named where that is refused, or where another sentence `offers_rounds`.
    """
    still_open = [family for family in families if not reached([family], DECIDED)]
    runs = [row for family in still_open for arm in family.arms for row in arm.runs]
    groups = {row.group_id for row in runs} - {row.group_id for row in runs if row.state != State.DONE}
    closed = read.tuples(connection, _CLOSED.format(groups=", ".join(map(str, groups))), [DECIDED])
    without = {row.group_id for row in runs if offers_rounds or row.instead_of_rounds}
    reasons = {group: why.partition(": mpsq rerun")[0] if group in without else why for group, why in closed}
    return [f"no further round of g{group}: {why}" for group, why in reasons.items()]


_CLOSED = """
SELECT id, closed_why FROM groups g WHERE id IN ({groups}) AND closed_why NOT IN (?, 'cancelled') AND NOT EXISTS (
    SELECT 1 FROM jobs j JOIN runs r ON r.job_id = j.id WHERE j.group_id = g.id AND r.started_at > g.closed_at
) ORDER BY id
"""
"""Why the rounds of these submissions ended. A run that started later, of an added round or a retry, outdates it."""


def still_open(families: Iterable[Family]) -> list[str]:
    """Return the quantities on which a verdict is missing, where those on others are all given."""
    answers = (item for family in families for pair in family.pairs for item in family.answers(pair).items())
    by_name = by_key(((name or "the time", answer.decided) for name, answer in answers), itemgetter(0))
    names = [name for name, each in by_name.items() if not all(is_decided for _, is_decided in each)]
    return names if len(names) < len(by_name) else []


def rounds_judged(families: Sequence[Family]) -> int:
    """Return the number of rounds that count."""
    return max((pair.verdict.n for family in families for pair in family.pairs), default=0)


def rounds_left(families: Sequence[Family]) -> int | None:
    """Return about how many more rounds decide every row; 0 if each has its word, None if nobody can tell."""
    answers = (x for family in families for pair in family.pairs for x in family.answers(pair).values())
    undecided = [answer for answer in answers if not (answer.decided or answer.is_final)]
    if any(answer.more is None for answer in undecided):
        return None
    return max((answer.more or 0 for answer in undecided), default=0)
