"""Lists of jobs and runs: the filter of `mpsq list`, and its table of what distinguishes each from the others."""

from __future__ import annotations

import json
import shlex
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

from msgspec import Struct

from queue_runner import tables, units
from queue_runner.analysis.stats import by_key
from queue_runner.errors import UsageError
from queue_runner.model import FAILURES, PREFLIGHT, Outcome, Selector, State
from queue_runner.monitor import run_view
from queue_runner.monitor.run_view import MARK, JobView, RunLine, RunView
from queue_runner.spec import command_name
from queue_runner.store import read

MOST_COMMAND = 60
"""Columns of a command line beyond which its middle is left out; mpsq show has all of it."""

_WIDE = 72
"""Columns from which on a list has the ages and durations of its jobs."""

R = TypeVar("R", bound=RunLine)


class Filter(Struct, frozen=True):
    """Filters of `mpsq list` and of the history of `mpsq web`; None does not filter. `state` is a state or an outcome
    of the jobs, or of the runs in a list of runs; failed stands for every failure. Deleted jobs are shown with
    `deleted`, then alone, and if a name or the id of a job selects them. `before` is the id of a job: only older
    ones. Each word of `text` must be in the name, the question, the command, the note or the tags."""

    selectors: tuple[Selector, ...] = ()
    state: str | None = None
    tags: tuple[str, ...] = ()
    limit: int | None = None
    deleted: bool = False
    before: int | None = None
    text: str | None = None


def _outcomes(word: str) -> Collection[Outcome]:
    """Return the outcomes that a word of --state stands for; none for a state."""
    outcome = Outcome.__members__.get(word.upper())
    return FAILURES if outcome is Outcome.FAILED else () if outcome is None else (outcome,)


_ANY_RUN = "EXISTS (SELECT 1 FROM runs r WHERE r.job_id = j.id AND {condition})"
_LAST = (
    "r.number > 0 AND NOT EXISTS (SELECT 1 FROM runs l"
    " WHERE l.job_id = r.job_id AND l.repeat = r.repeat AND l.attempt > r.attempt)"
)
_GOES_FIRST = {
    State.HELD: "r.state IN ('RUNNING', 'QUEUED')",
    State.QUEUED: "r.state = 'RUNNING'",
    State.DONE: "r.state <> 'DONE'",
}
"""The state of a job by those of its runs: which other ones it must not have (JobView.state)."""


def jobs(connection: sqlite3.Connection, filter: Filter) -> list[JobView[RunView]]:
    """Return whole jobs, the oldest first; if there are more than `limit`, the newest. Raises: see `each_job`."""
    return list(each_job(connection, filter, RunView))


def each_job(connection: sqlite3.Connection, filter: Filter, kind: type[R]) -> Iterator[JobView[R]]:
    """Yield jobs, the oldest first; if there are more than `limit`, the newest. One job is in memory at a time, with
    the columns of `kind`.

    Raises: UsageError for an unknown state, or a selector that matches nothing.
    """
    terms, values = _conditions(connection, filter)
    if filter.state is not None:
        term, more = _of_job(filter.state)
        terms.append(_with_unstored_ends(term, connection))
        values += more
    chosen = f"SELECT j.id FROM jobs j WHERE {' AND '.join(terms)} ORDER BY j.id DESC LIMIT ?"
    yield from run_view.jobs(run_view.each_run(connection, kind, f"job_id IN ({chosen})", [*values, _limit(filter)]))


def runs(connection: sqlite3.Connection, filter: Filter, kind: type[R]) -> Iterator[JobView[R]]:
    """Yield jobs with only those of their runs that match, without preflights; if there are more than `limit`, with the
    newest. No others are read. Raises: see `each_job`."""
    terms, values = _conditions(connection, filter)
    terms = [f"r.job_id IN (SELECT j.id FROM jobs j WHERE {' AND '.join(terms)})", f"r.number <> {PREFLIGHT}"]
    if filter.state is not None:
        term, more = _of_run(filter.state)
        terms.append(_with_unstored_ends(term, connection))
        values += more
    if filter.selectors:
        term, more = _is_selected(connection, filter, "r.id", "run_id")
        terms.append(term)
        values += more
    chosen = f"SELECT r.id FROM runs r WHERE {' AND '.join(terms)} ORDER BY r.id DESC LIMIT ?"
    rows = run_view.each_run(connection, kind, f"run_id IN ({chosen})", [*values, _limit(filter)])
    yield from run_view.jobs(rows)


def _limit(filter: Filter) -> int:
    return -1 if filter.limit is None else filter.limit


