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
from dataclasses import dataclass, field
from functools import cached_property

from queue_runner import times, units
from queue_runner.lanes import is_remote
from queue_runner.model import PREFLIGHT, Condition, Row, State
from queue_runner.store import read
from queue_runner.store.history import ALIKE, PACE, Expected, History

EXPECTED = 500
"""Number of runs of the queue for which an estimate is made, unless more are shown."""


@dataclass(frozen=True)
class Turn:
    """Start and end of one run, in Unix seconds. None: not without user action (held, or behind a held run), or never
    as things are (waits for a failure, or past its deadline). If not sure, it may be later: this run or one before it
    is of unknown length."""

    run: str
    expected: Expected
    start_at: float | None
    finish_at: float | None
    start_sure: bool = True
    finish_sure: bool = True


@dataclass(frozen=True)
class Eta:
    """The turns of all runs that have not ended, by run. `finish_at` is None if nothing runs without user action."""

    turns: Mapping[str, Turn] = field(default_factory=dict)
    finish_at: float | None = None
    left_s: float = 0.0

    @cached_property
    def going(self) -> list[Turn]:
        """The turns that come without user action; preflights only if nothing else does."""
        found = [turn for turn in self.turns.values() if turn.finish_at is not None]
        return [turn for turn in found if not turn.run.endswith(f".{PREFLIGHT}")] or found

    @cached_property
    def unknown(self) -> int:
        """Number of these that are of unknown length."""
        return sum(turn.expected.real_s is None for turn in self.going)

    def sentence(self, now: float, *, going: bool = True) -> str:
        """Return `about 3 h 20 min, until 06:40` with its uncertainty; empty if nothing will run. Without the time of
        day unless the queue is `going`."""
        if self.finish_at is None:
            return ""
        n_runs = len(self.going)
        if self.unknown == n_runs:
            which = "it has not" if n_runs == 1 else f"none of these {units.count(n_runs)} runs has"
            return f"not known yet: {which} run on this machine before"
        sure = all(turn.finish_sure for turn in self.going)
        told = f"{'about' if sure else 'at least'} {units.duration(self.left_s)}"
        told += f", until {times.clock(self.finish_at, now)}" if going else " from its start"
        if self.unknown:
            has = "has" if self.unknown == 1 else "have"
            told += f"; {units.count(self.unknown)} of {units.count(n_runs)} runs {has} no history"
        alike = sum(turn.expected.basis == ALIKE for turn in self.going)
        return told + (f"; {units.count(alike)} of {units.count(n_runs)} estimated from similar runs" if alike else "")


def starting(turn: Turn | None, now: float) -> str:
    """Return `in about 12 min, at 22:40`; empty if unknown or now."""
    if turn is None or turn.start_at is None or turn.start_at <= now + 1:
        return ""
    sure = "in about" if turn.start_sure else "at the earliest in"
    return f"{sure} {units.duration(turn.start_at - now)}, at {times.clock(turn.start_at, now)}"


def clock(turn: Turn | None, now: float) -> str:
    """Return the time of day at which a run starts, for a table: `22:40`, `after 22:40`; "-" if unknown."""
    soon = turn is not None and turn.start_at is not None and turn.start_at <= now + 1
    if turn is None or turn.start_at is None or (soon and not turn.start_sure):
        return units.MISSING
    told = "now" if soon else times.clock(turn.start_at, now)
    return told if turn.start_sure else f"after {told}"


