"""Estimate of when the queue will be done, from how long the same questions took before on this machine.

The length of a question that was never asked here is not guessed: estimates after it are "at least", and the sentence
states how many such runs there are. The estimate assumes that the queue is going now and that dependencies are
satisfied.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

from msgspec import Struct, field

from queue_runner import times, units
from queue_runner.lanes import is_remote
from queue_runner.model import PREFLIGHT, Condition, State
from queue_runner.monitor.run_view import RunView
from queue_runner.spec import JobSpec
from queue_runner.store import read
from queue_runner.store.history import ALIKE, PACE, SAME, Expected, History

EXPECTED = 500
"""Number of runs of the queue for which an estimate is made, unless more are shown."""


class Turn(Struct, frozen=True):
    """Start and end of one run, in Unix seconds. None: it needs user action first (it is held, or behind a held run),
    or never comes as things are (it waits for a failure, or is past its deadline). If not sure, it may be later: the
    length of this run, or of one before it, is unknown."""

    run: str
    expected: Expected
    start_at: float | None
    finish_at: float | None
    start_sure: bool = True
    finish_sure: bool = True


class Eta(Struct, frozen=True, dict=True):
    """The turns of all runs that have not ended, by run. `finish_at` is None if nothing runs without user action."""

    turns: Mapping[str, Turn] = field(default_factory=dict)
    finish_at: float | None = None
    left_s: float = 0.0

    @cached_property
    def going(self) -> list[Turn]:
        """The turns that come without user action; preflights only if nothing else does."""
        turns = [turn for turn in self.turns.values() if turn.finish_at is not None]
        return [turn for turn in turns if not turn.run.endswith(f".{PREFLIGHT}")] or turns

    @cached_property
    def n_stuck(self) -> int:
        """Number of runs that are not expected to start as things are; preflights do not count."""
        return sum(turn.finish_at is None and not turn.run.endswith(f".{PREFLIGHT}") for turn in self.turns.values())

    @cached_property
    def unknown(self) -> int:
        """Number of these whose length is unknown."""
        return sum(turn.expected.real_s is None for turn in self.going)

    def sentence(self, now: float, *, going: bool = True) -> str:
        """Return `about 3 h 20 min, at 06:40` with its uncertainty; empty if nothing will run. Without the time of
        day unless the queue is `going`."""
        if self.finish_at is None:
            return ""
        similar = sum(turn.expected.basis == ALIKE for turn in self.going)
        sure = all(turn.finish_sure for turn in self.going)
        end = _at_clock(self.finish_at, now, sure=sure) if going else " once the queue runs"
        return in_words(self.left_s, end, len(self.going), self.unknown, similar, sure=sure)


def in_words(dur_s: float, end: str, n_runs: int, unknown: int, similar: int, *, sure: bool, subject: str = "") -> str:
    """Return `about 3 h 20 min` with its `end`, and how many of the runs have no history or only that of `similar`
    ones."""
    if unknown == n_runs:
        return f"{subject}not known, because no run like these has ended yet"
    sentence = f"{'about' if sure else 'at least'} {about(dur_s)}{end}"
    if unknown:
        has = "has" if unknown == 1 else "have"
        sentence += f"; {units.count(unknown)} of {units.count(n_runs)} runs {has} no history"
    if similar:
        sentence += f"; {units.count(similar)} of {units.counted(n_runs, 'run')} estimated from similar runs"
    return sentence


def about(dur_s: float) -> str:
    """Format an estimate of a duration, never as none at all: `1 s`, `12 min 30 s`."""
    return units.rough(max(dur_s, 1.0))


def at_clock(at: float, now: float, *, sure: bool) -> str:
    """Return `at 22:40`, or `after 22:40` if it may be later."""
    return f"{'at' if sure else 'after'} {times.clock(at, now)}"


def _at_clock(at: float, now: float, *, sure: bool) -> str:
    """Return `, at 22:40`; nothing within a minute, in which the time of day would read as now."""
    return f", {at_clock(at, now, sure=sure)}" if at - now >= 60 else ""


def end_of(turns: Sequence[Turn]) -> tuple[float, bool] | None:
    """Return when the last of these runs ends, and whether that is sure; None where the length or the end of one is
    unknown."""
    ends = [turn.finish_at for turn in turns if turn.finish_at is not None and turn.expected.real_s is not None]
    return (max(ends), all(turn.finish_sure for turn in turns)) if turns and len(ends) == len(turns) else None


def starting(turn: Turn | None, now: float) -> str:
    """Return `in about 12 min, at 22:40`, `in about 22 s`; empty if unknown or now."""
    if turn is None or turn.start_at is None or turn.start_at <= now + 1:
        return ""
    sure = "in about" if turn.start_sure else "in at least"
    return f"{sure} {about(turn.start_at - now)}{_at_clock(turn.start_at, now, sure=turn.start_sure)}"


def clock(turn: Turn | None, now: float) -> str:
    """Return the time of day at which a run starts, for a table: `22:40`, `after 22:40`; "-" if unknown."""
    soon = turn is not None and turn.start_at is not None and turn.start_at <= now + 1
    if turn is None or turn.start_at is None or (soon and not turn.start_sure):
        return units.MISSING
    text = "now" if soon else times.clock(turn.start_at, now)
    return text if turn.start_sure else f"after {text}"


def estimate(
    connection: sqlite3.Connection,
    runs: Sequence[RunView],
    now: float,
    *,
    left_s: Mapping[str, float] | None = None,
    gap_s: float = 0.0,
) -> Eta:
    """Estimate when each run of the queue starts and ends.

    `runs` are those of run_view.queue: the runs that have not ended, in queue order, the running ones first. `left_s`
    is the time that some of these still need at their pace, by run, and `gap_s` the time between two runs (the
    cool-down). With several lanes the estimate takes none to stand empty while runs wait, so it is "at least".
    """
    # another machine takes its own time, and an unstored run takes none
    runs = [run for run in runs if not is_remote(run.lane) and not run.is_unstored]
    expected = _expected(connection, runs)
    walk = _Walk(connection, runs)
    turns: dict[str, Turn] = {}
    n_lanes = max(len(read.lanes_here(connection)), 1)
    free: list[float] = []
    sure = n_lanes == 1
    for place, run in enumerate(runs):
        if run.state == State.RUNNING:
            at_pace_s = (left_s or {}).get(run.run)
            known, remaining = _running(run, expected[place], now, at_pace_s, _suspended_s(connection, run, now))
            known_end = remaining is not None and run.paused_at is None  # suspended: it needs user action to go on
            sure = sure and known_end
            end_at = now + (remaining or 0.0)
            turns[run.run] = Turn(run.run, known, run.started_at, end_at, True, known_end)
            free.append(end_at + gap_s)
            walk.ended(place)
    free = sorted(free + [now] * (n_lanes - len(free)))[-n_lanes:]
    while (start := walk.next(free[0])) is not None:
        place, start_at = start
        name, takes = runs[place].run, expected[place]
        end_at = start_at + (takes.real_s or 0.0)
        turns[name] = Turn(name, takes, start_at, end_at, sure, sure and takes.real_s is not None)
        sure = turns[name].finish_sure
        heapq.heapreplace(free, end_at + gap_s)
        walk.ended(place)
    finish_at = max((turn.finish_at for turn in turns.values() if turn.finish_at is not None), default=None)
    for place, run in enumerate(runs):
        turns.setdefault(run.run, Turn(run.run, expected[place], None, None))
    return Eta(turns, finish_at, max((finish_at or now) - now, 0.0))


def _expected(connection: sqlite3.Connection, runs: Sequence[RunView]) -> list[Expected]:
    """Return how long each run is expected to take; a preflight only starts up."""
    history = History(connection)
    specs = {run.spec_hash: run.spec_json for run in runs}
    by_hash = {digest: history.expected(JobSpec.from_json(text), digest) for digest, text in specs.items()}
    startups = {digest: Expected(e.startup_s, e.basis, e.startup_s) for digest, e in by_hash.items()}
    return [(startups if run.is_preflight else by_hash)[run.spec_hash] for run in runs]


def _suspended_s(connection: sqlite3.Connection, run: RunView, now: float) -> float:
    """Return for how many seconds a running run has been suspended so far."""
    events = "SELECT at, verb FROM job_events WHERE run_id = ? AND verb IN ('suspend', 'continue') ORDER BY id"
    suspended_s, since = 0.0, None
    for at, verb in read.tuples(connection, events, [run.run_id]):
        if verb == "suspend":
            since = at
        elif since is not None:
            suspended_s, since = suspended_s + max(at - since, 0.0), None
    return suspended_s + (max(now - since, 0.0) if since is not None else 0.0)


def _running(
    run: RunView, takes: Expected, now: float, left_s: float | None, suspended_s: float
) -> tuple[Expected, float | None]:
    """Return the expected duration of the running run and the time left; None if it should have ended by now. Its own
    pace says more than runs of similar questions."""
    elapsed_s = max(now - (run.started_at or run.claimed_at or now) - suspended_s, 0.0)
    has_time = takes.real_s is not None and takes.real_s > elapsed_s
    if left_s is not None and not (has_time and takes.basis == SAME):
        return Expected(elapsed_s + left_s, PACE), left_s
    return takes, (takes.real_s or 0.0) - elapsed_s if has_time else None


class _Walk:
    """The order in which the worker starts runs: always the first one whose time has come and whose dependencies have
    ended."""

    def __init__(self, connection: sqlite3.Connection, runs: Sequence[RunView]) -> None:
        self._runs = runs
        self._left = Counter(run.job_id for run in runs)
        self._waits: Counter[int] = Counter()
        self._waiters: defaultdict[int, list[int]] = defaultdict(list)
        waits = "SELECT job_id, on_job_id, condition FROM dependencies"
        for job, on_job, condition in read.tuples(connection, waits):
            if job in self._left and on_job in self._left:
                self._waits[job] += 1
                if condition != Condition.FAIL:  # runs that wait for a failure are not expected to run
                    self._waiters[on_job].append(job)
        self._ready: list[int] = []
        self._later: list[tuple[float, int]] = []
        self._of_job: defaultdict[int, list[int]] = defaultdict(list)
        for place, run in enumerate(runs):
            if run.state == State.QUEUED:
                if self._waits[run.job_id]:
                    self._of_job[run.job_id].append(place)
                else:
                    self._free(place)

    def _free(self, place: int) -> None:
        heapq.heappush(self._later, (self._runs[place].not_before_at or 0.0, place))

    def next(self, at: float) -> tuple[int, float] | None:
        """Return the index of the run that starts next if the lane is free from `at` on, and when; None if none ever
        does."""
        while True:
            while self._later and self._later[0][0] <= at:
                heapq.heappush(self._ready, heapq.heappop(self._later)[1])
            if self._ready:
                place = heapq.heappop(self._ready)
                if at < (self._runs[place].deadline_at or at + 1):
                    return place, at
            elif self._later:
                at = self._later[0][0]
            else:
                return None

    def ended(self, place: int) -> None:
        """Record the end of a run: jobs that waited for the last run of its job may start."""
        job = self._runs[place].job_id
        self._left[job] -= 1
        if self._left[job]:
            return
        for waiter in self._waiters[job]:
            self._waits[waiter] -= 1
            if not self._waits[waiter]:
                for other in self._of_job.pop(waiter, ()):
                    self._free(other)