_HAS_WORDS = (
    "j.id IN (WITH texts AS MATERIALIZED (SELECT j.id, lower(j.name || char(10) || ifnull(j.workload, '') || char(10)"
    " || ifnull(j.framework, '') || char(10) || ifnull(j.device, '') || char(10) || ifnull(j.dtype, '') || char(10)"
    " || ifnull(j.config, '') || char(10) || ifnull(j.note, '') || char(10)"
    " || json_extract(j.spec_json, '$.params', '$.argv', '$.env_name') || char(10)"
    " || ifnull((SELECT group_concat(tag, char(10)) FROM job_tags t WHERE t.job_id = j.id), '')) AS text FROM jobs j)"
    " SELECT id FROM texts WHERE {each})"
)
"""Whether a job has `each` word, whose text is made once. Not in its captured environment, which nobody may search."""


def _spellings(word: str) -> list[str]:
    """Return a word and, of a setting such as lr=0.1, how it is stored."""
    return [word, *(word.replace("=", equals, 1) for equals in ('":"', '":') if "=" in word)]


def _conditions(connection: sqlite3.Connection, filter: Filter) -> tuple[list[str], list[Any]]:
    """Return the conditions of a filter on jobs, without that on their state, and their values."""
    terms: list[str] = ["1"]
    values: list[Any] = []
    if filter.deleted:
        terms.append("j.deleted_at IS NOT NULL")
    elif all(selector.job is None and selector.name is None for selector in filter.selectors):
        terms.append("j.deleted_at IS NULL")
    for tag in filter.tags:
        terms.append("EXISTS (SELECT 1 FROM job_tags t WHERE t.job_id = j.id AND t.tag = ?)")
        values.append(tag)
    if filter.before is not None:
        terms.append("j.id < ?")
        values.append(filter.before)
    if words := (filter.text or "").split():
        texts = [_spellings(word) for word in words]
        each = (" OR ".join(["instr(text, lower(?)) > 0"] * len(spellings)) for spellings in texts)
        terms.append(_HAS_WORDS.format(each=" AND ".join(f"({term})" for term in each)))
        values += [spelling for spellings in texts for spelling in spellings]
    if filter.selectors:
        term, more = _is_selected(connection, filter, "j.id", "job_id")
        terms.append(term)
        values += more
    return terms, values


def _is_selected(connection: sqlite3.Connection, filter: Filter, id: str, column: str) -> tuple[str, list[Any]]:
    """Return the condition that one of the selectors names the job or run of this `id`, a `column` of v_run."""
    alternatives, values = [], []
    for selector in filter.selectors:
        condition, named = read.where(selector, connection)
        alternatives.append(f"{id} IN (SELECT {column} FROM v_run WHERE {condition})")
        values += named
    return "(" + " OR ".join(alternatives) + ")", values


def _of_run(state: str) -> tuple[str, list[Any]]:
    """Return the condition on a run that it has a state or an outcome. Raises: UsageError for an unknown one."""
    if outcomes := _outcomes(state):
        return "r.outcome IN (SELECT value FROM json_each(?))", [json.dumps([*outcomes])]
    if state.upper() in State.__members__:
        return "r.state = ?", [state.upper()]
    raise UsageError(f'unknown state "{state}"', f"use one of {_words(State)}, or an outcome: {_words(Outcome)}")


def _of_job(state: str) -> tuple[str, list[Any]]:
    """Return the condition on a job that it shows a state or an outcome. Raises: UsageError for an unknown one."""
    term, values = _of_run(state)
    word = state.upper()
    if word in State.__members__:
        first = _GOES_FIRST.get(State(word))
        others = f" AND NOT {_ANY_RUN.format(condition=first)}" if first else ""
        return _ANY_RUN.format(condition=term) + others, values
    unlike = f"r.outcome IS NOT {word!r} AND {_LAST}"
    others = f" AND NOT {_ANY_RUN.format(condition=unlike)}" if word == Outcome.SUCCEEDED else ""
    return _ANY_RUN.format(condition=f"{term} AND {_LAST}") + others, values


def _with_unstored_ends(term: str, connection: sqlite3.Connection) -> str:
    """Return a term on runs in which those whose end no worker has stored yet have ended, too."""
    running = run_view.each_run(connection, RunLine, "state = 'RUNNING'")
    ended = {run.run_id: run.outcome for run in running if run.is_unstored}
    if not ended:
        return term
    ends = " ".join(f"WHEN {run_id} THEN '{outcome}'" for run_id, outcome in ended.items())
    ids = ", ".join(map(str, ended))
    term = term.replace("r.outcome", f"(CASE r.id {ends} ELSE r.outcome END)")
    return term.replace("r.state", f"(CASE WHEN r.id IN ({ids}) THEN '{State.DONE}' ELSE r.state END)")


