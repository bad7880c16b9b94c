"""The same question over weeks: when each row became faster or slower for good, and what changed then.

A row is one specification on one machine. A point of its history is a submission: its valid runs of one state of the
software.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import fmean
from typing import Any

from msgspec import Struct, to_builtins

from queue_runner import units
from queue_runner.analysis import run_metrics, stats
from queue_runner.analysis.change_points import FIRST_LOOK, Step, find_steps
from queue_runner.analysis.comparison import WALL
from queue_runner.analysis.finding import Finding
from queue_runner.analysis.findings import other_clock
from queue_runner.analysis.grouping import not_replaced
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.monitor.answers import prepare, select_runs, sweeps
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common.columns import columns, through
from queue_runner.reports._common.document import HistoryPoint, Result, RowHistory, Section
from queue_runner.spec import OF_TIME
from queue_runner.tables import Column

NAME = "trend"
HELP = "the same question over weeks: when each row became slower or faster, by how much, and what changed then"
READS = ("by",)
SQL = (
    f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND state = 'DONE'"
    " AND COALESCE(json_extract(spec_json, '$.find_max'), '') = '' ORDER BY run_id"
)
_NOT_SETTINGS = frozenset({"arguments", "env", "cores", "threads", "warmup", "prepare", "processes"})
"""Factors, beside the settings, that tell two rows apart."""
_MOST_CHANGES = 4
"""Changes that a sentence names; the rest is counted."""


class TrendStep(Struct, frozen=True, kw_only=True):
    """A step of a row. `since` is the first submission after it, which is probably between `after` and `before`.
    `change`, `low` and `high` are shares of a time, or differences of a metric."""

    since: str
    since_at: float
    after: str
    before: str
    change: float
    low: float
    high: float
    changes: Sequence[str]


class TrendRow(Struct, frozen=True, kw_only=True):
    """A row with its points, oldest first."""

    label: str
    newest: ReportedRun
    by: str
    time_of: str | None
    points: Sequence[HistoryPoint]
    steps: Sequence[TrendStep]
    value: float

    @property
    def last_step(self) -> TrendStep | None:
        return self.steps[-1] if self.steps else None

    @property
    def is_worse(self) -> bool:
        """Whether the newest step made it slower, or the metric higher."""
        return bool(self.steps) and self.steps[-1].change > 0

    def show(self, value: float) -> str:
        """Format a value of the row."""
        return units.measured(value) if self.by else units.short_duration(value)

    def size(self, step: TrendStep) -> str:
        """Return the change in words: "5.1 % slower (3.9 to 6.3 %)"."""
        ends = sorted(math.copysign(1.0, step.change) * end for end in (step.low, step.high))
        if self.by:
            how = "higher" if step.change > 0 else "lower"
            return f"{units.measured(abs(step.change))} {how} ({' to '.join(map(units.measured, ends))})"
        how = "slower" if step.change > 0 else "faster"
        return f"{units.percent(abs(step.change), 2)} {how} ({' to '.join(units.percent(end, 2) for end in ends)})"


_LABEL = Column("label", "", flexible=True)
_POINTS = Column("n_points", "points", units.count, True, value=lambda row: len(row.points))
COLUMNS = columns(
    *through("newest", "workload config framework device device_name compile dtype"),
    "label",
    Column("settings", "settings", str, value=lambda row: dict(row.newest.settings)),
    Column("by", "metric", value=lambda row: row.by or None),
    "time_of",
    _POINTS,
    Column("first_at", "first", value=lambda row: row.points[0].at),
    Column("last_at", "last", value=lambda row: row.points[-1].at),
    Column("value", "now", units.number, True),
    Column("is_worse", "worse"),
    Column("steps", "steps", str, value=lambda row: to_builtins(row.steps)),
    Column("points", "history", str, value=lambda row: to_builtins(row.points)),
)


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Build a table with a row for each question. Raises: UsageError when no run has the metric of --by."""
    by = context.options.aim.by or OF_TIME
    prepared, untimed = sweeps.with_phase_times(prepare.prepare(stored, context), context, _row_of)
    runs = [
        run.changed(median_s=None, time_of=WALL) if run.run_id in untimed else run
        for run in prepared
        if run.kind != "import" and run.outcome == Outcome.SUCCEEDED and (run.valid or context.options.include_invalid)
    ]
    if by and not any(run_metrics.value(run, by) is not None for run in runs):
        raise UsageError(f'no run has a metric "{by}"', "mpsq submit --metric reads one from the output")
    by_row = by_key(runs, _row_of)
    states = _states(runs, context)
    histories = {key: points for key, rows in by_row.items() if (points := _points(rows, by, states))}
    long = {key: points for key, points in histories.items() if len(points) >= FIRST_LOOK}
    n_short = len(histories) - len(long)
    if not long:
        text = f"no row has {FIRST_LOOK} points yet: each submission of the same rows adds one (mpsq schedule add)"
        return Result(COLUMNS, [], lines=[text if histories else select_runs.nothing(context)], text="")
    newest = [by_row[key][-1] for key in long]
    texts = select_runs.labels(newest, _telling)
    labels = {_row_of(run): f"{texts[run.run_id]} {run.where}".rstrip() for run in newest}
    rows = [_row(by_row[key], points, labels[key], by, len(long)) for key, points in long.items()]
    shown = [_LABEL, _POINTS, *_table(by)]
    notes = [f"{units.counted(n_short, 'row')} with fewer than {FIRST_LOOK} points not shown"] if n_short else []
    return Result(
        COLUMNS,
        rows,
        [Section("", shown, rows)],
        [*_sentences(rows), *other_clock((labels[key], by_row[key]) for key in long if not by)],
        notes,
        histories=[_history(row) for row in rows],
        exit_code=int(any(row.is_worse for row in rows)),
    )


