"""One poller for `wait`, `logs -f`, `run` and `status --watch`: whether there is anything new, at the cost of a pragma.

Between two polls no transaction is open: a checkpoint never waits for a reader.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import ExitStack
from enum import Enum

from queue_runner.host import locks
from queue_runner.monitor import queue_state
from queue_runner.paths import Layout
from queue_runner.store import read

ANEW_S = 10.0
"""Interval at which the queue counts as changed even if it was not: some reasons depend on time alone."""


class Change(Enum):
    """The part of the store that may have changed since the last poll."""

    NOTHING = "nothing"
    NUMBERS = "numbers"
    """another commit, such as the iterations of a running run"""
    AGE = "age"
    """nothing for ANEW_S seconds"""
    QUEUE = "queue"
    """a job event, a lane, a worker that came or went, or another database in its place"""


class Poller(ExitStack):
    """A read-only connection to the queue, and a poll for changes. A context manager."""

    connection: sqlite3.Connection

    def __init__(self, layout: Layout, patience_s: float = 30.0) -> None:
        """`patience_s` is how long a locked database is waited for."""
        super().__init__()
        self._layout = layout
        self._patience_s = patience_s
        self._file: object = "not opened yet"
        self._commits: object = None
        self._history: object = None
        self._changed_at = float("-inf")

    def poll(self) -> Change:
        """Return what may have changed since the last call; QUEUE the first time. Raises: MpsqError (store)."""
        now = time.monotonic()
        try:
            status = self._layout.db.stat()
            file: object = (status.st_dev, status.st_ino)
        except OSError:
            file = None
        if file != self._file:  # also where a backup was restored
            self.close()
            self.connection = self.enter_context(read.reading(self._layout.db, patience_s=self._patience_s))
            self._file, self._commits, self._history = file, None, None
        commits = (read.value(self.connection, "PRAGMA data_version"), *locks.worker(self._layout.home))
        late = now - self._changed_at >= ANEW_S
        if commits == self._commits and not late:
            return Change.NOTHING
        if commits != self._commits:
            read.check_schema(self.connection, self._layout.db)  # another mpsq may have migrated it
        self._commits = commits
        history = (commits[1:], queue_state.history(self.connection))
        changed = history != self._history
        self._history = history
        if changed or late:
            self._changed_at = now
        return Change.QUEUE if changed else Change.AGE if late else Change.NUMBERS