def estimate(
    connection: sqlite3.Connection, rows: Sequence[Row], now: float, *, left_s: float | None = None, gap_s: float = 0.0
) -> Eta:
    """Estimate when each run of the queue starts and ends.

    `rows` are those of read.queue: the runs that have not ended, in queue order, the running one first. `left_s` is the
    time that the running one still needs at its own pace, if known, and `gap_s` the time between two runs (the
    cool-down). With several lanes the estimate takes none to stand empty while runs wait, so it is "at least".
    """
    rows = [row for row in rows if not is_remote(row["lane"])]  # another machine takes its own time
    history = History(connection)
    expected = [history.of_row(row) for row in rows]
    walk = _Walk(connection, rows, now)
    turns: dict[str, Turn] = {}
    n_lanes = max(len(read.lanes_here(connection)), 1)
    free: list[float] = []
    sure, finish_at = n_lanes == 1, None
    for place, row in enumerate(rows):
        if row["state"] == State.RUNNING:
            known, remaining = _running(row, expected[place], now, left_s, _stood_still_s(connection, row, now))
            known_end = remaining is not None and row["paused_at"] is None  # suspended: it needs user action to go on
            sure = sure and known_end
            end_at = now + (remaining or 0.0)
            finish_at = max(finish_at or end_at, end_at)
            turns[row["run"]] = Turn(row["run"], known, row["started_at"], end_at, True, known_end)
            free.append(end_at + gap_s)
            walk.ended(place)
    free = sorted(free + [now] * (n_lanes - len(free)))[-n_lanes:]
    while (found := walk.next(free[0])) is not None:
        place, start_at = found
        name, takes = rows[place]["run"], expected[place]
        end_at = start_at + (takes.real_s or 0.0)
        finish_at = max(finish_at or end_at, end_at)
        turns[name] = Turn(name, takes, start_at, end_at, sure, sure and takes.real_s is not None)
        sure = turns[name].finish_sure
        heapq.heapreplace(free, end_at + gap_s)
        walk.ended(place)
    for place, row in enumerate(rows):
        turns.setdefault(row["run"], Turn(row["run"], expected[place], None, None))
    return Eta(turns, finish_at, max((finish_at or now) - now, 0.0))


def _stood_still_s(connection: sqlite3.Connection, row: Row, now: float) -> float:
    """Return for how many seconds a running run has been suspended so far."""
    events = "SELECT at, verb FROM job_events WHERE run_id = ? AND verb IN ('suspend', 'continue') ORDER BY id"
    stood_s, since = 0.0, None
    for event in connection.execute(events, [row["run_id"]]):
        if event["verb"] == "suspend":
            since = event["at"]
        elif since is not None:
            stood_s, since = stood_s + max(event["at"] - since, 0.0), None
    return stood_s + (max(now - since, 0.0) if since is not None else 0.0)


def _running(
    row: Row, takes: Expected, now: float, left_s: float | None, stood_s: float
) -> tuple[Expected, float | None]:
    """Return the expected duration of the running run and the time left; None if it should have ended by now."""
    elapsed_s = max(now - (row["started_at"] or row["claimed_at"] or now) - stood_s, 0.0)
    if takes.real_s is not None and takes.real_s > elapsed_s:
        return takes, takes.real_s - elapsed_s
    if left_s is not None:
        return Expected(elapsed_s + left_s, PACE), left_s
    return takes, None


class _Walk:
    """The order in which the worker starts runs: always the first one whose time has come and whose dependencies have
    ended."""

    def __init__(self, connection: sqlite3.Connection, rows: Sequence[Row], now: float) -> None:
        self._rows = rows
        self._left = Counter(row["job_id"] for row in rows)
        self._waits: Counter[int] = Counter()
        self._waiters: defaultdict[int, list[int]] = defaultdict(list)
        waits = "SELECT job_id, on_job_id, condition FROM dependencies"
        for edge in connection.execute(waits):
            if edge["job_id"] in self._left and edge["on_job_id"] in self._left:
                self._waits[edge["job_id"]] += 1
                if edge["condition"] != Condition.FAIL:  # runs that wait for a failure are not expected to run
                    self._waiters[edge["on_job_id"]].append(edge["job_id"])
        self._ready: list[int] = []
        self._later: list[tuple[float, int]] = []
        self._of_job: defaultdict[int, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            if row["state"] == State.QUEUED:
                if self._waits[row["job_id"]]:
                    self._of_job[row["job_id"]].append(place)
                else:
                    self._free(place)

    def _free(self, place: int) -> None:
        heapq.heappush(self._later, (self._rows[place]["not_before_at"] or 0.0, place))

    def next(self, at: float) -> tuple[int, float] | None:
        """Return the index of the run that starts next if the lane is free from `at` on, and when; None if none ever
        does."""
        while True:
            while self._later and self._later[0][0] <= at:
                heapq.heappush(self._ready, heapq.heappop(self._later)[1])
            if self._ready:
                place = heapq.heappop(self._ready)
                if at < (self._rows[place]["deadline_at"] or at + 1):
                    return place, at
            elif self._later:
                at = self._later[0][0]
            else:
                return None

    def ended(self, place: int) -> None:
        """Record the end of a run: jobs that waited for the last run of its job may start."""
        job = self._rows[place]["job_id"]
        self._left[job] -= 1
        if self._left[job]:
            return
        for waiter in self._waiters[job]:
            self._waits[waiter] -= 1
            if not self._waits[waiter]:
                for other in self._of_job.pop(waiter, ()):
                    self._free(other)