def _row_of(run: ReportedRun) -> tuple[Any, ...]:
    return run.machine, run.spec_hash, run.subject


def _table(by: str) -> list[Column]:
    return [
        Column("value", f"{by or 'time'} now", right=True, value=lambda row: row.show(row.value)),
        Column(
            "change",
            "newest step",
            flexible=True,
            value=lambda row: row.size(row.last_step) if row.last_step else None,
            style=lambda row: "" if not row.steps else "bad" if row.is_worse else "good",
        ),
        Column("since", "since", value=lambda row: _day(row.last_step.since_at) if row.last_step else None),
    ]


def _states(runs: Iterable[ReportedRun], context: Context) -> dict[int, dict[str, str]]:
    """Return, by run, what its software was: the versions by name, and the commit of the code."""
    runs = list(runs)
    texts = dict(context.tuples("SELECT hash, data_json FROM fingerprints WHERE kind = 'software'"))
    software = {digest: _versions(json.loads(text)) for digest, text in texts.items()}
    sql = (
        "SELECT run_id, git_commit, git_dirty FROM v_run JOIN snapshots ON hash = snapshot_hash"
        " WHERE git_commit IS NOT NULL AND run_id IN ({runs})"
    )
    commits = {run_id: rows[0] for run_id, rows in context.tuples_by_run(sql, runs).items()}
    states = {}
    for run in runs:
        state = dict(software.get(run.software_hash or "", {}))
        if run.framework and run.framework_version:
            state[run.framework] = run.framework_version
        if run.run_id in commits:
            commit, dirty = commits[run.run_id]
            state["commit"] = f"{commit[:9]}{' and changes' if dirty else ''}"
        states[run.run_id] = state
    return states


def _versions(data: Mapping[str, Any]) -> dict[str, str]:
    """Return what a software fingerprint names; the system as one version: "macOS": "26.1"."""
    flat = {**data.get("packages", {}), **prepare.flatten(data)}
    system, version = flat.pop("os", None), flat.pop("os_version", None)
    if system and version:
        flat[str(system)] = version
    return {name: str(value) for name, value in flat.items() if value is not None}


