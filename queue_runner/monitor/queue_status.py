"""Content of `mpsq status`: the worker, the lane, the running run, and the waiting ones in order."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from queue_runner import extensions
from queue_runner.host.run_dir import RunDir
from queue_runner.lanes import is_remote
from queue_runner.model import State
from queue_runner.monitor import eta, group_summary, progress, queue_state, run_view
from queue_runner.monitor.eta import Eta
from queue_runner.monitor.group_summary import GroupProgress
from queue_runner.monitor.progress import RunProgress, Tracker
from queue_runner.monitor.queue_state import QueueState, Supervision
from queue_runner.monitor.run_view import RunView
from queue_runner.monitor.waiting import Reason, reasons
from queue_runner.paths import Layout
from queue_runner.store import read

ENDED = 5
"""Number of ended runs shown, the latest."""


class RunningRun(Struct, frozen=True):
    """The running run: who looks after it, and how far it is."""

    run: RunView
    supervision: Supervision
    progress: RunProgress


class Status(Struct, frozen=True):
    """Status of the queue. `waiting` is in queue order; where a run of this machine and one of another run, the first
    is `running`. `reasons` holds by run id why each waits. `ended` begins with the runs that are to be stored.
    `waiting_count` also counts runs that were not read; `eta` covers the running run and the first `expected` waiting
    ones."""

    queue: QueueState
    running: RunningRun | None
    waiting: Sequence[RunView]
    waiting_count: int
    reasons: Mapping[int, Reason]
    ended: Sequence[RunView]
    schedules: Sequence[read.ScheduleRow]
    blocks: Sequence[read.RemoteLane]
    free_bytes: int | None
    eta: Eta
    expected: int
    preflight_count: int = 0
    """how many of the waiting runs are preflights"""
    groups: Mapping[int, GroupProgress] = field(default_factory=dict)
    """how far the submissions of the waiting runs are"""
    undecided: Mapping[int, str] = field(default_factory=dict)
    """how far each submission with --until is, by its group"""
    added: Sequence[tuple[str, str]] = ()
    """lines of optional packages, each with its name"""

    @property
    def waiting_runs(self) -> int:
        """Number of waiting runs without preflights, as every command counts them."""
        return self.waiting_count - self.preflight_count

    @property
    def goes_on(self) -> bool:
        """Whether the waiting runs start without user action."""
        return self.queue.worker and not self.queue.blocked_reason and not self.queue.paused_at


def read_status(layout: Layout, *, waiting: int = -1) -> Status:
    """Read the current queue, with the first `waiting` of the waiting runs (-1: all).

    Raises: MpsqError if there is no queue to read.
    """
    with read.reading(layout.db) as connection:
        return look(layout, connection, waiting, Tracker())


def look(layout: Layout, connection: sqlite3.Connection, waiting: int, tracker: Tracker) -> Status:
    """Do the same as `read_status`, through an open connection, with the tracker of the last look."""
    queue = queue_state.look(layout, connection)
    runs = run_view.queue(connection, max(waiting, eta.EXPECTED) + 1 if waiting >= 0 else -1)
    active = [run for run in runs if run.state == State.RUNNING and not run.is_unstored]
    first = next((run for run in active if not is_remote(run.lane)), active[0] if active else None)
    running = look_at(layout, connection, first, tracker) if first is not None else None
    waits = [run for run in runs if run.state != State.RUNNING]
    known = {running.run.run: running.progress} if running is not None else {}
    blocks = read.remote_lanes(connection)
    return Status(
        queue,
        running,
        waiting=waits[:waiting] if waiting >= 0 else waits,
        waiting_count=read.count_waiting(connection),
        reasons=reasons(connection, queue, runs, blocks, time.time()),
        ended=[*(run for run in runs if run.is_unstored), *run_view.last_ended(connection, ENDED)],
        schedules=read.schedules(connection),
        blocks=[*blocks.values()],
        free_bytes=_free(layout),
        eta=progress.estimate(layout, connection, runs, known),
        expected=len(waits),
        preflight_count=read.count_preflights(connection),
        groups=group_summary.progress(connection, (run.group_id for run in waits)),
        undecided=group_summary.undecided(connection),
        added=extensions.status_lines(connection),
    )


def look_at(layout: Layout, connection: sqlite3.Connection, run: RunView, tracker: Tracker) -> RunningRun:
    """Return a running run as it is now. Another machine looks after its own runs."""
    supervision = queue_state.supervision(RunDir(layout.run_dir(run.run)))
    if is_remote(run.lane):
        supervision = replace(supervision, warden=True)
    now = tracker.look(connection, run)
    if RunDir(layout.run_dir(run.run)).is_preparing():  # its time begins after that
        now = replace(now, elapsed_s=None)
    return RunningRun(run, supervision, now)


class Observation(Struct, frozen=True):
    """A look that saw a change. `newest_s` are the times of the newest measured iterations in seconds, the oldest
    first; `turn` grows whenever the queue itself changed: a start, an end, a new job, a worker that came or went."""

    status: Status
    newest_s: tuple[float, ...]
    turn: int
    newest_losses: tuple[float, ...] = ()


def _free(layout: Layout) -> int | None:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(layout.home).free
    return None
