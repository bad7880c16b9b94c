"""Real time by phase: setup + compile + warmup + measure + eval + checkpoint + other + slept = real.

A log of a foreign trainer has no phases. Its table has the first iteration, iterations with an evaluation, the other
ones that it shows, and the rest, of which it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from queue_runner import units
from queue_runner.analysis import comparison
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.phases import other_remark
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers import prepare, select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Result, Section
from queue_runner.tables import Column, elide

NAME = "breakdown"
HELP = "real time by phase; the phases add up to it"
READS = ("group_by",)
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND state = 'DONE' ORDER BY job_id, number"
PARTS = ("setup", "compile", "warmup", "measure", "eval", "checkpoint", "other", "slept")
COLUMNS = columns(
    "label runs",
    Column("part", "part"),
    Column("dur_s", "s", units.seconds, True),
    Column("share", "share", units.percent, True),
)
WIDTH = 80
"""Characters per line; arms are placed side by side as far as they fit."""
WIDEST = 50
"""Maximum width of a label in characters; a longer one is elided in the middle."""


FIRST, WITH_EVAL, OTHERS, REST = "1st iter", "with eval", "other iters", "not in log"
_EXPLAINED = (
    f"{FIRST}: the first iteration in the log, with compilation and any evaluation; {WITH_EVAL}: later iterations with "
    f"an evaluation; {OTHERS}: all others in the log; {REST}: the rest of the real time"
)

_LOGGED = """
SELECT run_id, TOTAL(dur_s) FILTER (WHERE phase NOT IN ('eval_iter', 'measure')),
    TOTAL(dur_s) FILTER (WHERE phase = 'eval_iter'), TOTAL(dur_s) FILTER (WHERE phase = 'measure'),
    COUNT(*), MAX(i) - MIN(i) + 1
FROM v_iteration WHERE run_id IN ({runs}) GROUP BY run_id
"""


class LoggedRun(NamedTuple):
    """The seconds of the iterations that a log shows, by part; their number, and how many passed."""

    first_s: float
    with_eval_s: float
    others_s: float
    n: int
    n_passed: int


Logs = Mapping[int, LoggedRun]


class PartTime(NamedTuple):
    """The mean seconds of one part of the real time of an arm, and their share of it."""

    label: str
    runs: Sequence[str]
    part: str
    dur_s: float | None
    share: float | None


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Build tables of the mean over the runs of each arm, because means add up and medians do not."""
    runs = prepare.prepare(stored, context)
    families = comparison.families(runs, prepare.question(runs, context)) if runs else []
    raw: list[PartTime] = []
    sections: list[Section] = []
    notes: list[str] = []
    without = [row for arm in _arms(families) for row in arm.shown if row.other_s is None and row.n_iters]
    logs = {run_id: LoggedRun(*values) for run_id, (values,) in context.tuples_by_run(_LOGGED, without).items()}
    for family in families:
        by_log = {arm: _logged(arm, logs) for arm in family.arms}
        timed = [_parts(arm, runs, _means(runs)) for arm in family.arms if (runs := _timed(arm)) and not by_log[arm]]
        logged = [_parts(arm, runs, _logged_means(runs, logs)) for arm, runs in by_log.items() if runs]
        raw += [row for table in (*timed, *logged) for row in table]
        title = f"{arm_tables.caption(family)}: seconds and % of real"
        for tables, what in ((timed, title), (logged, f"{title}, as far as the logs tell")):
            sections += [_section("" if k else what, group) for k, group in enumerate(_side_by_side(tables))]
        for arm, runs in by_log.items():
            notes += [note for row in runs[:5] for note in _left_out(row, logs[row.run_id])] if runs else _notes(arm)
    if any(row.part == FIRST for row in raw):
        notes.append(_EXPLAINED)
    if any(len(_timed(arm)) > 1 for arm in _arms(families)):
        notes.insert(0, "columns of several runs: the mean, because medians do not add up")
    return Result(COLUMNS, raw, sections, [] if raw else [select_runs.nothing(context, "with a real time")], notes)


def _arms(families: Iterable[comparison.Family]) -> Iterator[Arm]:
    return (arm for family in families for arm in family.arms)


def _timed(arm: Arm) -> list[ReportedRun]:
    """Return the runs with a known real time; only those with known phases if there are any."""
    timed = [row for row in arm.shown if row.real_s is not None]
    return [row for row in timed if row.other_s is not None] or timed


