"""Content of `mpsq status`: the worker, the lane, the running run, and the waiting ones in order."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from queue_runner import config
from queue_runner.lanes import is_remote
from queue_runner.model import Row, State
from queue_runner.monitor import blocks, disk_usage, eta, queue_state
from queue_runner.monitor.blocks import Block
from queue_runner.monitor.disk_usage import DiskUse
from queue_runner.monitor.eta import Eta
from queue_runner.monitor.progress import RunProgress, Tracker
from queue_runner.monitor.queue_state import QueueState
from queue_runner.monitor.waiting import Reason, reasons
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir
from queue_runner.store import read

ENDED = 5
"""Number of ended runs shown, the latest."""

_HOOK_NEWS_S = 86400.0
_HOOK_NEWS = 3


@dataclass(frozen=True)
class Hooks:
    """Number of pending hook calls, and the latest calls of the past day that did not end well."""

    pending: int
    running: int
    troubled: Sequence[Row]


@dataclass(frozen=True)
class Status:
    """Status of the queue. `running` and `waiting` are rows of v_run, the latter in queue order; where a run of this
    machine and one of another run, the first is `running`. `reasons` says by run id what each waits for.
    `waiting_count` also counts those that were not read; `eta` is for the running run and the first `expected` waiting
    ones."""

    queue: QueueState
    running: Row | None
    supervised: bool
    waits_for_exec: bool
    stopped: bool
    progress: RunProgress | None
    waiting: Sequence[Row]
    waiting_count: int
    reasons: Mapping[int, Reason]
    ended: Sequence[Row]
    schedules: Sequence[Row]
    hooks: Hooks
    blocks: Sequence[Block]
    disk: DiskUse
    eta: Eta
    expected: int


def read_status(layout: Layout, *, waiting: int = -1) -> Status:
    """Read the current queue, with the first `waiting` of the waiting runs (-1: all).

    Raises: MpsqError if there is no queue to read.
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
    """Do the same as `read_status`, through an open connection, with the tracker of the last look, and with `disk_use`
    instead of a new measurement if it is given."""
    queue = queue_state.look(layout, connection)
    rows = read.queue(connection, max(waiting, eta.EXPECTED) + 1 if waiting >= 0 else -1)
    runs = [row for row in rows if row["state"] == State.RUNNING]
    running = next((row for row in runs if not is_remote(row["lane"])), runs[0] if runs else None)
    elsewhere = running is not None and is_remote(running["lane"])
    folder = RunDir(layout.run_dir(running["run"])) if running is not None else None
    waits = [row for row in rows if row["state"] != State.RUNNING]
    at = tracker.look(connection, running) if running is not None else None
    now, gap_s = time.time(), config.load(layout.config).cooldown_s
    return Status(
        queue,
        running,
        supervised=elsewhere or (folder is not None and queue_state.is_supervised(folder)),
        waits_for_exec=folder is not None and folder.waits_for_exec(),
        stopped=folder is not None and queue_state.stopped_trainer(folder) is not None,
        progress=at,
        waiting=waits[:waiting] if waiting >= 0 else waits,
        waiting_count=read.count_waiting(connection),
        reasons=reasons(connection, queue, rows, now),
        ended=read.ended(connection, ENDED),
        schedules=read.schedules(connection),
        hooks=hooks(connection, now),
        blocks=blocks.look(connection),
        disk=disk_use or disk_usage.look(layout),
        eta=eta.estimate(connection, rows, now, left_s=at.left_s if at else None, gap_s=gap_s),
        expected=len(waits),
    )


def hooks(connection: sqlite3.Connection, now: float) -> Hooks:
    """Return the state of the hooks, and which of their calls need attention."""
    rows = read.hook_calls(connection, "h.at > ? OR h.state IN ('pending', 'running')", [now - _HOOK_NEWS_S])
    states = [row["state"] for row in rows]
    troubled = [row for row in rows if row["state"] in ("failed", "timed_out", "lost")]
    return Hooks(states.count("pending"), states.count("running"), troubled[-_HOOK_NEWS:])


@dataclass(frozen=True)
class Observation:
    """A look that found something. `newest_s` are the times of the newest measured iterations in seconds, the oldest
    first; `turn` grows whenever the queue itself changed: a start, an end, a new job, a worker that came or went."""

    status: Status
    newest_s: tuple[float, ...]
    turn: int
