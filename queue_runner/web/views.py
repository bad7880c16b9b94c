"""The values of each page, from the typed view that the command line draws, too."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import tables, units
from queue_runner.errors import UsageError
from queue_runner.model import Outcome, Selector, State, parse_selector
from queue_runner.monitor import eta, listing, log_files, queue_status, run_view, status_text, watch
from queue_runner.monitor.group_summary import GroupProgress
from queue_runner.monitor.progress import RunProgress, Tracker
from queue_runner.monitor.queue_status import Observation, RunningRun, Status
from queue_runner.monitor.run_view import JobView, RunLine, RunView
from queue_runner.monitor.waiting import Reason
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.times import clock
from queue_runner.web.overview import Overview, OverviewReader

if TYPE_CHECKING:
    from queue_runner.monitor.explanation import Why
    from queue_runner.monitor.run_details import Details
    from queue_runner.pages.axis import Tick
    from queue_runner.pages.iteration_plots import Plots
    from queue_runner.pages.timeline import Bar, GroupTimeline

WAITING = 100
"""Number of waiting runs on the first page; the history has all."""
PAGE = 100
"""Number of jobs on a page of the history, unless the address names another."""
PAGE_MOST = 500
PATIENCE_S = 3.0
"""How long a page waits for a database that somebody has locked, before it says so."""

STATES = ("queued", "held", "running", *(outcome.value.lower() for outcome in Outcome))


class WaitingGroup(Struct, frozen=True):
    """A submission that waits: how far it is, when its last run ends, the reason why it waits, and its waiting runs,
    each with its number in the queue, its reason and the time of its start. `is_cut` if more of its runs wait than the
    page shows."""

    id: int
    progress: GroupProgress
    open: str
    until: str
    reason: str
    runs: Sequence[tuple[int, RunView, Reason, str]]
    is_cut: bool

    @property
    def n_runs(self) -> int:
        """Number of these runs, as every command counts them."""
        return len(run_view.last_attempts(run for _, run, _, _ in self.runs))


class QueuePage(Struct, frozen=True):
    """The first page. `running_` and `overview_`, since macros of the template are called `running` and `overview`."""

    overview_: Overview | None
    lane: Sequence[tuple[str, str]]
    running_: RunningView | None
    plan: Sequence[tuple[str, str]]
    waiting: Sequence[WaitingGroup]
    waiting_count: int
    ended: Sequence[RunView]
    now: float


def queue(layout: Layout, overview: OverviewReader) -> QueuePage:
    """Return the first page. Raises: MpsqError if there is no queue to read."""
    with closing(watch.observe(layout, WAITING, PATIENCE_S)) as observations:
        observation = next(observations)
    assert observation is not None  # the first one always exists
    return queue_page(observation, overview.read(PATIENCE_S))


def queue_page(observation: Observation, overview: Overview | None) -> QueuePage:
    """Return the first page, as observed; without an overview where that is known."""
    status, now = observation.status, time.time()
    running, newest = status.running, (observation.newest_s, observation.newest_losses)
    return QueuePage(
        overview,
        status_text.lane(status),
        _running(running, *newest, status_text.trouble(status)) if running is not None else None,
        status_text.plan(status),
        _waiting(status, now),
        status.waiting_count,
        status.ended,
        now,
    )


def _waiting(status: Status, now: float) -> list[WaitingGroup]:
    turns = status.eta.turns if status.goes_on else {}
    by_group: dict[int, list[tuple[int, RunView, Reason, str]]] = {}
    for number, run in enumerate(status.waiting, 1):
        row = (number, run, status.reasons[run.run_id], eta.clock(turns.get(run.run), now))
        by_group.setdefault(run.group_id, []).append(row)
    groups = []
    for group, rows in by_group.items():
        progress, is_open = status.groups[group], status.undecided.get(group, "").partition(": ")[2]
        is_cut = len(rows) < progress.waiting
        end = "" if is_cut else until([turns.get(run.run) for _, run, _, _ in rows], now)
        reasons = (reason.short for _, run, reason, _ in rows if run.state != State.HELD)
        groups.append(WaitingGroup(group, progress, is_open, end, next(reasons, f"mpsq resume g{group}"), rows, is_cut))
    return groups


def until(turns: Sequence[eta.Turn | None], now: float) -> str:
    """Return the time at which the last of these runs ends; empty unless all have run here before."""
    known = [turn for turn in turns if turn is not None]
    end = eta.end_of(known) if len(known) == len(turns) else None
    if end is None:
        return ""
    end_at, is_sure = end
    return clock(end_at, now) + ("" if is_sure else " or later")


class IterationLine(Struct, frozen=True):
    """Values of the newest iterations as points of a line in a box of 100 x 100."""

    name: str
    points: str
    n: int
    low: str
    high: str


class RunningView(Struct, frozen=True):
    """The running run and its progress."""

    run: RunView
    progress: RunProgress
    trouble: Sequence[str]
    facts: Sequence[tuple[str, str | None]]
    lines: Sequence[IterationLine]

    @property
    def spoken(self) -> str:
        """Its progress in steps of a tenth, for a screen reader."""
        planned = self.progress.planned_iters
        share = f", {10 * (10 * self.progress.iters // planned)} % done" if planned else ""
        phase = f"in phase {self.progress.phase}" if self.progress.phase else "running"
        return f"run {self.run.run} is {phase}{share}"


def _running(
    running: RunningRun, newest_s: Iterable[float], newest_losses: Iterable[float], trouble: Sequence[str] = ()
) -> RunningView:
    run, progress = running.run, running.progress
    of_planned = f" of {units.count(progress.planned_iters)}" if progress.planned_iters else ""
    facts = [
        ("phase", progress.phase),
        ("iteration", f"{units.count(progress.iters)}{of_planned}" if progress.iters or of_planned else None),
        ("per iteration", f"{units.ms(progress.median_s)} ms" if progress.median_s is not None else None),
        ("loss", units.loss(progress.loss) if progress.loss is not None else None),
        ("so far", None if progress.elapsed_s is None else units.rough(progress.elapsed_s)),
        ("remaining", f"about {units.duration(progress.left_s)} of training" if progress.left_s else None),
    ]
    lines = [
        spark("time per iteration", newest_s, units.short_duration),
        spark("loss", newest_losses, units.loss),
    ]
    return RunningView(run, progress, trouble, facts, [line for line in lines if line])


def spark(name: str, values: Iterable[float], show: Callable[[float], str]) -> IterationLine | None:
    """Return the values of the newest iterations as a line; None for fewer than two."""
    values = [value for value in values if math.isfinite(value)]
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    span = max(high - low, 0.05 * abs(high)) or 1.0  # the noise of a steady run is a flat line, as in status --watch
    step, top = 100 / (len(values) - 1), (low + high + span) / 2
    points = " ".join(f"{n * step:.2f},{(top - value) / span * 100:.2f}" for n, value in enumerate(values))
    return IterationLine(name, points, len(values), show(low), show(high))


class Search(Struct, frozen=True):
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


class HistoryPage(Struct, frozen=True):
    """A page of the history, the newest job first. `older` is the id of its oldest job if there are older ones."""

    jobs: Sequence[JobView[RunLine]]
    older: int | None
    search: Search
    now: float
    states = STATES

    @property
    def filtered(self) -> bool:
        """Whether not all jobs were requested."""
        return bool(self.search.text or self.search.state or self.search.tag)

    def per_iteration(self, job: JobView[RunLine]) -> str:
        """Return the time of an iteration of a job, in words."""
        return units.MISSING if job.median_s is None else f"{units.ms(job.median_s)} ms"

    def when(self, job: JobView[RunLine]) -> str:
        """Return when a job ended, or was submitted."""
        return clock(max(run.ended_at or 0.0 for run in job.runs) or job.first.created_at, self.now)

    def question(self, job: JobView[RunLine]) -> str:
        """Return the question of a job, or the command line of one without settings."""
        first = job.first
        return str(first.question) or tables.elide(shlex.join(first.command), listing.MOST_COMMAND)


def history(layout: Layout, search: Search) -> HistoryPage:
    """Return a page of the history. Raises: UsageError, MpsqError (store)."""
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
    return HistoryPage(jobs[::-1], jobs[0].first.job_id if more else None, search, time.time())


def _selectors(text: str) -> tuple[tuple[Selector, ...], str | None]:
    """Return ids as selectors; any other text is searched for."""
    try:
        selector = parse_selector(text)
    except UsageError:
        return (), text or None
    return ((), text) if selector.name is not None else ((selector,), None)


_ABOVE = ("state", "invalid", "caveat")
"""Facts of a run that its page has at the top."""


class JobPage(Struct, frozen=True):
    """The page of a job: all its runs, and everything about the run `at`: its progress while it runs, then the charts
    of its iterations; those of its phases and of the machine. `facts_` is the output of `mpsq show`; a macro of the
    template is called `facts`."""

    details: Details
    facts_: Sequence[tuple[str, str]]
    at: RunView
    why: Why
    runs: Sequence[RunView]
    bars: Sequence[Bar]
    bar_ticks: Sequence[Tick]
    courses: Sequence[GroupTimeline]
    running: RunningView | None
    plots: Plots
    may_retry: bool


def job(layout: Layout, text: str) -> JobPage:
    """Return the page of a job, or of one of its runs. Raises: UsageError, MpsqError (store)."""
    from queue_runner.monitor import explanation, run_details, show_text  # what no other page needs
    from queue_runner.pages import iteration_plots, run_records, timeline

    selector = parse_selector(text)
    with read.reading(layout.db, patience_s=PATIENCE_S) as connection:
        whole = Selector(str(selector.job), job=selector.job) if selector.job is not None else selector
        runs = run_view.select(connection, [whole])
        named = [run for run in runs if selector.number in (None, run.number)]
        if not named:
            raise read.names_nothing(selector, job_exists=True)
        run = log_files.choose(named)
        details = run_details.details(layout, connection, run)
        (why,) = explanation.explain_all(layout, connection, [parse_selector(run.run)])
        records = run_records.of_run(connection, run.run_id)
        running = None
        if run.state == State.RUNNING and not run.is_unstored:
            tracker = Tracker()
            now = queue_status.look_at(layout, connection, run, tracker)
            running = _running(now, tracker.newest_s, tracker.newest_losses)
        is_done = run.state == State.DONE
        plots = iteration_plots.plots(records) if is_done else iteration_plots.Plots([], [])
    bars, bar_ticks = timeline.bars(records) if records.marks else ([], [])
    bars = [replace(bar, invalid=[], caveats=[]) for bar in bars]  # the page has them above
    courses, _ = timeline.courses(records)
    runs = [other for other in runs if other.job_id == run.job_id]
    may_retry = _may_retry(run, runs, details)
    facts = [(name, value) for name, value in show_text.facts(details) if name not in _ABOVE]
    steps = [step for step in why.next_step.split("; ") if not step.startswith(f"mpsq logs {run.run} ")]
    why = replace(why, next_step="; ".join(steps))  # the page leads to its log
    return JobPage(details, facts, run, why, runs, bars, bar_ticks, courses, running, plots, may_retry)


def _may_retry(run: RunView, runs: Sequence[RunView], details: Details) -> bool:
    """Return whether the state of an ended run and of its job admits a retry (control/new_attempts)."""
    is_last = all(other.attempt <= run.attempt for other in runs if other.repeat == run.repeat)
    is_late = run.deadline_at is not None and run.deadline_at <= time.time()
    in_vain = is_late or any(other.verdict == "impossible" for other in details.after)
    return is_last and not (in_vain or run.succeeded or run.kind == "import" or run.deleted_at)
