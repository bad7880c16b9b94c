"""`mpsq status --watch`: poll the queue without disturbing a measurement.

A look asks SQLite whether anything was committed and the kernel whether the worker's lock is held: microseconds. The
queue is read again only when its history has grown, and of the running run only what is new.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any, NoReturn

from queue_runner.host.low_priority import Wait, descriptor, give_way
from queue_runner.monitor import queue_state, status, status_text
from queue_runner.monitor.progress import Tracker
from queue_runner.monitor.status import Observation, Status
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir
from queue_runner.store import read

POLL_S = 0.5
PROGRESS_S = 1.0
"""Interval at which the running run is read: the worker stores its events about as often."""
ANEW_S = 10.0
"""Interval at which the queue is read even if nothing was committed: some reasons depend on time alone."""
_DISK_S = 180.0
_DUMB = ("dumb", "unknown")
_ON_SCREEN = 60
"""Number of waiting runs read for a screen."""


def watch(layout: Layout, shown: int) -> None:
    """Show the queue until interrupted: as a dashboard on a terminal, else as plain text once per change.

    Raises: MpsqError if there is no queue to read; KeyboardInterrupt; BrokenPipeError when the reader has gone.
    """
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in _DUMB:
        _draw(layout)
    else:
        _print(layout, shown)


def _draw(layout: Layout) -> None:
    from queue_runner.monitor.dashboard import Dashboard

    give_way()
    looks = look_again(layout, _ON_SCREEN)
    first = next(looks)  # report problems of the queue before the screen is taken over
    with _ended_by_signals(), Dashboard() as dashboard:
        dashboard.show(first)
        for seen in looks:
            dashboard.show(seen)
            time.sleep(POLL_S)


def _print(layout: Layout, shown: int) -> None:
    give_way()
    wait = Wait(descriptor(sys.stdout))
    turn = None
    for seen in look_again(layout, shown):
        if seen is not None and seen.turn != turn:
            turn = seen.turn
            print(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{status_text.text(seen.status)}\n", flush=True)
        wait(POLL_S)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let a signal that ends the program restore the terminal first, within this context."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def look_again(layout: Layout, waiting: int, patience_s: float = 30.0) -> Generator[Observation | None]:
    """Yield a look per step; None if there is nothing new to show. Never waits, but `patience_s` seconds for a database
    that is locked. Raises: MpsqError (store)."""
    turn = 0
    while True:
        with read.reading(layout.db, patience_s=patience_s) as connection:
            file = _identity(layout)
            looks = _Looks(layout, connection, waiting, turn)
            while _identity(layout) == file:
                yield looks.look()
            turn = looks.turn  # another database has taken its place: a backup was restored


def _identity(layout: Layout) -> tuple[int, int] | None:
    try:
        found = layout.db.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _Looks:
    """Looks through one connection, without an open transaction between them: a checkpoint never waits for a
    watcher."""

    def __init__(self, layout: Layout, connection: sqlite3.Connection, waiting: int, turn: int) -> None:
        self.turn = turn
        self._layout = layout
        self._connection = connection
        self._waiting = waiting
        self._tracker = Tracker()
        self._status: Status | None = None
        self._mark: tuple[Any, ...] | None = None
        self._committed: tuple[Any, ...] | None = None
        self._read_at = self._progress_at = self._disk_at = float("-inf")

    def look(self) -> Observation | None:
        now = time.monotonic()
        if (committed := self._commits()) != self._committed or now - self._read_at >= ANEW_S:
            self._committed = committed
            mark = (committed[1:], queue_state.history(self._connection))
            if mark != self._mark or now - self._read_at >= ANEW_S:
                self.turn += mark != self._mark
                self._mark = mark
                return self._read(now)
        if self._status is not None and self._status.running is not None and now - self._progress_at >= PROGRESS_S:
            return self._progress(now)
        return None

    def _commits(self) -> tuple[Any, ...]:
        """Return a value that changes whenever anything is committed, or a worker comes or goes."""
        version = self._connection.execute("PRAGMA data_version").fetchone()["data_version"]
        return version, *queue_state.worker(self._layout)

    def _read(self, now: float) -> Observation:
        self._read_at = self._progress_at = now
        read.check_schema(self._connection, self._layout.db)  # another mpsq may have migrated it meanwhile
        use = self._status.disk if self._status is not None and now - self._disk_at < _DISK_S else None
        if use is None:
            self._disk_at = now
        return self._seen(status.look(self._layout, self._connection, self._waiting, self._tracker, use))

    def _progress(self, now: float) -> Observation | None:
        assert self._status is not None and self._status.running is not None
        self._progress_at = now
        rows = read.runs(self._connection, "run_id = ?", [self._status.running["run_id"]])
        if not rows:
            return None
        folder = RunDir(self._layout.run_dir(rows[0]["run"]))
        return self._seen(
            replace(
                self._status,
                running=rows[0],
                supervised=queue_state.is_supervised(folder),
                stopped=queue_state.stopped_trainer(folder) is not None,
                progress=self._tracker.look(self._connection, rows[0]),
            )
        )

    def _seen(self, found: Status) -> Observation:
        self._status = found
        return Observation(found, tuple(self._tracker.newest_s) if found.running is not None else (), self.turn)
