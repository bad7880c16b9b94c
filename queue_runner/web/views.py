"""The values of each page, from the typed view that the command line draws, too."""

from __future__ import annotations

import shlex
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from queue_runner import tables, units
from queue_runner.errors import UsageError
from queue_runner.model import Outcome, Selector, State, parse_selector
from queue_runner.monitor import eta, listing, logs, run_view, show, show_text, status_text, watch, why
from queue_runner.monitor.run_view import JobView, RunLine, RunView
from queue_runner.monitor.status import Observation, Status
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.times import clock

WAITING = 100
"""Number of waiting runs on the first page; the history has all."""
PAGE = 100
"""Number of jobs on a page of the history, unless the address names another."""
PAGE_MOST = 10_000
PATIENCE_S = 3.0
"""How long a page waits for a database that somebody has locked, before it says so."""

Values = dict[str, Any]

STATES = ("queued", "held", "running", *(outcome.value.lower() for outcome in Outcome))


def queue(layout: Layout) -> Values:
    """Return the values of the first page. Raises: MpsqError if there is no queue to read."""
    observations = watch.observe(layout, WAITING, PATIENCE_S)
    try:
        observation = next(observations)
    finally:
        observations.close()
    assert observation is not None  # the first one always exists
    return queue_parts(observation)


def queue_parts(observation: Observation) -> Values:
    """Return the values of the parts of the first page."""
    status, now = observation.status, time.time()
    return {
        "facts": _facts(status),
        "running": _running(status, observation.newest_s),
        "waiting": [_waiting(run, place, status, now) for place, run in enumerate(status.waiting, start=1)],
        "waiting_count": status.waiting_count,
        "ended": [_ended(run, now) for run in status.ended],
    }


def _facts(status: Status) -> list[tuple[str, str]]:
    facts = [*status_text.lane(status), ("waiting", status_text.waiting_count(status)), *status_text.plan(status)]
    return [*facts, *status_text.hooks(status), ("disk", status_text.disk(status.disk))]


@dataclass(frozen=True)
class RunCells:
    """The cells of a run that all pages have. `kind` is the class of its state for a colour; the word is always
    there too."""

    run: str
    job: int
    group: int
    name: str
    asks: str
    ending: str
    kind: str
    invalid: bool
    held: bool

    @classmethod
    def of(cls, run: RunView, **cells: Any) -> Self:
        kind = run.style if run.outcome else _STATE_KINDS.get(run.state, "")
        names = (run.run, run.job_id, run.group_id, run.name, str(run.question))
        return cls(*names, run.ending, kind, bool(run.mark), run.state == State.HELD, **cells)


_STATE_KINDS = {"RUNNING": "running", "HELD": "held"}


@dataclass(frozen=True)
class IterationLine:
    """Times of the newest iterations as points of a line in a box of 100 x 100."""

    points: str
    n: int
    low: str
    high: str


@dataclass(frozen=True)
class RunningCells(RunCells):
    """The running run, and its progress."""

    trouble: Sequence[str]
    suspended: bool
    spark: IterationLine | None
    done: int = 0
    planned: int | None = None
    facts: Sequence[tuple[str, str | None]] = ()


@dataclass(frozen=True)
class WaitingCells(RunCells):
    """A waiting run, and its reason."""

    place: int
    waits: str
    why: str
    starts: str


@dataclass(frozen=True)
class EndedCells(RunCells):
    """A run that ended lately."""

    took: str
    ago: str


@dataclass(frozen=True)
class AttemptCells(RunCells):
    """A run of the job of the page."""

    chosen: bool
    repeat: int
    attempt: int
    took: str
    per_iteration: str
    taints: str
    started: str


def _running(status: Status, newest_s: Sequence[float]) -> RunningCells | None:
    run, progress = status.running, status.progress
    if run is None or progress is None:
        return None
    of_planned = f" of {units.count(progress.planned_iters)}" if progress.planned_iters else ""
    return RunningCells.of(
        run,
        trouble=status_text.trouble(status),
        suspended=run.paused_at is not None,
        spark=spark(newest_s),
        done=progress.iters,
        planned=progress.planned_iters,
        facts=[
            ("phase", progress.phase),
            ("iteration", f"{units.count(progress.iters)}{of_planned}"),
            ("per iteration", f"{units.ms(progress.median_s)} ms" if progress.median_s is not None else None),
            ("loss", units.loss(progress.loss) if progress.loss is not None else None),
            ("so far", units.duration(progress.elapsed_s)),
            ("remaining", f"about {units.duration(progress.left_s)} of training" if progress.left_s else None),
        ],
    )


def spark(times_s: Sequence[float]) -> IterationLine | None:
    """Return the newest iterations' times as a line; None for fewer than two."""
    if len(times_s) < 2:
        return None
    low, high = min(times_s), max(times_s)
    span = max(high - low, 0.05 * high) or 1.0  # the noise of a steady run is a flat line, as in status --watch
    step, top = 100 / (len(times_s) - 1), (low + high + span) / 2
    points = " ".join(f"{n * step:.2f},{(top - t) / span * 100:.2f}" for n, t in enumerate(times_s))
    return IterationLine(points, len(times_s), units.short_duration(low), units.short_duration(high))