def _words(kind: type[State] | type[Outcome]) -> str:
    return ", ".join(member.value.lower() for member in kind)


class _Line(Struct, frozen=True):
    """A line of the table: a job or a run."""

    id: int | str
    group: str
    what: str
    n_ok: str
    state: str
    style: str
    age: str
    took_s: float | None
    median_s: float | None
    mark: str


def table(jobs: Iterable[JobView[R]], *, colour: bool = False, by_run: bool = False) -> str:
    """Return the table of jobs, or of their runs; "" without any."""
    lines = list(_lines(jobs, by_run))
    if not lines:
        return ""
    kind = "run" if by_run else "job"
    columns = [
        tables.Column("id", kind, right=not by_run),
        tables.Column("group", "group"),
        tables.Column("what", "what", flexible=True),
        tables.Column("n_ok", "ok", right=True),
        tables.Column("state", "state", flexible=True, style=lambda line: line.style),
        tables.Column("age", "age", right=True),
        tables.Column("took_s", "took" if by_run else "per run", words=units.duration, right=True),
        tables.Column("median_s", "ms/iter", words=units.ms, right=True),
        tables.Column("mark", "", style=lambda _line: "doubt"),
    ]
    marked = any(line.mark for line in lines)
    absent = {"n_ok" if by_run else "", "" if any(line.median_s for line in lines) else "median_s"}
    absent |= {"age", "took_s"} if tables.room() < _WIDE else set()  # else a command is a column of single words
    columns = [column for column in columns if column.key not in absent and (marked or column.key != "mark")]
    text = tables.table(lines, columns, colour=colour)
    return f"{text}\n{MARK} not valid: mpsq show {kind.upper()} says why" if marked else text


def _lines(jobs: Iterable[JobView[R]], by_run: bool) -> Iterator[_Line]:
    """Yield the lines of the table by submission: its jobs are adjacent, and only these are in memory. A line for each
    job, or for each run."""
    for group_id, members in groupby(jobs, key=lambda job: job.first.group_id):
        submission = list(members)
        group = f"g{group_id}"
        for job, what in zip(submission, _distinguish([job.first for job in submission]), strict=True):
            rows: Sequence[JobView[R] | R] = job.runs if by_run else [job]
            n_ok = "" if by_run else f"{job.n_valid}/{job.repeats}"
            for row in rows:
                id = row.run if isinstance(row, RunLine) else job.first.job_id
                since = (row.started_at or row.created_at) if isinstance(row, RunLine) else job.first.created_at
                yield _Line(
                    id, group, what, n_ok, row.ending, row.style, _age(since), row.took_s, row.median_s, row.mark
                )


def _age(at: float) -> str:
    """Return how long ago a time was, in its largest unit: "3 d", "2 h", "5 min", "12 s"."""
    age_s = max(0.0, time.time() - at)
    for unit, size_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if age_s >= size_s:
            return f"{units.count(int(age_s // size_s))} {unit}"
    return f"{int(age_s)} s"


def _distinguish(firsts: Sequence[RunLine]) -> list[str]:
    """Return for the jobs of a submission, given by their first runs, the name and the settings that differ between
    those of one kind; all settings of a job alone."""
    varying: dict[str, set[str]] = {}
    for kind, members in by_key(firsts, lambda run: run.kind).items():
        words = [run.question.words() for run in members]
        names = {name for by_setting in words for name in by_setting}
        several = len(words) > 1
        varying[kind] = {name for name in names if not several or len({line.get(name) for line in words}) > 1}
    swept = len({run.name for run in firsts}) == 1 and len({tuple(run.question.sets.items()) for run in firsts}) > 1
    return [_name_and_settings(run, varying[run.kind], swept=swept) for run in firsts]


def _name_and_settings(run: RunLine, varying: set[str], *, swept: bool) -> str:
    """Return them in words; of a command its line, unless it is `swept` and its settings tell its jobs apart."""
    if run.kind == "command" and not swept and (words := run.command):
        line = tables.elide(shlex.join(words), MOST_COMMAND)
        sets = run.question.sets.items()
        settings = [f"{name}={value}" for name, value in sets if not any(str(value) in word for word in words)]
        script = words[2:3] if words[1:2] == ["-c"] else []  # of a quoted command that needs a shell
        named = run.name in (" ".join(words), shlex.join(words), command_name(words), *script)
        return " ".join([line if named else f"{run.name}: {line}", *settings])
    text = ", ".join(word for name, word in run.question.words().items() if name in varying)
    return f"{run.name} {text}" if text else run.name
