"""Attend to a group: pass on what its runs write as they write it, until all have ended, and see that a worker runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from queue_runner import listing, logs, queue_state, units
from queue_runner import wait as waiting
from queue_runner.log_text import Outputs
from queue_runner.model import Selector, State
from queue_runner.paths import Layout
from queue_runner.rundir import RunDir
from queue_runner.store import read
from queue_runner.worker_process import Helper

Row = Mapping[str, Any]

_POLL_S = 0.1


@dataclass
class Attendant:
    """Watches one group. What jobs write goes to `out` and `err`, what there is to say about them to `say`."""

    layout: Layout
    group: int
    say: Callable[[str], None]
    out: TextIO
    err: TextIO
    _told: set[str] = field(default_factory=set)
    _shown: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._helper = Helper(self.layout, self.say)

    def attend(self, *, quiet: bool = False) -> list[Row]:
        """The rows of v_run of the group, once none of them can change any more. `quiet` leaves out what jobs write.

        Raises: MpsqError when no worker can run.
        """
        while True:
            with read.reading(self.layout.db) as connection:
                rows = read.select(connection, [Selector(f"g{self.group}", group=self.group)])
                state = queue_state.look(self.layout, connection)
                ahead = self._ahead(connection, rows)
            row = None if quiet else self._next(rows)
            self._tell_ends(rows, but=row)
            if row is not None:
                self._shown.add(row["run_id"])
                self._follow(row)
                continue
            if not waiting.left(rows):
                return list(rows)
            if state.paused_at is None:
                self._helper.keep()
            self._tell_what_it_waits_for(rows, state, ahead)
            time.sleep(_POLL_S)

    def _next(self, rows: Sequence[Row]) -> Row | None:
        """A run whose log is there and has not been passed on yet, the first that started first."""
        started = [
            row
            for row in rows
            if row["run_id"] not in self._shown and row["claimed_at"] and (self.layout.runs / row["run"]).is_dir()
        ]
        return min(started, key=lambda row: row["claimed_at"], default=None)

    def _follow(self, row: Row) -> None:
        self.say(f"run {row['run']}: {listing.question(listing.run_object(row)) or row['name']}")
        folder = RunDir(self.layout.runs / row["run"])

        out = Outputs(self.out, self.err, raw=False)
        sources = [
            (logs.LogFile(folder.stdout), out.text()),
            (logs.LogFile(folder.stderr), out.text(to_stderr=True)),
        ]
        try:
            while True:
                over = self._is_over(row["run_id"], folder)
                grew = logs.copy(sources)
                if over:
                    return
                if not grew:
                    for _, text in sources:
                        text.pause()
                    time.sleep(_POLL_S)
        finally:
            logs.end(sources)

    def _is_over(self, run_id: int, folder: RunDir) -> bool:
        with read.reading(self.layout.db) as connection:
            (row,) = connection.execute("SELECT state FROM runs WHERE id = ?", [run_id])
        return row["state"] != State.RUNNING or folder.exit() is not None or not folder.path.is_dir()

    def _tell_ends(self, rows: Sequence[Row], but: Row | None) -> None:
        """Say once of each run how it ended; not of those whose log comes first."""
        for row in rows:
            if but is not None and (row["claimed_at"] or 0.0) >= but["claimed_at"]:
                continue
            if row["state"] == State.DONE and row["run_id"] not in self._ended:
                self._ended.add(row["run_id"])
                took = f" after {units.duration(row['real_s'])}" if row["real_s"] is not None else ""
                self.say(f"run {row['run']}{took}: {listing.fate(row)}")

    def _ahead(self, connection: Any, rows: Sequence[Row]) -> list[str]:
        """The runs of others that come before the first of the group."""
        if any(row["state"] == State.RUNNING for row in rows):
            return []
        order = [row for row in read.queue(connection) if row["state"] != State.HELD]
        place = next((k for k, row in enumerate(order) if row["group_id"] == self.group), 0)
        return [row["run"] for row in order[:place]]

    def _tell_what_it_waits_for(self, rows: Sequence[Row], state: queue_state.QueueState, ahead: Sequence[str]) -> None:
        held = waiting.held(rows)
        if state.paused_at is not None:
            self._once("the queue is paused: nothing starts until it is resumed")
        elif state.blocked_reason:
            self._once(f"the lane is blocked: {state.blocked_reason}")
        elif held and len(held) == len(waiting.left(rows)):
            self._once(waiting.held_sentence(held))
        elif ahead:
            one = len(ahead) == 1
            before = f"run {ahead[0]} is" if one else f"{units.count(len(ahead))} runs are"
            self._once("others", f"{before} before it; mpsq status shows the order")

    def _once(self, key: str, sentence: str | None = None) -> None:
        if key not in self._told:
            self._told.add(key)
            self.say(sentence or key)
