"""When the queue will be done, from how long the same questions took before on this machine.

A question that was never asked here is not guessed at: what comes after it is "at least", and the sentence says how
many such runs there are. Everything assumes that the queue goes on now and that what waits for others gets its wish.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from queue_runner import times as when
from queue_runner import units
from queue_runner.model import Condition, State
from queue_runner.monitor.history import ALIKE, PACE, Expected, History, Row
from queue_runner.spec import JobSpec


@dataclass(frozen=True)
class Turn:
    """When one run starts and ends, in Unix seconds. None: not without a hand (held, or behind what is held), or not
    at all as things stand (for the failure of another, or past its deadline). Where it is not sure it may be later:
    a run of unknown length is before it, or it is one itself."""

    run: str
    expected: Expected
    start_at: float | None
    finish_at: float | None
    start_sure: bool = True
    finish_sure: bool = True


@dataclass(frozen=True)
class Eta:
    """The turns of all that has not ended, by run. `finish_at` is None where nothing will run by itself."""

    turns: Mapping[str, Turn] = field(default_factory=dict)
    finish_at: float | None = None
    left_s: float = 0.0

    @cached_property
    def going(self) -> list[Turn]:
        """The turns that come by themselves."""
        return [turn for turn in self.turns.values() if turn.finish_at is not None]

    @cached_property
    def unknown(self) -> int:
        """How many of these are of unknown length."""
        return sum(turn.expected.real_s is None for turn in self.going)

    def sentence(self, now: float, *, going: bool = True) -> str:
        """`about 3 h 20 min, until 06:40`, and how sure that is; empty where nothing will run. Unless the queue is
        `going`, without the time of day."""
        if self.finish_at is None:
            return ""
        n_runs = len(self.going)
        if self.unknown == n_runs:
            which = "it was not" if n_runs == 1 else f"none of these {units.count(n_runs)} runs was"
            return f"not known yet: {which} asked before on this machine"
        sure = all(turn.finish_sure for turn in self.going)
        told = f"{'about' if sure else 'at least'} {units.duration(self.left_s)}"
        told += f", until {when.clock(self.finish_at, now)}" if going else " from its start"
        if self.unknown:
            has = "has" if self.unknown == 1 else "have"
            told += f"; {units.count(self.unknown)} of {units.count(n_runs)} runs {has} no history"
        alike = sum(turn.expected.basis == ALIKE for turn in self.going)
        return told + (f"; {units.count(alike)} of {units.count(n_runs)} by runs that are alike" if alike else "")


def starting(turn: Turn | None, now: float) -> str:
    """`in about 12 min, at 22:40`; empty where that is not known or is now."""
    if turn is None or turn.start_at is None or turn.start_at <= now + 1:
        return ""
    sure = "in about" if turn.start_sure else "at the earliest in"
    return f"{sure} {units.duration(turn.start_at - now)}, at {when.clock(turn.start_at, now)}"


def clock(turn: Turn | None, now: float) -> str:
    """The time of day at which a run starts, for a table: `22:40`, `after 22:40`; "-" where nothing is known of it."""
    soon = turn is not None and turn.start_at is not None and turn.start_at <= now + 1
    if turn is None or turn.start_at is None or (soon and not turn.start_sure):
        return units.MISSING
    told = "now" if soon else when.clock(turn.start_at, now)
    return told if turn.start_sure else f"after {told}"


def estimate(
    connection: sqlite3.Connection, rows: Sequence[Row], now: float, *, left_s: float | None = None, gap_s: float = 0.0
) -> Eta:
    """When each run of the queue starts and ends.

    `rows` are those of read.queue: what has not ended, in its order, the running one first. `left_s` is what the
    running one needs at its own pace, where that is known, and `gap_s` passes between two runs (the cool-down).
    """
    history = History(connection)
    expected = [history.of_row(row) for row in rows]
    walk = _Walk(connection, rows, now)
    turns: dict[str, Turn] = {}
    at, sure, finish_at = now, True, None
    for place, row in enumerate(rows):
        if row["state"] == State.RUNNING:
            known, remaining = _running(row, expected[place], now, left_s, _stood_still_s(connection, row, now))
            sure = remaining is not None and row["paused_at"] is None  # suspended: it needs a hand to go on
            finish_at = now + (remaining or 0.0)
            turns[row["run"]] = Turn(row["run"], known, row["started_at"], finish_at, True, sure)
            at = finish_at + gap_s
            walk.ended(place)
    while (found := walk.next(at)) is not None:
        place, start_at = found
        name, takes = rows[place]["run"], expected[place]
        finish_at = start_at + (takes.real_s or 0.0)
        turns[name] = Turn(name, takes, start_at, finish_at, sure, sure and takes.real_s is not None)
        sure = turns[name].finish_sure
        at = finish_at + gap_s
        walk.ended(place)
    for place, row in enumerate(rows):
        turns.setdefault(row["run"], Turn(row["run"], expected[place], None, None))
    return Eta(turns, finish_at, max((finish_at or now) - now, 0.0))


def of_plan(history: History, specs: Sequence[tuple[JobSpec, int]], gap_s: float = 0.0) -> tuple[float, int, int]:
    """Seconds that new runs take one after the other, how many of them are of unknown length, and how many are
    estimated by others that are alike. `specs` are questions with their repeats."""
    total, unknown, alike, n_runs = 0.0, 0, 0, 0
    for spec, repeats in specs:
        takes = history.expected(spec)
        n_runs += repeats
        if takes.real_s is None:
            unknown += repeats
        else:
            total += takes.real_s * repeats
            alike += repeats * (takes.basis == ALIKE)
    return total + gap_s * max(n_runs - 1, 0), unknown, alike


def _stood_still_s(connection: sqlite3.Connection, row: Row, now: float) -> float:
    """How long a running run has been suspended so far."""
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
    """What the running run is expected to take, and what of it is left; None where it should have ended by now."""
    elapsed_s = max(now - (row["started_at"] or row["claimed_at"] or now) - stood_s, 0.0)
    if takes.real_s is not None and takes.real_s > elapsed_s:
        return takes, takes.real_s - elapsed_s
    if left_s is not None:
        return Expected(elapsed_s + left_s, PACE), left_s
    return takes, None


class _Walk:
    """The order in which runs start, as the worker takes them: the first of those whose time has come and whose
    dependencies have ended."""

    def __init__(self, connection: sqlite3.Connection, rows: Sequence[Row], now: float) -> None:
        self._rows = rows
        self._left: dict[int, int] = {}
        for row in rows:
            self._left[row["job_id"]] = self._left.get(row["job_id"], 0) + 1
        self._waits: dict[int, int] = {}
        self._waiters: dict[int, list[int]] = {}
        for edge in connection.execute("SELECT job_id, on_job_id, condition FROM dependencies"):
            if edge["job_id"] in self._left and edge["on_job_id"] in self._left:
                self._waits[edge["job_id"]] = self._waits.get(edge["job_id"], 0) + 1
                if edge["condition"] != Condition.FAIL:  # what waits for a failure is not expected to run
                    self._waiters.setdefault(edge["on_job_id"], []).append(edge["job_id"])
        self._ready: list[int] = []
        self._later: list[tuple[float, int]] = []
        self._of_job: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            if row["state"] == State.QUEUED:
                if self._waits.get(row["job_id"]):
                    self._of_job.setdefault(row["job_id"], []).append(place)
                else:
                    self._free(place)

    def _free(self, place: int) -> None:
        heapq.heappush(self._later, (self._rows[place]["not_before_at"] or 0.0, place))

    def next(self, at: float) -> tuple[int, float] | None:
        """The place of the run that starts next and when, if nothing runs from `at` on; None: none ever does."""
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
        """A run has ended: what waited for the last of its job may go on."""
        job = self._rows[place]["job_id"]
        self._left[job] -= 1
        if self._left[job]:
            return
        for waiter in self._waiters.get(job, ()):
            self._waits[waiter] -= 1
            if not self._waits[waiter]:
                for other in self._of_job.pop(waiter, ()):
                    self._free(other)
