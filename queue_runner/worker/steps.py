"""The worker's step: read once (read_now.py), decide (decide.py), act, write once.

Without lanes there is one supervisor, of the machine as a whole. With lanes it has the runs that need the machine
alone, and each lane has its own. One thread steps them all.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial

from queue_runner.config_file import Config
from queue_runner.errors import MpsqError
from queue_runner.host import lane_list, processes
from queue_runner.lanes import Lane
from queue_runner.model import DEFAULT_LANE, Verb
from queue_runner.paths import Layout
from queue_runner.store import jobs, lane_claims, ready
from queue_runner.store.engine import Engine, writing
from queue_runner.store.jobs import Following
from queue_runner.worker import decide, next_round
from queue_runner.worker.backups import Backups
from queue_runner.worker.decide import (
    Action,
    BackUp,
    End,
    FollowRound,
    ReadCode,
    Release,
    Reserve,
    Skip,
    Start,
    SubmitSchedules,
    Sweep,
    Watch,
)
from queue_runner.worker.due import DueSchedules
from queue_runner.worker.now import Clocks, Now, Warden
from queue_runner.worker.read_now import NowReader
from queue_runner.worker.supervisor import Supervisor
from queue_runner.worker.warden_starter import WardenStarter

_CHANGES = Skip | Sweep | End | FollowRound | SubmitSchedules | BackUp
"""Actions after which a step decides again, even if they fail: other work does not wait for them."""


class Steps:
    """The steps of the worker of one queue. Only the holder of worker.lock may make one."""

    def __init__(
        self,
        layout: Layout,
        config: Config,
        engine: Engine,
        log: Callable[[str], None],
        clocks: Clocks | None = None,
    ) -> None:
        self._layout, self._engine, self._log = layout, engine, log
        self._clocks = clocks or Clocks()
        self._due = DueSchedules(layout, engine, log)
        self._backups = Backups(layout, config, log, self._clocks)
        self._wardens: dict[str, int] = {}
        self._starter = WardenStarter(layout.home)
        self._new_supervisor = partial(
            Supervisor, layout, config, engine, log, self._starter, self._wardens, clocks=self._clocks
        )
        lanes = _lanes_of(config, log)
        self._supervisors = {lane.name: self._new_supervisor(lane) for lane in (Lane(DEFAULT_LANE), *lanes)}
        self._permanent = frozenset(self._supervisors)
        self._reader = NowReader(
            layout, config, engine, lanes, self._supervisors, self._supervisor, self._backups, self._clocks
        )
        self.now = Now(self._clocks.wall(), config)
        """what the last step has seen"""
        self._began_at = math.inf
        self.watched: tuple[tuple[Supervisor, int], ...] = ()
        """the runs, each with its warden, where the last step left nothing to do but to watch them"""
        with writing(engine) as connection:
            lane_claims.keep(connection, [lane.name for lane in lanes])

    @property
    def next_change_at(self) -> float | None:
        """The next time (Unix seconds) at which a waiting run may start or misses its deadline, a schedule submits, or
        a gate looks again. A time before the last step does not count."""
        times = (self.now.next_change_at, *(supervisor.due for supervisor in self._supervisors.values()))
        return min((at for at in times if at is not None and at >= self._began_at), default=None)

    def has_news(self) -> bool:
        """Return whether a watched run has written something, or its warden is gone; any thread may ask."""
        return any(watched.has_news() or not processes.exists(warden) for watched, warden in self.watched)

    def step(self) -> bool:
        """Do what can be done now. Return whether something continues. Raises: MpsqError when the store refuses.

        An error on one lane does not keep the others from their step; it is raised afterwards.
        """
        if (now := self._clocks.wall()) < self._began_at:  # at the first step, too: it may have been before that
            self._due.set_right(now)
        self._began_at = now
        done: set[Action] = set()
        started = again = True
        sampled, error = False, None
        while again:
            self.now, following, problem = self._reader.read(frozenset(done), submits_schedule=self._due.is_submitting)
            error = problem or error
            if not sampled:
                self._sample_load()
                sampled = True
            started = again = False
            for action in decide.decide(self.now):
                done.add(action)
                again |= isinstance(action, _CHANGES)
                try:
                    started |= self._act(action, following)
                except Exception as problem:
                    error = problem
        for supervisor in self._supervisors.values():
            supervisor.rest()
        self._starter.rest()
        self._forget({action.lane for action in done if isinstance(action, Start | Reserve)})
        if error is not None:
            raise error  # the same runs stay watched: they have news, so the step is tried again
        self.watched = () if started or self._due.is_submitting else self._as_watched()
        return bool(self.now.running) or started or self._due.is_submitting

    def _as_watched(self) -> tuple[tuple[Supervisor, int], ...]:
        """Return the runs for `has_news`; none unless each just continues."""
        for run in self.now.running:
            if run.warden is not Warden.ALIVE or run.exit is not None or run.lane.name not in self._wardens:
                return ()
        return tuple((self._supervisors[lane], warden) for lane, warden in self._wardens.items())

    def get_ready(self) -> None:
        """Prepare for a start, since a submission has begun; not beside a run, nor for one of several lanes."""
        if not self.now.running and len(self._supervisors) == 1:
            self._supervisors[DEFAULT_LANE].get_ready()
            with contextlib.suppress(OSError):  # the start of the run will report it
                self._starter.get_ready()

    def stop(self) -> None:
        """Release the lanes that this worker holds, and end the tools; runs continue under their wardens."""
        self._due.close()
        for supervisor in self._supervisors.values():
            supervisor.stop()
        self._starter.close()

    def _act(self, action: Action, following: dict[int, Following]) -> bool:
        """Do one thing. Return whether it has started a run."""
        runs = {run.lane.name: run for run in self.now.running}
        match action:
            case Skip():
                self._skip()
            case Watch(lane):
                self._supervisor(lane).watch(runs[lane])
            case ReadCode(lane):
                self._supervisor(lane).read_code()
            case Sweep(lane):
                self._supervisor(lane).sweep(runs[lane])
            case End(lane):
                self._supervisor(lane).end(runs[lane])
            case FollowRound(group_id, repeat):
                next_round.follow(self._layout, self._engine, group_id, repeat, self._clocks.wall(), self._log)
            case SubmitSchedules():
                self._due.submit()
            case BackUp(beside_runs):
                self._back_up(beside_runs)
            case Start(lane, run_id):
                return self._supervisor(lane).start(following[run_id])
            case Reserve(lane):
                self._supervisor(lane).reserve()
            case Release(lane, reason):
                self._supervisor(lane).release(reason)
        return False

    def _skip(self) -> None:
        """End the runs that can never start. Which these are is looked up again: a user may have changed it."""
        with writing(self._engine) as connection:
            now = self._clocks.wall()
            for run_id, ending in ready.unsatisfiable(connection, now):
                jobs.move(connection, run_id, Verb.SKIP, actor="worker", ending=ending, ended_at=now)

    def _back_up(self, beside_runs: bool) -> None:
        if not beside_runs:
            for name, supervisor in self._supervisors.items():
                if name != DEFAULT_LANE:
                    supervisor.close()  # each shares the machine's lock
            if not self._supervisors[DEFAULT_LANE].take():
                self._supervisors[DEFAULT_LANE].close()
                return
        self._backups.make()

    def _sample_load(self) -> None:
        running = {run.lane.name: run for run in self.now.running}
        self._wardens.clear()
        for name, run in running.items():
            pid = self._supervisor(name).warden_pid() or (run.fence and run.fence.warden_pid)
            if isinstance(pid, int):  # one that another worker has started is not below this process
                self._wardens[name] = pid
        for name, supervisor in self._supervisors.items():
            is_running = name in running or (name == DEFAULT_LANE and bool(running))
            supervisor.gate.sample_load(self._wardens.values(), running=is_running)

    def _supervisor(self, name: str) -> Supervisor:
        """Return the supervisor of a lane; several that a run takes together, and one that is gone from the settings,
        get theirs now."""
        if name not in self._supervisors:
            self._supervisors[name] = self._new_supervisor(self._reader.lane(name))
        return self._supervisors[name]

    def _forget(self, in_use: set[str]) -> None:
        """Let go of supervisors that were made for one run, once it has ended."""
        in_use = {*in_use, *self._permanent, *(run.lane.name for run in self.now.running)}
        for name in self._supervisors.keys() - in_use:
            if self._supervisors[name].gate.waits_for is None and not self._supervisors[name].in_cooldown:
                self._supervisors.pop(name).stop()


def _lanes_of(config: Config, log: Callable[[str], None]) -> list[Lane]:
    """Return the lanes of the settings that this machine has."""
    try:
        lanes, remarks = lane_list.resolve(config.lanes)
    except MpsqError as error:
        log(f"{error.with_remedy}: one run at a time")
        return []
    for line in remarks:
        log(line)
    if lanes:
        log("lanes: " + "; ".join(f"{lane.name} ({lane.words})" for lane in lanes))
    return lanes
