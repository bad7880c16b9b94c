"""What the worker does next: a pure function of one `Now`. Nothing in here reads a file, a clock or the database.

Runs are considered in the order of the queue. One whose submission is bound to a busy lane lets later ones start first
on other lanes. A run that needs more than is free (the machine alone, or several lanes at once) and has no earlier one
to wait for reserves: what it needs is kept free until it starts. While one that needs the machine waits for earlier
runs, only those overtake it that are expected to end before it could start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from queue_runner import units
from queue_runner.lanes import Lane, kind, parts, short
from queue_runner.model import DEFAULT_LANE, Obstacle
from queue_runner.store.lane_claims import Blocked
from queue_runner.worker.now import ActiveRun, Candidate, LaneNow, Now, Warden


class Skip(Struct, frozen=True):
    """End runs that can never start."""

    run_ids: tuple[int, ...]


class OnLane(Struct, frozen=True):
    """Do something on this lane."""

    lane: str


class Watch(OnLane, frozen=True):
    """Ingest what the run on this lane has written, and sample the machine."""


class ReadCode(OnLane, frozen=True):
    """Continue the start of the run on this lane, whose code is still being read."""


class Sweep(OnLane, frozen=True):
    """End the processes of a run whose warden was killed: they still hold the lane."""


class End(OnLane, frozen=True):
    """Store how the run on this lane ended. This worker holds the lane."""


class FollowRound(Struct, frozen=True):
    """Add a round to an open submission whose newest round, `repeat`, has ended, or close it."""

    group_id: int
    repeat: int


class SubmitSchedules(Struct, frozen=True):
    """Submit the schedules that are due."""


class BackUp(Struct, frozen=True):
    """Make a backup: while holding the machine, or, if it is long overdue, `beside_runs` of other lanes."""

    beside_runs: bool


class Start(OnLane, frozen=True):
    """Start a run on a lane, if its locks can be had and its gate is open."""

    run_id: int


class Reserve(OnLane, frozen=True):
    """Let no run of another queue start on these lanes until a run of this queue that needs all of them has them."""


class Release(OnLane, frozen=True):
    """Let other queues use the lane, on which nothing starts; `reason` says why if something takes precedence."""

    reason: Blocked | None = None


Action = Skip | Watch | ReadCode | Sweep | End | FollowRound | SubmitSchedules | BackUp | Start | Reserve | Release


def decide(now: Now) -> list[Action]:
    """Return the next actions in their order, without those already done in this step.

    Runs that never can start, or have ended, go first, then schedules and backups: each may change what can start, so
    that the rest is decided from a new look.
    """
    if now.impossible and (skip := Skip(now.impossible)) not in now.done:
        return [skip]
    actions = [action for run in now.running if (action := _for_run(run)) is not None and action not in now.done]
    if any(isinstance(action, End | Sweep) for action in actions):
        return actions
    if rounds := [action for ended in now.ended_rounds if (action := FollowRound(*ended)) not in now.done]:
        return actions + rounds
    busy = taken((run.lane for run in now.running), now.lanes)
    between = [action for action in (*_for_schedules(now, busy), *_for_backup(now, busy)) if action not in now.done]
    return actions + (between or [action for action in _for_lanes(now, busy) if action not in now.done])


def _for_run(run: ActiveRun) -> Action | None:
    """Return what to do about a run that is RUNNING in the database (docs/supervision.md, Start and end)."""
    lane = run.lane.name
    if run.reads_code:
        return ReadCode(lane)
    if run.warden is Warden.ALIVE:
        return Watch(lane) if run.exit is None else None  # its warden still ends what the trainer has left
    return {Warden.STARTING: None, Warden.KILLED: Sweep(lane), Warden.GONE: End(lane)}[run.warden]


def _for_schedules(now: Now, busy: Collection[str]) -> Iterator[Action]:
    """A schedule is submitted while no run is measured, or while one lane rests."""
    if now.submits_schedule or (now.schedule_is_due and (not busy or _is_one_free(now, busy))):
        yield SubmitSchedules()


def _for_backup(now: Now, busy: Collection[str]) -> Iterator[Action]:
    """A backup is made between two runs: its I/O must disturb no measurement. Where one lane or another is always busy,
    one that is overdue by a whole period is made beside the runs of other lanes."""
    if now.backup_overdue_s is None:
        return
    long_overdue = now.backup_overdue_s >= now.config.backup_every_s
    if busy:
        if long_overdue and _is_one_free(now, busy):
            yield BackUp(beside_runs=True)
    elif long_overdue or not now.candidates:
        yield BackUp(beside_runs=False)


def _is_one_free(now: Now, busy: Collection[str]) -> bool:
    return DEFAULT_LANE not in busy and any(lane.name not in busy for lane in now.lanes)


def _for_lanes(now: Now, busy: Collection[str]) -> Iterator[Action]:
    """Start what can be started, and release the other lanes."""
    chosen = plan(now, busy)
    in_use = {run.lane.name for run in now.running} | chosen.starts.keys()
    reasons = _blocked_reasons(now, chosen, in_use)
    for lane, state in now.states.items():
        if lane not in in_use and lane != chosen.awaited and not state.cools:
            yield from _released(lane, state, reasons.get(lane))
    if chosen.awaited:
        yield Reserve(chosen.awaited)
    low_disk = now.free_bytes is not None and now.free_bytes < now.config.min_free_bytes
    for lane, candidate in chosen.starts.items():
        if low_disk:
            yield from _released(lane, now.states.get(lane, LaneNow()), _low_disk(now, lane))
        else:
            yield Start(lane, candidate.run_id)


def _released(lane: str, state: LaneNow, reason: Blocked | None) -> Iterator[Action]:
    if state.held or state.waiting_run is not None or state.reserved or state.blocked != reason:
        yield Release(lane, reason)


def _low_disk(now: Now, lane: str) -> Blocked:
    """Return the reason that the disk is too full, with the figures of the first time: they change all the time."""
    stored = now.states[lane].blocked if lane in now.states else None
    if stored is not None and stored.kind is Obstacle.DISK:
        return stored
    assert now.free_bytes is not None
    free, needed = units.size(now.free_bytes), units.size(now.config.min_free_bytes)
    return Blocked(
        f"only {free} are free on the disk of {now.disk}, and a run needs {needed} (min_free_bytes): free some space,"
        " for example with mpsq gc; the queue then continues",
        Obstacle.DISK,
    )


def _blocked_reasons(now: Now, chosen: Schedule, in_use: Collection[str]) -> dict[str, Blocked]:
    """Return what lanes that start nothing wait for."""
    held_elsewhere = {lane: Blocked(state.held_elsewhere) for lane, state in now.states.items() if state.held_elsewhere}
    if (run := chosen.reserved_for) is None:
        return held_elsewhere
    others = ", ".join(map(short, sorted(in_use))) or "other lanes"
    reserved = Blocked("", Obstacle.RESERVED, run.run_id)
    kept_free = replace(reserved, reason=f"kept free for run {run.name}")
    needs_more = f"run {run.name} needs more lanes than are free: it starts when the runs on {others} have ended"
    return {
        **dict.fromkeys((lane.name for lane in now.lanes), kept_free),
        **held_elsewhere,
        DEFAULT_LANE: replace(reserved, reason=needs_more),
    }


# -- which run starts on which lane -----------------------------------------------------------------------------------


class Schedule(Struct):
    """The runs that may start now, by lane; the one for which lanes are kept free; and the lanes that it awaits, if it
    does not need the machine alone and no earlier run starts there."""

    starts: dict[str, Candidate] = field(default_factory=dict)
    reserved_for: Candidate | None = None
    awaited: str = ""


def plan(now: Now, busy: Collection[str], candidates: Iterable[Candidate] | None = None) -> Schedule:
    """Return which candidates, those of `now` by default, start on which lanes, reading no more of them than that
    needs; `busy` are the lanes on which runs are. For one that another queue has, a run that needs the machine alone
    waits by its lock."""
    result = Schedule()
    busy = {*busy, *parts_of(lane for lane, state in now.states.items() if state.cools)}
    if DEFAULT_LANE in busy:
        return result
    elsewhere = {lane for lane, state in now.states.items() if state.held_elsewhere}
    at_gate = {state.waiting_run: lane for lane, state in now.states.items()}
    lanes = [lane.name for lane in now.lanes]
    usable = [lane for lane in lanes if lane not in now.paused]
    free = [lane for lane in usable if lane not in busy and lane not in elsewhere]
    bound: dict[int, str] = {}
    earlier_waits = False
    machine_waits = False
    for run in now.candidates if candidates is None else candidates:
        lane = run.lane or bound.get(run.group, "")
        if needs_machine(run, lane, lanes):
            if not earlier_waits:
                if busy or result.starts:
                    result.reserved_for = run
                else:
                    result.starts[DEFAULT_LANE] = run
            if not earlier_waits or machine_waits:
                return result
            machine_waits = True
        elif machine_waits and not run.may_overtake:
            continue
        elif not _is_paused(run, lane, lanes, now.paused):  # else it waits for the user
            possible = [part for part in parts(lane) if part in free] if lane else _of_kind(run.kind, free)
            if len(possible) < run.gpus:
                if run.gpus > 1 and not earlier_waits:
                    others = parts(lane) if lane else _of_kind(run.kind, usable)
                    needed = [*possible, *(part for part in others if part not in possible)][: run.gpus]
                    result.reserved_for = run
                    if not {*needed} & parts_of(result.starts):  # else it waits until those runs have started
                        result.awaited = ",".join(sorted(needed))
                    free = [name for name in free if name not in possible]
                earlier_waits = True
            else:
                if (last := at_gate.get(run.run_id, "")) and {*parts(last)} <= {*possible}:
                    possible = parts(last)
                name = ",".join(sorted(possible[: run.gpus]))
                result.starts[name] = run
                bound[run.group] = name
                free = [other for other in free if other not in parts(name)]
        if not free and (earlier_waits or result.starts):
            break
    return result


def stuck(candidates: Iterable[Candidate], lanes: Sequence[str], paused: Collection[str]) -> set[int]:
    """Return the ids of the jobs whose runs will not start before a user resumes a lane."""
    return {
        run.name.job
        for run in candidates
        if not needs_machine(run, run.lane, lanes) and _is_paused(run, run.lane, lanes, paused)
    }


def parts_of(names: Iterable[str]) -> set[str]:
    """Return the single lanes that these names join."""
    return {part for name in names for part in parts(name)}


def taken(busy: Iterable[Lane], lanes: Iterable[Lane]) -> set[str]:
    """Return the names of `busy` lanes, and of those `lanes` that share a GPU or a processor with them."""
    busy = list(busy)
    units_taken = {unit for lane in busy for unit in lane.units}
    return parts_of(lane.name for lane in busy) | {lane.name for lane in lanes if units_taken & {*lane.units}}


def _of_kind(wanted_kind: str, lanes: Iterable[str]) -> list[str]:
    return [lane for lane in lanes if kind(lane) == wanted_kind]


def _is_paused(run: Candidate, lane: str, lanes: Iterable[str], paused: Collection[str]) -> bool:
    """Return whether the lanes that are not paused are too few for a run, or one that it is bound to is paused."""
    usable = _of_kind(run.kind, (name for name in lanes if name not in paused))
    return any(part in paused for part in parts(lane)) or len(usable) < run.gpus


def needs_machine(run: Candidate, lane: str, lanes: Sequence[str]) -> bool:
    """Return whether a run needs the machine alone: by itself, or because its lanes do not exist (any more)."""
    if not run.kind or len(_of_kind(run.kind, lanes)) < run.gpus:
        return True
    bound_to = parts(lane) if lane else []
    return bool(bound_to) and (len(_of_kind(run.kind, bound_to)) != run.gpus or not {*bound_to} <= {*lanes})
