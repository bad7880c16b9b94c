"""What the worker knows in one step: read once (read_now.py), never changed, and all that decide.py looks at."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum, auto
from pathlib import Path

from msgspec import Struct, field

from queue_runner.config_file import Config
from queue_runner.host.run_dir import RunDir
from queue_runner.host.warden_records import Fence, RunEnd
from queue_runner.lanes import Lane
from queue_runner.model import RunId
from queue_runner.store.jobs import Claimed
from queue_runner.store.lane_claims import Blocked


class Clocks(Struct, frozen=True):
    """The clocks of the worker, in seconds: users can set `wall` (Unix time), while `steady` never jumps."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic


class Warden(Enum):
    """The state of the warden of a run that is RUNNING in the database."""

    ALIVE = auto()
    """It is alive, or its lock is held."""
    STARTING = auto()
    """There is no sign of it, but somebody holds the lane: it may be starting."""
    KILLED = auto()
    """It wrote the fence and is gone, but somebody still holds the lane."""
    GONE = auto()
    """This worker has taken the lane: there is none, and the run's folder is final."""


class ActiveRun(Struct, frozen=True):
    """A run that is RUNNING in the database, and what its folder contains.

    `fence` and `exit` are the warden's records of the start and of the end; None where there is none. `was_started`
    is whether a worker has ever seen the fence. `reads_code`: its code is still being read, so that it has no warden.
    """

    claimed: Claimed
    lane: Lane
    folder: RunDir
    warden: Warden
    was_started: bool = False
    cancel_requested: bool = False
    suspend_requested: bool = False
    reads_code: bool = False
    fence: Fence | None = None
    exit: RunEnd | None = None


class Candidate(Struct, frozen=True):
    """A run that may start. `kind` is the kind of its lanes, "" for one that runs alone; `lane` is the lane that its
    submission is bound to, "" if to none. `may_overtake`: it is expected to end before an earlier one that needs the
    machine could start."""

    run_id: int
    name: RunId
    group: int
    kind: str
    gpus: int = 1
    lane: str = ""
    may_overtake: bool = False


class LaneNow(Struct, frozen=True):
    """The state of one lane.

    - held: this worker holds its locks, and no run does
    - held_elsewhere: what another queue runs that holds one of its locks, in words
    - cools: nothing may start, because its last run has just ended or the machine has refused to start one
    - reserved: this worker keeps other queues from starting runs on it
    - waiting_run: the run that waits at its gate
    - blocked: the stored reason why nothing starts
    """

    held: bool = False
    held_elsewhere: str = ""
    cools: bool = False
    reserved: bool = False
    waiting_run: int | None = None
    blocked: Blocked | None = None


class Now(Struct, frozen=True):
    """One look at everything that a step depends on.

    - at: the time of the read (Unix seconds)
    - running: the runs that are RUNNING on this machine
    - ended_rounds: the open submissions of which no run waits or runs, each with its newest round
    - impossible: the runs that wait for something that can no longer happen
    - candidates: the runs that may start, in the order of the queue, as far as a decision depends on them
    - lanes, states: the lanes of the settings, and the state of each lane and of the machine as a whole
    - paused: the lanes that a user has paused
    - disk, free_bytes: the folder of the runs and the free space on its disk; None while nothing waits
    - backup_overdue_s: seconds since a backup was due; None if none is
    - next_change_at: when waiting alone changes which runs may start (Unix seconds)
    - stuck: the jobs that may start but wait for a user to resume a lane
    - something_waits: whether a queued run will start some time without user action; neither is known while one runs
    - last_event: a number that grows with every entry of the history
    - done: the actions of this step so far
    """

    at: float
    config: Config
    running: tuple[ActiveRun, ...] = ()
    ended_rounds: tuple[tuple[int, int], ...] = ()
    impossible: tuple[int, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    lanes: tuple[Lane, ...] = ()
    states: Mapping[str, LaneNow] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()
    disk: Path | None = None
    free_bytes: int | None = None
    schedule_is_due: bool = False
    submits_schedule: bool = False
    backup_overdue_s: float | None = None
    next_change_at: float | None = None
    stuck: frozenset[int] = frozenset()
    something_waits: bool = False
    last_event: int = 0
    done: frozenset[object] = frozenset()
