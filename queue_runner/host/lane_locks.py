"""The locks of a lane: one for its GPU and each of its processors, and the machine's.

Whose lanes have a processor in common exclude each other by it, however either queue divides the machine.

A run of a lane holds the machine's lock shared, and so do its warden and trainer, which inherit it; a run that needs
the machine alone holds the same lock exclusively, as the workers of every version do. flock grants any shared lock
beside another, and a free one to a queue that has just released it: who waits to be alone therefore holds the .turn
beside it, and no other run starts meanwhile. A run of several lanes waits likewise, with the .turn beside each of their
locks: queues that always keep one of them busy would keep it waiting forever. A worker that dies loses its turn, and
the next one takes it again.

Where a scheduler gave a queue a part of the machine, "machine" means that part: its runs take the locks of its GPUs and
processors, as those of lanes do, and other queues run beside them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from queue_runner import lanes
from queue_runner.host import locks
from queue_runner.host.locks import Lock
from queue_runner.model import DEFAULT_LANE
from queue_runner.times import clock

PART = "MPSQ_PART"
"""Variable of a worker that has a part of the machine: the GPUs and processors of it, as `lanes.units` names them."""
SHARERS_LOOK_S = 0.1
"""How long a try to be alone takes where others share the lock: as long a query may last that looks the same."""


class Hold:
    """The locks of one run, held until closed. The first is the one of its GPU, or first processor."""

    def __init__(self, locks: list[Lock], shared: Lock | None = None) -> None:
        self._own, self._shared = locks, shared

    @property
    def fds(self) -> list[int]:
        """The descriptors to pass on: of the lane's own locks, then of the machine's that is shared."""
        return [lock.fd for lock in (*self._own, *([self._shared] if self._shared else ()))]

    @property
    def shares(self) -> bool:
        """Whether the last descriptor belongs to a shared lock."""
        return self._shared is not None

    def write_holder(self, about: Mapping[str, Any]) -> None:
        """Write into the lane's own locks who holds them. Raises: as Lock.write_holder."""
        for lock in self._own:
            lock.write_holder(about)

    def close(self) -> None:
        """Release our copies. Idempotent."""
        for lock in (*self._own, *([self._shared] if self._shared else ())):
            lock.close()


def part() -> list[str]:
    """Return what this process has of the machine; [] for all of it."""
    return os.environ.get(PART, "").split()


def paths(lane: str, cores: Iterable[int] = ()) -> list[Path]:
    """Return the paths of a lane's own locks, beginning with the one that names its holder."""
    units = (lane == DEFAULT_LANE and part()) or lanes.units(lane, cores)
    return [locks.lane_lock_path(unit) for unit in units]


def runs_of(home: Path) -> list[str]:
    """Return the runs of a queue that hold locks of lanes: also one whose warden has just been started, and one of
    which only a child is left."""
    return [str(note["run"]) for note in _holders(_all_paths()) if note.get("home") == str(home)]


def _all_paths() -> list[Path]:
    return sorted(locks.lock_dir().glob("lane-*.lock"))


def _holders(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield what the locks of these that are held say about the run which took them."""
    for path in paths:
        note = locks.read_holder(path) if locks.is_held(path) else None
        if note is not None and "run" in note:
            yield note


class LaneLocks:
    """The way to the locks of one lane, or of several that one run takes together: all or none. `cores` are the
    processors that its name does not say: those of a GPU."""

    def __init__(self, lane: str, cores: Iterable[int] = ()) -> None:
        self._lane = lane
        self._cores = tuple(cores)
        self._whole = lane == DEFAULT_LANE and not part()
        self._turns: list[Lock] = []

    def take(self) -> Hold | None:
        """Take the locks without waiting; None when one is held. Whoever needs the machine alone, or several lanes,
        keeps its turn until it has them, or `leave`."""
        hold = self._alone() if self._whole else self._beside_others()
        if hold is None:
            self.wait_in_turn()
        else:
            self.leave()
        return hold

    def wait_in_turn(self) -> None:
        """Take the turn, if this is the machine or several lanes and no other process has it: what has the locks goes
        on, and no newcomer gets them, until `take` has succeeded or `leave`."""
        if self._turns or (not self._whole and len(lanes.parts(self._lane)) == 1):
            return
        for path in paths(self._lane, self._cores):
            if (turn := locks.try_lock(locks.turn_of(path), SHARERS_LOOK_S)) is None:
                self.leave()
                return
            self._turns.append(turn)

    @property
    def is_reserved(self) -> bool:
        """Whether this process has the turn."""
        return bool(self._turns)

    def is_shared(self) -> bool:
        """Return whether this is the machine, and at most runs on lanes are in the way."""
        return self._whole and not locks.is_held(locks.lane_lock_path(DEFAULT_LANE))

    def is_held(self) -> bool:
        """Return whether a process holds one of the lane's own locks."""
        return any(map(locks.is_held, paths(self._lane, self._cores)))

    def held_by(self, home: Path) -> str:
        """Return in words what a queue of this user, other than that at `home`, runs here: as far as its lock says."""
        machine = locks.lane_lock_path(DEFAULT_LANE)
        is_alone = self._lane == DEFAULT_LANE
        for note in _holders(_all_paths() if is_alone else [*paths(self._lane, self._cores), machine]):
            if note.get("home") not in (None, str(home)):
                at = note.get("at")
                since = f" since {clock(at)}" if isinstance(at, float) else ""
                return (
                    f"run {note['run']} of your queue in {note['home']} is running{since} (process {note.get('pid')})"
                )
        return "a run of another queue of yours is running"

    def goes_first(self) -> str:
        """Return what another process waits for, before which no run may start here, in words; "" if none does."""
        if locks.is_held(locks.turn_of(locks.lane_lock_path(DEFAULT_LANE))):
            return "the machine alone"
        turns = [] if self._whole else map(locks.turn_of, paths(self._lane, self._cores))
        return "this lane with others" if any(map(locks.is_held, turns)) else ""

    def leave(self) -> None:
        """Give up the turn."""
        for turn in self._turns:
            turn.close()
        self._turns.clear()

    def _alone(self) -> Hold | None:
        lock = locks.try_lock(locks.lane_lock_path(DEFAULT_LANE), SHARERS_LOOK_S)
        return None if lock is None else Hold([lock])

    def _beside_others(self) -> Hold | None:
        shared = locks.try_share(locks.lane_lock_path(DEFAULT_LANE))
        if shared is None:
            return None
        gained: list[Lock] = []
        with contextlib.ExitStack() as unless_complete:
            unless_complete.callback(Hold(gained, shared).close)
            shared.forget_holder()
            for path in paths(self._lane, self._cores):
                if (lock := locks.try_lock(path)) is None:
                    return None
                gained.append(lock)
            unless_complete.pop_all()
        return Hold(gained, shared)
