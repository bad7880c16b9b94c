"""Read everything that a step depends on: the database in one transaction, then the lane locks and the run folders.

The order protects from stale facts. The store is read first, since a request is committed before it is left in a
folder. Of each run the warden's lock comes first, then the lane's, then the records: what the folder contains once
this worker has the lane is final.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import lanes
from queue_runner.config_file import Config
from queue_runner.host import processes
from queue_runner.host.run_dir import RunDir
from queue_runner.lanes import Lane
from queue_runner.model import DEFAULT_LANE
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec
from queue_runner.store import added_rounds, jobs, lane_claims, read, ready, schedules
from queue_runner.store.engine import Connection, Engine, looking
from queue_runner.store.history import History
from queue_runner.store.jobs import Following
from queue_runner.worker import decide
from queue_runner.worker.backups import Backups
from queue_runner.worker.now import ActiveRun, Candidate, Clocks, Now, Warden
from queue_runner.worker.supervisor import Supervisor

_REMEMBERED = 100_000
_MOST_TIMED = 100
"""Runs behind one that needs the machine which are looked at: each may overtake it if it is short enough."""
OUTLOOK_S = 600.0
"""How long an outlook is used at most: with 10,000 waiting runs it takes longer than all else that a step reads."""


class _Outlook(Struct, frozen=True):
    """The changes that waiting alone brings, as known `at` a time in a `state` of the queue: when the next one comes
    (Unix seconds; None: never), and which runs can never start."""

    state: object
    at: float
    next_change_at: float | None
    impossible: tuple[int, ...]

    def holds(self, state: object, at: float) -> bool:
        """Return whether it is still so."""
        until = self.at + OUTLOOK_S if self.next_change_at is None else min(self.next_change_at, self.at + OUTLOOK_S)
        return self.state == state and self.at <= at < until


class NowReader:
    """A reader of one queue and the lanes of its machine. It remembers needs of jobs, and when nothing could start."""

    def __init__(
        self,
        layout: Layout,
        config: Config,
        engine: Engine,
        lanes_: Sequence[Lane],
        supervisors: Mapping[str, Supervisor],
        supervisor_of: Callable[[str], Supervisor],
        backups: Backups,
        clocks: Clocks,
    ) -> None:
        self._layout, self._config, self._engine, self._clocks = layout, config, engine, clocks
        self._lanes = {lane.name: lane for lane in lanes_}
        self._supervisors, self._supervisor_of = supervisors, supervisor_of
        self._backups = backups
        self._needs: dict[int, tuple[str, int]] = {}  # of a job: the kind of its lanes and their number
        self._outlook: _Outlook | None = None
        self._blocked: tuple[object, float, tuple[Candidate, ...]] | None = None  # nothing could start, and until when

    def read(
        self, done: frozenset[object] = frozenset(), *, submits_schedule: bool = False
    ) -> tuple[Now, dict[int, Following], Exception | None]:
        """Return the current state, the runs that may be started as they will run, and an error that concerns one lane.

        Raises: MpsqError when the store cannot be read.
        """
        at = self._clocks.wall()
        with looking(self._engine) as connection:
            active = lane_claims.active(connection)
            here = [_lane_of(run) for run in active]
            last_event = jobs.last_event(connection)
            state = last_event, tuple(added_rounds.open_groups(connection))
            outlook = self._look_ahead(connection, state, at)
            changes = (outlook.next_change_at, schedules.next_at(connection, at))
            now = Now(
                at,
                self._config,
                ended_rounds=tuple(added_rounds.ended(connection)),
                impossible=outlook.impossible,
                lanes=tuple(self._lanes.values()),
                states={name: supervisor.state() for name, supervisor in self._supervisors.items()},
                paused=frozenset(lane_claims.paused(connection)) & self._lanes.keys(),
                schedule_is_due=bool(schedules.commands(connection, due_at=at)),
                submits_schedule=submits_schedule,
                backup_overdue_s=self._backups.overdue_s(),
                next_change_at=min((change for change in changes if change is not None), default=None),
                last_event=last_event,
                done=done,
            )
            busy = decide.taken(here, now.lanes)
            following: dict[int, Following] = {}
            if DEFAULT_LANE not in busy and not now.impossible:
                now, following = self._with_candidates(connection, now, state, active, busy)
            if not active:
                stuck = self._stuck(connection, now)
                waits = bool(now.ended_rounds) or ready.something_waits(connection, DEFAULT_LANE, at, stuck)
                now = replace(now, stuck=stuck, something_waits=waits)
        running, error = [], None
        for row, lane in zip(active, here, strict=True):
            try:
                running.append(self._look_at(row, lane))
            except Exception as problem:  # of this lane: the others continue
                error = problem
                running.append(ActiveRun(row.claimed, lane, self._folder(row), Warden.STARTING))
        return replace(now, running=tuple(running)), following, error

    def _look_ahead(self, connection: Connection, state: object, at: float) -> _Outlook:
        state = state, tuple(ready.budgets(connection))  # a budget begins when a run starts, without an event
        if self._outlook is None or not self._outlook.holds(state, at):
            impossible = tuple(run_id for run_id, _ in ready.unsatisfiable(connection, at))
            self._outlook = _Outlook(state, at, ready.next_change_at(connection, at), impossible)
        return self._outlook

    # -- the runs that come next --------------------------------------------------------------------------------------

    def _with_candidates(
        self, connection: Connection, now: Now, state: object, active: Sequence[lane_claims.Active], busy: set[str]
    ) -> tuple[Now, dict[int, Following]]:
        candidates = self._candidates(connection, now.at)
        first = next(candidates, None)
        if first is None:
            return now, {}
        disk = next(folder for folder in (self._layout.runs, *self._layout.runs.parents) if folder.exists())
        elsewhere = self._held_elsewhere(now, busy)
        states = {name: replace(state, held_elsewhere=elsewhere.get(name, "")) for name, state in now.states.items()}
        now = replace(now, states=states, disk=disk, free_bytes=shutil.disk_usage(disk).free)
        cooling = {name for name, state in states.items() if state.cools}
        mark = state, busy, now.paused, elsewhere, cooling
        if self._blocked is not None and self._blocked[0] == mark and now.at < self._blocked[1]:
            return replace(now, candidates=self._blocked[2]), {}
        consumed = [first]

        def as_far_as_needed() -> Iterator[Candidate]:
            yield first
            for run in self._timed(connection, active, first, candidates, now.at):
                consumed.append(run)
                yield run

        chosen = decide.plan(now, busy, as_far_as_needed())
        until = math.inf if now.next_change_at is None else now.next_change_at
        self._blocked = None if chosen.starts else (mark, until, tuple(consumed))
        following = {
            run.run_id: lane_claims.following(connection, run.run_id, self.lane(name))
            for name, run in chosen.starts.items()
        }
        return replace(now, candidates=tuple(consumed)), following

    def _timed(
        self,
        connection: Connection,
        active: Sequence[lane_claims.Active],
        first: Candidate,
        candidates: Iterator[Candidate],
        at: float,
    ) -> Iterator[Candidate]:
        """Yield the candidates after the first. At most _MOST_TIMED of those behind one that needs the machine are
        marked if they may overtake it: they are expected to end while it still waits for earlier runs."""
        earlier = [first]
        for run in candidates:
            yield run
            if decide.needs_machine(run, run.lane, [*self._lanes]):
                break
            earlier.append(run)
        if not (later := list(islice(candidates, _MOST_TIMED))):
            return
        expected_s: dict[int, float | None] = {}
        with read.reading(self._layout.db) as reader:
            history = History(reader)
            for job in {run.name.job for run in (*earlier, *later)} | {row.claimed.id.job for row in active}:
                expected_s[job] = history.expected(self._as_placed(jobs.spec_of(connection, job))).real_s
        busy_s = dict.fromkeys((row.claimed.lane for row in active), 0.0)
        for row in active:
            took_s = max(0.0, at - (row.started_at or at))
            busy_s[row.claimed.lane] += max(0.0, (expected_s[row.claimed.id.job] or 0.0) - took_s)
        for run in earlier:
            if run.lane:
                busy_s[run.lane] = busy_s.get(run.lane, 0.0) + (expected_s[run.name.job] or 0.0)
        starts_in_s = max(busy_s.values(), default=0.0)
        for run in later:
            takes_s = expected_s[run.name.job]
            yield replace(run, may_overtake=takes_s is not None and takes_s <= starts_in_s)

    def _as_placed(self, spec: JobSpec) -> JobSpec:
        """Return a job as it would run on lanes here: the number of processors of its lane is part of its question."""
        fitting = [lane.name for lane in self._lanes.values() if lane.kind == lanes.needs(spec)]
        name = spec.lane or ",".join(sorted(fitting)[: spec.gpus])
        return lanes.placed(spec, self.lane(name)) if name else spec

    def lane(self, name: str) -> Lane:
        """Return the lane of this name, or several that one run takes together."""
        cores = {core for part in lanes.parts(name) if part in self._lanes for core in self._lanes[part].cores}
        return Lane(name, tuple(sorted(cores)))

    def _held_elsewhere(self, now: Now, busy: set[str]) -> dict[str, str]:
        """Return what another queue runs on lanes that are not `busy` with runs of this queue, in words."""
        ours = busy | decide.parts_of(lane for lane, state in now.states.items() if state.held or state.cools)
        here = {lane: self._supervisors[lane] for lane in self._lanes if lane not in ours}
        return {lane: held for lane, supervisor in here.items() if (held := supervisor.held_elsewhere())}

    def _candidates(self, connection: Connection, at: float) -> Iterator[Candidate]:
        """Return the runs that may start, in the order in which they are claimed."""
        began_alone: dict[int, bool] = {}
        for run in lane_claims.waiting(connection, at):
            if run.job not in self._needs:
                if len(self._needs) > _REMEMBERED:
                    self._needs.clear()
                spec = jobs.spec_of(connection, run.job)
                self._needs[run.job] = lanes.needs(spec), spec.gpus
            kind, gpus = self._needs[run.job]
            lane = "" if run.lane == DEFAULT_LANE else run.lane
            if kind and not lane and self._lanes:
                if run.group not in began_alone:
                    began_alone[run.group] = self._began_alone(connection, run.group)
                kind = "" if began_alone[run.group] else kind
            yield Candidate(run.run_id, run.name, run.group, kind, gpus, lane)

    def _began_alone(self, connection: Connection, group: int) -> bool:
        """Return whether runs of the group that would now get a lane have started without one: then the others do so,
        too."""
        kinds = {lane.kind for lane in self._lanes.values()}
        return any(lanes.needs(spec) in kinds for spec in lane_claims.began_alone(connection, group))

    def _stuck(self, connection: Connection, now: Now) -> frozenset[int]:
        candidates = self._candidates(connection, now.at) if now.paused else ()
        return frozenset(decide.stuck(candidates, [*self._lanes], now.paused))

    # -- the current runs ---------------------------------------------------------------------------------------------

    def _folder(self, row: lane_claims.Active) -> RunDir:
        return RunDir(self._layout.run_dir(row.claimed.id))

    def _look_at(self, row: lane_claims.Active, lane: Lane) -> ActiveRun:
        """Return the state of a run and of its warden. Takes the lane if the warden is gone."""
        supervisor, folder = self._supervisor_of(lane.name), self._folder(row)
        run = ActiveRun(
            row.claimed,
            lane,
            folder,
            Warden.STARTING,
            row.started_at is not None,
            row.cancel_requested,
            row.suspend_requested,
        )
        if supervisor.reads_code(row.claimed.run_id):
            return replace(run, reads_code=True)
        folder.repair()
        exit_ = folder.exit()
        is_alive = supervisor.warden_pid() is not None or folder.is_supervised() is True
        # A warden that has stored the end releases the lane, rings, and only then exits.
        warden = None
        if (exit_ is not None or not is_alive) and supervisor.take():
            warden = Warden.GONE
            exit_ = exit_ or folder.exit()
        elif is_alive:
            warden = Warden.ALIVE
        run = replace(run, fence=folder.started(), exit=exit_)
        return replace(run, warden=warden or _without_lock(run))


def _without_lock(run: ActiveRun) -> Warden:
    """Return the state of a warden whose lock was free while somebody held the lane.

    It takes its lock before it writes the fence, so the lock is checked once more. If the job has damaged the lock, the
    fence identifies the warden; if it has removed both, a fence that was seen earlier counts.
    """
    if run.fence is None:
        return Warden.KILLED if run.was_started else Warden.STARTING
    pid, start = run.fence.warden_pid, run.fence.warden_start
    is_there = pid is not None and start is not None and processes.is_running(pid, start)
    return Warden.KILLED if run.folder.is_supervised() is False and not is_there else Warden.ALIVE


def _lane_of(row: lane_claims.Active) -> Lane:
    """Return the lane of a run as it was when the run began: the settings may have changed."""
    affinity = row.claimed.spec.affinity
    return Lane(row.claimed.lane, lanes.processors(affinity) if affinity else ())
