"""All lanes of a queue: a supervisor for each, and what is done once for all of them.

Without lanes there is one supervisor, of the machine as a whole. With lanes it has the runs that need the machine
alone, and each lane has its own; whose turn it is, is decided here (turns.py). One thread steps them all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from queue_runner import lanes
from queue_runner.config import Config
from queue_runner.errors import MpsqError
from queue_runner.host import lane_list
from queue_runner.lanes import Lane
from queue_runner.model import DEFAULT_LANE, Obstacle, Verb
from queue_runner.paths import Layout
from queue_runner.store import hook_calls, jobs, lane_claims, ready, replacements
from queue_runner.store import schedules as store_schedules
from queue_runner.store.engine import Connection, Engine, looking, writing
from queue_runner.store.jobs import Claimed, Following
from queue_runner.store.lane_claims import Blocked
from queue_runner.submit import grid, schedules
from queue_runner.worker import hooks, turns
from queue_runner.worker.backups import Backups
from queue_runner.worker.needs import Needs
from queue_runner.worker.supervisor import Supervisor
from queue_runner.worker.turns import Turns


class Lanes:
    """The owner of all lanes of one queue. Only the holder of worker.lock may make one."""

    def __init__(self, layout: Layout, config: Config, engine: Engine, log: Callable[[str], None]) -> None:
        self._layout = layout
        self._engine = engine
        self._orders = hooks.orders(config)
        self._backups = Backups(layout, config, log)
        self._log = log
        self._due = schedules.Due(layout, engine, log)
        self._wardens: dict[str, int] = {}
        self._supervisor = partial(Supervisor, layout, config, engine, log, self._wardens)
        self._lanes = {lane.name: lane for lane in _found(config, log)}
        self._needs = Needs(self._lanes.values())
        self._all = {DEFAULT_LANE: self._supervisor(DEFAULT_LANE)}
        self._all |= {lane.name: self._supervisor(lane.name, lane.cores) for lane in self._lanes.values()}
        with writing(engine) as connection:
            lane_claims.keep(connection, self._lanes.keys())
        self._elsewhere: set[str] = set()  # lanes that other queues have, while something waits
        self._awaited = ""  # the lanes for which a run that needs several of them waits
        self._nothing: tuple[object, float, Turns] | None = None  # a look that found nothing, and until when it holds

    def step(self) -> bool:
        """Do what can be done now. Returns whether something goes on. Raises: MpsqError when the store refuses."""
        self._skip_hopeless()
        running = self._running()
        found = {name: self._of(name).warden(run) for name, run in running.items()}
        self._wardens.clear()
        self._wardens.update((name, pid) for name, pid in found.items() if pid is not None)
        for name, one in self._all.items():
            one.look(self._wardens.values(), running=name in running or (name == DEFAULT_LANE and bool(running)))
        busy, failed = self._reap(running)
        taken = turns.taken([_lane_of(running[name]) for name in busy], self._lanes.values())
        if not busy or self._is_one_free(taken) or self._due.is_reading:
            self._due.submit()  # begun here: no run is measured, or one lane rests
        self._back_up(taken)
        started = self._start_beside(busy, taken) if self._lanes else self._start_alone(busy)
        self._forget({*busy, *started, self._awaited})
        if failed is not None:
            raise failed
        return bool(busy or started) or self._due.is_reading

    def stop(self) -> None:
        """Release the lanes that this worker holds, and end what was asked of tools; runs continue under their
        wardens."""
        self._due.close()
        for one in self._all.values():
            one.stop()

    def something_waits(self) -> bool:
        """Return whether a QUEUED run will start some time without user action."""
        with looking(self._engine) as connection:
            return ready.something_waits(
                connection, DEFAULT_LANE, time.time(), self._needs.stuck(connection, self._paused(connection))
            )

    def next_change_at(self) -> float | None:
        """Return the next time (Unix seconds) at which a waiting run may start or misses its deadline, a schedule
        submits, or a gate looks again."""
        with looking(self._engine) as connection:
            now = time.time()
            times = (ready.next_change_at(connection, DEFAULT_LANE, now), store_schedules.next_at(connection, now))
        gates = (one.due for one in self._all.values())
        return min((at for at in (*times, *gates) if at is not None), default=None)

    # -- once for all lanes -------------------------------------------------------------------------------------------

    def _skip_hopeless(self) -> None:
        """End runs that wait for something that can no longer happen, and transitively those that wait for them."""
        while True:
            with looking(self._engine) as connection:
                if not ready.unsatisfiable(connection, time.time()):
                    return
            with writing(self._engine) as connection:
                skipped = ready.unsatisfiable(connection, now := time.time())
                for run_id, ending in skipped:
                    jobs.move(connection, run_id, Verb.SKIP, actor="worker", ending=ending, ended_at=now)
                if skipped:
                    replacements.after_skips(connection, [run_id for run_id, _ in skipped], grid.round_order, now)
                    hook_calls.note_idle(connection, self._orders)

    def _back_up(self, taken: Collection[str]) -> None:
        """Make a backup between two runs, while holding the machine: its I/O must disturb no measurement. Where one
        lane or another is always busy, a backup that is overdue by a whole period is made beside the others' runs."""
        if taken:
            if self._is_one_free(taken) and self._backups.is_due(lambda: True):
                self._backups.make()
        elif self._backups.is_due(self._something_can_start):
            for name in self._lanes:
                self._all[name].close()  # each shares the machine's lock
            if self._all[DEFAULT_LANE].take():
                self._backups.make()
            else:
                self._all[DEFAULT_LANE].close()

    def _reap(self, running: Mapping[str, Claimed]) -> tuple[set[str], Exception | None]:
        """Return the lanes whose run has not ended, and an error that keeps one of them from going on, but no other."""
        busy, failed = set(), None
        for name, run in running.items():
            try:
                if not self._of(name).reap(run):
                    busy.add(name)
            except Exception as error:
                busy.add(name)
                failed = error
        return busy, failed

    def _running(self) -> dict[str, Claimed]:
        with looking(self._engine) as connection:
            found = (jobs.running(connection, name) for name in jobs.here(connection))
            return {run.lane: run for run in found if run is not None}

    def _of(self, name: str) -> Supervisor:
        """Return the supervisor of a lane; several that a run takes together, and one that is gone from the settings,
        get theirs now."""
        return self._all.setdefault(name, self._all.get(name) or self._supervisor(name, self._lane(name).cores))

    def _forget(self, used: Collection[str]) -> None:
        """Let go of supervisors that were made for one run, once it has ended."""
        for name in [name for name in self._all if name not in (DEFAULT_LANE, *self._lanes, *used)]:
            if self._all[name].waits_for is None and not self._all[name].cools:
                self._all.pop(name).stop()

    def _is_one_free(self, taken: Collection[str]) -> bool:
        return DEFAULT_LANE not in taken and not {*taken} >= self._lanes.keys() and bool(self._lanes)

    def _something_can_start(self) -> bool:
        with looking(self._engine) as connection:
            return ready.something_can_start(connection, DEFAULT_LANE, time.time())

    # -- the runs that come next --------------------------------------------------------------------------------------

    def _start_alone(self, busy: Collection[str]) -> set[str]:
        """Start the next run where there are no lanes. Runs on lanes of earlier settings end first."""
        machine = self._all[DEFAULT_LANE]
        if busy:
            return set()
        if not self._something_can_start():
            machine.rest()
            return set()

        def choose() -> Following | None:
            with looking(self._engine) as connection:
                return jobs.following(connection, DEFAULT_LANE, time.time())

        return {DEFAULT_LANE} if machine.start(choose, partial(jobs.claim, lane=DEFAULT_LANE)) else set()

    def _start_beside(self, busy: Collection[str], taken: Collection[str]) -> set[str]:
        """Start what may start on the lanes, or alone."""
        found = self._turns(taken)
        told = self._told(found, {*busy, *found.starts})
        for name, one in self._all.items():
            if name not in busy and name not in found.starts and name != found.awaited:
                one.rest(told.get(name))
        self._awaited = found.awaited
        if self._awaited:
            self._of(self._awaited).wait_in_turn()
        return {name for name, run_id in found.starts.items() if self._start(name, run_id)}

    def _start(self, name: str, run_id: int) -> bool:
        lane = self._lane(name)

        def choose() -> Following:
            with looking(self._engine) as connection:
                return lane_claims.following(connection, run_id, lane)

        return self._of(name).start(choose, partial(lane_claims.claim, lane=lane))

    def _lane(self, name: str) -> Lane:
        cores = {core for part in lanes.parts(name) if part in self._lanes for core in self._lanes[part].cores}
        return Lane(name, tuple(sorted(cores)))

    def _turns(self, busy: Collection[str]) -> Turns:
        taken = {*busy} | turns.parts_of(name for name, one in self._all.items() if one.cools)
        before = {one.waits_for: name for name, one in self._all.items() if one.waits_for is not None}
        with looking(self._engine) as connection:
            self._elsewhere = set()
            if not ready.something_can_start(connection, DEFAULT_LANE, time.time()):
                return Turns()
            self._elsewhere = self._held_elsewhere(taken)
            paused = self._paused(connection)
            mark = jobs.last_event(connection), taken, self._elsewhere, paused
            if self._nothing is not None and self._nothing[0] == mark and time.time() < self._nothing[1]:
                return self._nothing[2]
            found = turns.turns(
                self._needs.asked(connection),
                list(self._lanes),
                busy=taken,
                elsewhere=self._elsewhere,
                paused=paused,
                before=before,
            )
            until = ready.next_change_at(connection, DEFAULT_LANE, time.time())
        self._nothing = None if found.starts else (mark, math.inf if until is None else until, found)
        return found

    def _held_elsewhere(self, taken: Collection[str]) -> set[str]:
        """Return the lanes, not `taken` by runs of this queue, on which another queue is active."""
        ours = turns.parts_of(name for name, one in self._all.items() if one.holds)
        return {name for name in self._lanes if name not in {*taken, *ours} and self._all[name].is_held()}

    def _paused(self, connection: Connection) -> list[str]:
        return [name for name in self._lanes if lane_claims.is_paused(connection, name)]

    def _told(self, found: Turns, busy: Collection[str]) -> dict[str, Blocked]:
        """Return what lanes that start nothing wait for."""
        others_have = dict.fromkeys(self._elsewhere, Blocked("another queue of this machine is running on it"))
        if found.reserved_for is None:
            return others_have
        with looking(self._engine) as connection:
            name = jobs.name_of(connection, found.reserved_for)
        others = ", ".join(map(lanes.short, sorted(busy))) or "other lanes"
        kept = partial(Blocked, kind=Obstacle.RESERVED, run_id=found.reserved_for)
        told = dict.fromkeys(self._lanes, kept(f"kept free for run {name}"))
        return {
            **told,
            **others_have,
            DEFAULT_LANE: kept(f"run {name} needs more than is free: it starts when the runs on {others} have ended"),
        }


def _lane_of(run: Claimed) -> Lane:
    """Return the lane of a run as it was when the run began: the settings may have changed."""
    return Lane(run.lane, lanes.processors(run.spec.affinity) if run.spec.affinity else ())


def _found(config: Config, log: Callable[[str], None]) -> list[Lane]:
    try:
        found, told = lane_list.resolve(config.lanes)
    except MpsqError as error:
        log(f"{error.message} ({error.hint}): one run at a time")
        return []
    for line in told:
        log(line)
    if found:
        log("lanes: " + "; ".join(f"{lane.name} ({lane.words})" for lane in found))
    return found
