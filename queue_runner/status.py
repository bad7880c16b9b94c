"""What `mpsq status` shows: the worker, the lane, the run on it, and what waits, in order."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import disk, queue_state
from queue_runner.disk import DiskUse
from queue_runner.model import State
from queue_runner.paths import Layout
from queue_runner.progress import Progress, Tracker
from queue_runner.queue_state import QueueState
from queue_runner.rundir import RunDir
from queue_runner.store import read

ENDED = 5
"""How many of the last endings are shown."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Status:
    """`running` and `waiting` are rows of v_run, the waiting ones in the order in which they will start; `waits_for`
    says in a few words why a waiting run (12.3) has not started. `waiting_count` counts those that were not read, too.
    """

    queue: QueueState
    running: Row | None
    supervised: bool
    progress: Progress | None
    waiting: Sequence[Row]
    waiting_count: int
    waits_for: Mapping[str, str]
    ended: Sequence[Row]
    disk: DiskUse


def read_status(layout: Layout, *, waiting: int = -1) -> Status:
    """The queue as it is now, with the first `waiting` of what waits (-1: all).

    Raises: MpsqError where there is no queue to read.
    """
    with read.reading(layout.db) as connection:
        return look(layout, connection, waiting, Tracker())


def look(
    layout: Layout,
    connection: sqlite3.Connection,
    waiting: int,
    tracker: Tracker,
    disk_use: DiskUse | None = None,
) -> Status:
    """As `read_status`, through an open connection, with the tracker of the last look, and its `disk_use` if that is
    good enough."""
    queue = queue_state.look(layout, connection)
    rows = read.queue(connection, waiting + 1 if waiting >= 0 else -1)
    running = next((row for row in rows if row["state"] == State.RUNNING), None)
    waits = [row for row in rows if row["state"] != State.RUNNING]
    return Status(
        queue,
        running,
        supervised=running is not None and is_supervised(layout, running),
        progress=tracker.look(connection, running) if running is not None else None,
        waiting=waits[:waiting] if waiting >= 0 else waits,
        waiting_count=read.count_waiting(connection),
        waits_for=reasons(queue, running, waits if waiting < 0 else waits[:waiting]),
        ended=read.ended(connection, ENDED),
        disk=disk_use or disk.look(layout, [running["run"]] if running is not None else []),
    )


def is_supervised(layout: Layout, row: Row) -> bool:
    """Whether a warden holds this run."""
    return queue_state.is_supervised(RunDir(layout.runs / row["run"]))


def reasons(queue: QueueState, running: Row | None, waiting: Sequence[Row]) -> dict[str, str]:
    """Why each waiting run has not started, in a few words."""
    found: dict[str, str] = {}
    before = running["run"] if running is not None else None
    for row in waiting:
        if row["state"] == State.HELD:
            reason = "its release"
        elif row["blocked_reason"]:
            reason = row["blocked_reason"]
        elif not queue.worker:
            reason = "a worker"
        elif queue.blocked_reason or queue.paused_at:
            reason = "the lane"
        else:
            reason = before or "nothing: next"
        found[row["run"]] = reason
        before = row["run"]
    return found
