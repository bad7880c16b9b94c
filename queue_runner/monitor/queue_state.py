"""Current state of the queue: whether there is a worker, and what keeps its lane from starting runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from queue_runner import config_file, lanes
from queue_runner.host import locks, processes
from queue_runner.host.run_dir import RunDir
from queue_runner.model import DEFAULT_LANE, Obstacle
from queue_runner.paths import Layout
from queue_runner.store import read

if TYPE_CHECKING:
    from queue_runner.monitor.run_view import RunView


NO_WORKER = "no worker runs this queue"
RESUME = "mpsq resume continues it"


class LaneState(Struct, frozen=True):
    """State of one of several lanes, and the run that has it or the whole machine."""

    name: str
    blocked_reason: str | None
    paused_at: float | None
    paused_reason: str | None
    running: RunView | None = None


class QueueState(Struct, frozen=True):
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


def look(layout: Layout, connection: sqlite3.Connection) -> QueueState:
    """Return the state of the queue according to its locks and its database."""
    alive, pid = locks.worker(layout.home)
    lane = read.lane(connection, DEFAULT_LANE)
    return QueueState(
        alive,
        pid,
        lane.blocked_reason if alive else None,
        lane.paused_at,
        lane.paused_reason,
        _lanes(layout, connection, alive),
        Obstacle(lane.blocked_kind) if alive and lane.blocked_kind else None,
        lane.blocked_for if alive else None,
    )


def _lanes(layout: Layout, connection: sqlite3.Connection, alive: bool) -> list[LaneState]:
    """Return the lanes of this machine, [] where there are none. Without a worker (not `alive`) nothing is blocked."""
    if not lanes.parse(config_file.load(layout.config).lanes):
        return []
    running = {part: run for run in _running(connection) for part in lanes.parts(run.lane)}
    return [
        LaneState(
            lane.name,
            lane.blocked_reason if alive else None,
            lane.paused_at,
            lane.paused_reason,
            running.get(lane.name, running.get(DEFAULT_LANE)),
        )
        for lane in read.lanes_here(connection)
    ]


def _running(connection: sqlite3.Connection) -> list[RunView]:
    from queue_runner.monitor import run_view  # not above: submit looks for a worker, and this costs it 10 %

    return run_view.runs(connection, "state = 'RUNNING'")


def obstacles(layout: Layout, connection: sqlite3.Connection) -> list[str]:
    """Return why no run of this queue starts before a user acts, and what to do: it is paused, no worker runs."""
    sentences = []
    if read.lane(connection, DEFAULT_LANE).paused_at:
        sentences.append(f"the queue is paused; {RESUME}")
    if not locks.worker(layout.home)[0]:
        sentences.append(f"{NO_WORKER}; {locks.START_A_WORKER}")
    return sentences


def history(connection: sqlite3.Connection) -> tuple[Any, ...]:
    """Return a value that changes with the queue, but not with the numbers of a running run."""
    lanes = read.tuples(connection, "SELECT * FROM lanes ORDER BY name").fetchall()
    # not max(id): a job that is deleted takes its events with it
    return read.tuples(connection, "SELECT seq FROM sqlite_sequence WHERE name = 'job_events'").fetchone(), *lanes


class Supervision(Struct, frozen=True):
    """Who looks after a running run, as its folder shows it. `stopped` is the pid of its trainer if a signal stopped
    that, and not mpsq pause."""

    warden: bool = False
    waits_for_exec: bool = False
    stopped: int | None = None


def supervision(folder: RunDir) -> Supervision:
    """Return who looks after the run in this folder."""
    return Supervision(bool(folder.is_supervised()), folder.waits_for_exec(), stopped_trainer(folder))


def stopped_trainer(folder: RunDir) -> int | None:
    """Return the pid of a run's trainer if a signal has stopped it, and not its warden for `mpsq pause --now`."""
    trainer = folder.trainer()
    if trainer is None or not processes.is_stopped(*trainer) or folder.suspended() is not None:
        return None
    return trainer[0]


def idle(layout: Layout, lane: str | None = None) -> bool:
    """Return whether nothing runs, on this lane if one is given: no run is RUNNING, or it has ended and only waits to
    be recorded. A run that has the machine alone uses every lane."""
    with read.reading(layout.db) as connection:
        running = [
            run for run in _running(connection) if lane is None or {lane, DEFAULT_LANE} & {*lanes.parts(run.lane)}
        ]
    alive, _ = locks.worker(layout.home)
    return all(not alive and not RunDir(layout.runs / run.run).is_supervised() for run in running)