def _means(runs: Sequence[ReportedRun]) -> dict[str, float | None]:
    """Return mean seconds by part, `real` last; None where no run reported the part."""
    known = {part: [getattr(row, f"{part}_s") for row in runs] for part in (*PARTS, "real")}
    if any(row.other_s is not None for row in runs):
        known["slept"] = [value or 0.0 for value in known["slept"]]
    return {part: None if None in values else fmean(values) for part, values in known.items()}


def _parts(arm: Arm, runs: Sequence[ReportedRun], means: Mapping[str, float | None]) -> list[PartTime]:
    """Return the rows of an arm from seconds by part, `real` among them."""
    names, real_s = [row.run for row in runs], means["real"]
    return [
        PartTime(arm.label, names, part, dur_s, dur_s / real_s if dur_s is not None and real_s else None)
        for part, dur_s in means.items()
    ]


def _side_by_side(tables: Iterable[list[PartTime]]) -> Iterator[list[list[PartTime]]]:
    """Yield groups that fit WIDTH: names of phases take 12 characters, each arm its label (at least 8) plus 13."""
    group: list[list[PartTime]] = []
    free = WIDTH - 12
    for table in tables:
        wide = max(min(len(table[0].label), WIDEST), 8) + 13
        if group and wide > free:
            yield group
            group, free = [], WIDTH - 12
        group.append(table)
        free -= wide
    if group:
        yield group


def _section(title: str, group: Sequence[list[PartTime]]) -> Section:
    """Build a table with the seconds and the per cent of each arm side by side."""
    shown = [Column("part", "")]
    rows: list[dict[str, Any]] = [{"part": part.part} for part in group[0]]
    for k, table in enumerate(group):
        label = elide(table[0].label, WIDEST)
        shown += [Column(f"s{k}", label, units.seconds, True), Column(f"percent{k}", "%", _to_a_tenth, True)]
        for row, part in zip(rows, table, strict=True):
            row |= {f"s{k}": part.dur_s, f"percent{k}": None if part.share is None else part.share * 100}
    return Section(title, shown, rows)


_to_a_tenth = partial(units.seconds, decimals=1)


def _notes(arm: Arm) -> list[str]:
    timed = _timed(arm)
    if not timed:
        return [f"{arm.label}: real time unknown"] if arm.shown else []
    remarks = [f"{row.run}: {remark}" for row in timed if (remark := other_remark(row.other_s))]
    without = [row for row in arm.shown if row.real_s is not None and row.other_s is None]
    if without:
        runs = ", ".join(row.run for row in without[:5])
        remarks.append(f"{runs}: no phases reported, only the real time is known")
    return remarks[:5]


def _logged(arm: Arm, logs: Logs) -> list[ReportedRun]:
    """Return the runs of an arm of which logs tell; none if it has runs that reported phases. If the real time of some
    is known, only these: of the others the rest is unknown."""
    if any(row.other_s is not None for row in arm.shown):
        return []
    runs = [row for row in arm.shown if row.run_id in logs]
    return [row for row in runs if row.real_s is not None] or runs


def _logged_means(runs: Sequence[ReportedRun], logs: Logs) -> dict[str, float | None]:
    """Return mean seconds by part, `real` last, as far as the logs tell."""
    first_s, with_eval_s, others_s, *_ = (
        fmean(values) for values in zip(*(logs[row.run_id] for row in runs), strict=True)
    )
    sums = {FIRST: first_s, WITH_EVAL: with_eval_s, OTHERS: others_s}
    times = [row.real_s for row in runs if row.real_s is not None]
    real_s = fmean(times) if len(times) == len(runs) else None
    return {**sums, REST: None if real_s is None else real_s - sum(sums.values()), "real": real_s}


def _left_out(row: ReportedRun, log: LoggedRun) -> list[str]:
    """Say how many iterations the log does not show, and what they would take at the median of those that it does."""
    notes = [f"{row.run}: real time unknown"] if row.real_s is None else []
    if log.n_passed <= log.n:
        return notes
    text = f"{row.run}: its log shows {units.count(log.n)} of {units.count(log.n_passed)} iterations"
    if row.median_s is not None:
        rest = units.number((log.n_passed - log.n) * row.median_s)
        text += f"; at its median of {units.ms(row.median_s)} ms the others would take {rest} s"
    return [*notes, text]
