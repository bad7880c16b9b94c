"""Queries of a follower while none of its runs is running: the state of its runs, and what they wait for.

Another run may be measured meanwhile, and its numbers are stored every second: the queue is read again only after a
change that affects its order - a job event, the lane, a worker.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from queue_runner.model import DEFAULT_LANE, Selector, State, parse_selector
from queue_runner.monitor import queue_state
from queue_runner.monitor import why as explaining
from queue_runner.monitor.logs import Row
from queue_runner.monitor.why import Why
from queue_runner.paths import Layout
from queue_runner.store import read

_ANEW_S = 10.0
"""Interval at which the queue is read even if nothing changed: some reasons depend on time alone."""


class Looks:
    """A reader of the runs of a selector."""

    def __init__(self, layout: Layout, selector: Selector) -> None:
        self._layout = layout
        self._selector = selector
        self._stamp: object = None
        self._mark: object = None
        self._read_at = float("-inf")
        self._why: Why | None = None

    def read(self) -> Sequence[Row]:
        """Return the rows of v_run of all selected runs. Raises: UsageError, MpsqError (store)."""
        with read.reading(self._layout.db) as connection:
            self._mark = self._look_closer(connection)
            self._read_at, self._why = time.monotonic(), None
            return read.select(connection, [self._selector])

    def look(self) -> Sequence[Row] | None:
        """Return the rows if they may have changed, None if nothing happened. Raises: MpsqError (store)."""
        stamp = (read.stamp(self._layout.db), queue_state.worker(self._layout))
        late = time.monotonic() - self._read_at >= _ANEW_S
        if stamp == self._stamp and not late:
            return None
        self._stamp = stamp
        with read.reading(self._layout.db) as connection:
            mark = self._look_closer(connection)
        return self.read() if late or mark != self._mark else None

    def why(self, left: Sequence[Row]) -> Why:
        """Return what the first of these waiting runs waits for, as of when the rows were read."""
        if self._why is None:
            row = min(left, key=lambda row: (row["state"] == State.HELD, -row["priority"], row["position"]))
            with read.reading(self._layout.db) as connection:
                self._why = explaining.explain_all(self._layout, connection, [parse_selector(row["run"])])[0]
        return self._why

    def _look_closer(self, connection: sqlite3.Connection) -> tuple[Any, ...]:
        last = connection.execute("SELECT max(id) AS id FROM job_events").fetchone()["id"]
        return last, queue_state.worker(self._layout), *read.lane(connection, DEFAULT_LANE).values()