def _waiting(run: RunView, place: int, status: Status, now: float) -> WaitingCells:
    reason = status.reasons[run.run_id]
    starts = eta.clock(status.eta.turns.get(run.run), now) if status.goes_on else units.MISSING
    return WaitingCells.of(run, place=place, waits=reason.short, why=reason.sentence, starts=starts)


def _ended(run: RunView, now: float) -> EndedCells:
    ago = f"{units.duration(now - run.ended_at)} ago" if run.ended_at else units.MISSING
    return EndedCells.of(run, took=units.duration(run.real_s), ago=ago)


@dataclass(frozen=True)
class Search:
    """The query of the history page. `before` is the id of a job: only older ones."""

    text: str = ""
    state: str = ""
    tag: str = ""
    before: int | None = None
    n: int = PAGE


def read_search(given: Mapping[str, str]) -> Search:
    """Return the query in the address of a page. Raises: UsageError."""
    return Search(
        given.get("q", "").strip(),
        given.get("state", ""),
        given.get("tag", "").strip(),
        whole(given["before"], "before") if given.get("before") else None,
        min(max(whole(given.get("n") or str(PAGE), "n"), 1), PAGE_MOST),
    )


def whole(text: str, name: str) -> int:
    """Return a whole number of an address. Raises: UsageError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise UsageError(f'{name} cannot be "{text}"', "use a whole number")
    return int(text)


def history(layout: Layout, search: Search) -> Values:
    """Return the values of a page of the history, the newest job first. Raises: UsageError, MpsqError (store)."""
    selectors, text = _selectors(search.text)
    filter = listing.Filter(
        selectors,
        search.state or None,
        (search.tag,) if search.tag else (),
        search.n + 1,
        before=search.before,
        text=text,
    )
    with read.reading(layout.db, patience_s=PATIENCE_S) as connection:
        jobs = list(listing.each_job(connection, filter, RunLine))
    more = len(jobs) > search.n
    jobs = jobs[more:]
    now = time.time()
    return {
        "jobs": [_job(job, now) for job in reversed(jobs)],
        "older": jobs[0].first.job_id if more else None,
        "search": search,
        "states": STATES,
        "filtered": bool(search.text or search.state or search.tag),
    }


def _selectors(text: str) -> tuple[tuple[Selector, ...], str | None]:
    """Return ids as selectors; any other text is searched for."""
    try:
        return (parse_selector(text),), None
    except UsageError:
        return (), text or None


@dataclass(frozen=True)
class JobCells:
    """A job of the history."""

    job: int
    group: int
    name: str
    asks: str
    took: str
    ending: str
    kind: str
    ok: str
    per_iteration: str
    invalid: bool
    when: str


def _job(job: JobView[RunLine], now: float) -> JobCells:
    first, runs = job.first, job.runs
    ended = [run.ended_at for run in runs if run.ended_at is not None]
    command = tables.elide(shlex.join(first.command), listing.MOST_COMMAND) if first.command else ""
    return JobCells(
        job=first.job_id,
        group=first.group_id,
        name=first.name,
        asks=str(first.question) or command,
        took=units.duration(run_view.took_s(runs)),
        ending=job.ending,
        kind=job.style or _STATE_KINDS.get(job.state, ""),
        ok=f"{job.succeeded}/{job.repeats}",
        per_iteration=f"{units.ms(job.median_s)} ms" if job.median_s is not None else units.MISSING,
        invalid=any(run.taints and not run.valid for run in runs),
        when=clock(max(ended, default=first.created_at), now),
    )


def job(layout: Layout, text: str) -> Values:
    """Return the values of the page of a job, or of one of its runs. Raises: UsageError, MpsqError (store)."""
    selector = parse_selector(text)
    with read.reading(layout.db, patience_s=PATIENCE_S) as connection:
        whole = Selector(str(selector.job), job=selector.job) if selector.job is not None else selector
        runs = run_view.select(connection, [whole])
        named = [run for run in runs if selector.number in (None, run.number)]
        if not named:
            raise read.names_nothing(selector)
        run = logs.choose(named)
        details = show.details(layout, connection, run)
        explanation = why.explain_all(layout, connection, [parse_selector(run.run)])[0]
        charts = _charts(connection, run)
    return {
        "details": details,
        "facts_": show_text.facts(details),
        "at": RunCells.of(run),
        "why": explanation,
        **charts,
        "runs": [_attempt(other, run) for other in runs if other.job_id == run.job_id],
    }


def _charts(connection: sqlite3.Connection, run: RunView) -> Values:
    """Return the charts of a run: its phases, and the state of the machine meanwhile."""
    from queue_runner.pages import run_records, timeline  # the statistics of reports are loaded when they are used
    from queue_runner.reports._common.document import Options, Result

    options = Options(selectors=(parse_selector(run.run),), include_invalid=True)
    gathered = run_records.gather(Result((), ()), connection, options)
    bars, bar_ticks = timeline.bars(gathered)
    courses, _ = timeline.courses(gathered)
    return {"bars": bars, "bar_ticks": bar_ticks, "courses": courses}


def _attempt(run: RunView, chosen: RunView) -> AttemptCells:
    return AttemptCells.of(
        run,
        chosen=run.run == chosen.run,
        repeat=run.repeat,
        attempt=run.attempt,
        took=units.duration(run.real_s),
        per_iteration=units.ms_plus_minus(run.median_s, run.mad_s),
        taints=", ".join(run.taints),
        started=clock(run.started_at) if run.started_at else units.MISSING,
    )
