"""Current state of the queue: whether there is a worker, and what keeps its lane from starting runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import config, lanes
from queue_runner.host import locks, processes
from queue_runner.model import DEFAULT_LANE, Obstacle, Row
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir
from queue_runner.store import read

START_A_WORKER = "start one: mpsq worker, or mpsq service install"


@dataclass(frozen=True)
class LaneState:
    """State of one of several lanes, and the run that has it, or has the machine alone: its row of v_run."""

    name: str
    blocked_reason: str | None
    paused_at: float | None
    paused_reason: str | None
    running: Row | None = None


@dataclass(frozen=True)
class QueueState:
    """State of the queue. `worker_pid` is None if no worker runs, or if its lock does not contain it. `lanes` is empty
    where one run at a time has the machine. `blocked_for` is the id of the run for which lanes are kept free."""

    worker: bool
    worker_pid: int | None
    blocked_reason: str | None
    paused_at: float | None
    paused_reason: str | None = None
    lanes: Sequence[LaneState] = ()
    blocked_kind: Obstacle | None = None
    blocked_for: int | None = None


def worker(layout: Layout) -> tuple[bool, int | None]:
    """Return whether a worker holds this queue, and its process id if its lock contains it."""
    path = locks.worker_lock_path(layout.home)
    if not locks.is_held(path):
        return False, None
    pid = (locks.read_holder(path) or {}).get("pid")
    return True, pid if isinstance(pid, int) else None


def look(layout: Layout, connection: sqlite3.Connection) -> QueueState:
    """Return the state of the queue according to its locks and its database."""
    alive, pid = worker(layout)
    lane = read.lane(connection, DEFAULT_LANE)
    known = (lane["blocked_reason"], lane["blocked_kind"], lane["blocked_for"]) if alive else (None, None, None)
    reason, kind, run_id = known
    return QueueState(
        alive,
        pid,
        reason,
        lane["paused_at"],
        lane["paused_reason"],
        lanes_of(layout, connection, alive),
        Obstacle(kind) if kind else None,
        run_id,
    )


def lanes_of(layout: Layout, connection: sqlite3.Connection, alive: bool = True) -> list[LaneState]:
    """Return the lanes of this machine, [] where there are none. Without a worker (not `alive`) nothing is blocked."""
    if not lanes.parse(config.load(layout.config).lanes):
        return []
    runs = read.runs(connection, "state = 'RUNNING'")
    on = {part: row for row in runs for part in lanes.parts(row["lane"])}
    return [
        LaneState(
            row["name"],
            row["blocked_reason"] if alive else None,
            row["paused_at"],
            row["paused_reason"],
            on.get(row["name"], on.get(DEFAULT_LANE)),
        )
        for row in read.lanes_here(connection)
    ]


def history(connection: sqlite3.Connection) -> tuple[Any, ...]:
    """Return a value that changes with the queue, but not with the numbers of a running run."""
    last = connection.execute("SELECT max(id) AS id FROM job_events").fetchone()["id"]
    return last, *(tuple(lane.values()) for lane in connection.execute("SELECT * FROM lanes ORDER BY name"))


def is_supervised(folder: RunDir) -> bool:
    """Return whether a warden holds this run."""
    return folder.warden_lock.exists() and locks.is_held(folder.warden_lock)


def stopped_trainer(folder: RunDir) -> int | None:
    """Return the pid of a run's trainer if a signal has stopped it, and not its warden for `mpsq pause --now`."""
    trainer = folder.trainer()
    if trainer is None or not processes.is_stopped(*trainer) or folder.suspended() is not None:
        return None
    return trainer[0]


def idle(layout: Layout, lane: str | None = None) -> bool:
    """Return whether nothing runs, on this lane if one is given, which a run that has the machine alone uses, too: no
    run is RUNNING, or the one that is has ended and only waits to be recorded."""
    with read.reading(layout.db) as connection:
        running = read.runs(connection, "state = 'RUNNING'")
    running = [row for row in running if lane is None or {lane, DEFAULT_LANE} & {*lanes.parts(row["lane"])}]
    alive, _ = worker(layout)
    return all(not alive and not is_supervised(RunDir(layout.runs / row["run"])) for row in running)