def _points(runs: Sequence[ReportedRun], by: str, states: Mapping[int, Mapping[str, str]]) -> list[HistoryPoint]:
    """Return the history of a row: the geometric mean of the times of each submission, or the mean of the metric."""
    wall = any(run.median_s is None for run in runs)
    points: list[tuple[Any, ...]] = []
    for (group_id, _), attempts in by_key(runs, lambda run: (run.group_id, run.software_hash)).items():
        rows = not_replaced(attempts)
        values = [value for run in rows if (value := _value(run, by, wall)) is not None]
        times = [at for run in rows if (at := run.started_at or run.ended_at) is not None]
        if values and times:
            value = fmean(values) if by else stats.geometric_mean(values)
            where = f"g{group_id}" if group_id is not None else rows[0].run
            points.append((min(times), value, where, len(values), states[rows[-1].run_id]))
    points.sort(key=itemgetter(0))
    pairs = pairwise([*points[:1], *points])
    return [HistoryPoint(*(*point, _changes(before[-1], state))) for before, (*point, state) in pairs]


def _value(run: ReportedRun, by: str, wall: bool) -> float | None:
    if by:
        return run_metrics.value(run, by)
    time_s = run.real_s if wall else run.median_s
    return time_s if time_s is not None and 0 < time_s < math.inf else None


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return what differs between two points, in words: "torch 2.12.0 -> 2.13.0"."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if "commit" in names and "code" in names:
        names.remove("code")  # the commit says it better
    return [f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}" for name in names]


def _telling(run: ReportedRun) -> dict[str, Any]:
    others = {name: value for name, value in run.factors.items() if name in _NOT_SETTINGS}
    return {**run.settings, **others, "gpus": run.gpus, "seed": run.seed}


def _row(runs: Sequence[ReportedRun], points: Sequence[HistoryPoint], label: str, by: str, n_rows: int) -> TrendRow:
    values = [point.value if by else math.log(point.value) for point in points]
    steps = find_steps(values, n_rows)
    now = fmean(values[steps[-1].at if steps else 0 :])
    return TrendRow(
        label=label,
        newest=runs[-1],
        by=by,
        time_of=None if by else WALL if any(run.median_s is None for run in runs) else runs[-1].time_of or "iteration",
        points=points,
        steps=[_step(step, points, by) for step in steps],
        value=now if by else math.exp(now),
    )


def _step(step: Step, points: Sequence[HistoryPoint], by: str) -> TrendStep:
    change, low, high = (x if by else math.expm1(x) for x in (step.change, step.low, step.high))
    return TrendStep(
        since=points[step.at].name,
        since_at=points[step.at].at,
        after=points[step.first - 1].name,
        before=points[step.last].name,
        change=change,
        low=low,
        high=high,
        changes=[text for point in points[step.first : step.last + 1] for text in point.changes],
    )


def _sentences(rows: Sequence[TrendRow]) -> Iterable[str]:
    """Return a sentence for each step, the newest of each row first."""
    for row in rows:
        for step in reversed(row.steps):
            text = f"{row.label}: {row.size(step)} since {step.since}, {_day(step.since_at)}; {_cause(step)}"
            yield text if step is row.last_step else Finding(text)
    n = sum(not row.steps for row in rows)
    if n:
        yield f"no step in {units.counted(n, 'row')}"


def _cause(step: TrendStep) -> str:
    where = f"between {step.after} and {step.before}"
    if not step.changes:
        return f"no stored change {where}"
    return f"{where} changed: {units.listed(step.changes, _MOST_CHANGES)}"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))


def _history(row: TrendRow) -> RowHistory:
    starts = [step.since for step in row.steps]
    about = f"{row.show(row.value)}" + (f"; {row.size(row.steps[-1])}" if row.steps else "; no step")
    return RowHistory(row.label, about, row.points, starts, row.show)
