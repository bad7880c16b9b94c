"""What the worker does next, by the state that it has read: no process, no file, no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from queue_runner.config_file import Config
from queue_runner.host.run_dir import RunDir
from queue_runner.lanes import Lane
from queue_runner.model import DEFAULT_LANE, Obstacle, RunId
from queue_runner.spec import JobSpec
from queue_runner.store.jobs import Claimed
from queue_runner.store.lane_claims import Blocked
from queue_runner.worker import decide
from queue_runner.worker.decide import (
    Action,
    BackUp,
    End,
    ReadCode,
    Release,
    Reserve,
    Schedule,
    Skip,
    Start,
    SubmitSchedules,
    Sweep,
    Watch,
    plan,
    stuck,
    taken,
)
from queue_runner.worker.now import ActiveRun, Candidate, LaneNow, Now, Warden

LANES = ["GPU-a", "GPU-b", "GPU-c"]
CPUS = (Lane("cpu:0", (0,)), Lane("cpu:1", (1,)))
ENDED = {"exit_code": 0}


def candidate(run: int, kind: str, group: int | None = None, lane: str = "", gpus: int = 1) -> Candidate:
    return Candidate(run, RunId(run, 1), run if group is None else group, kind, gpus, lane)


def gpu(run: int, group: int | None = None, lane: str = "", gpus: int = 1) -> Candidate:
    return candidate(run, "cuda", group, lane, gpus)


def alone(run: int) -> Candidate:
    return candidate(run, "")


def schedule(
    candidates: Sequence[Candidate],
    lanes: Sequence[str],
    *,
    busy: Collection[str] = (),
    elsewhere: Collection[str] = (),
    paused: Collection[str] = (),
    waiting_at: Mapping[int, str] | None = None,
) -> Schedule:
    """Return which candidates start; other queues have lanes `elsewhere`, and at some a run waits for quiet."""
    waiting = {lane: run for run, lane in (waiting_at or {}).items()}
    states = {
        lane: LaneNow(held_elsewhere="a run" if lane in elsewhere else "", waiting_run=waiting.get(lane))
        for lane in lanes
    }
    of_settings = tuple(map(Lane, lanes))
    return plan(Now(0.0, Config(), lanes=of_settings, states=states, paused=frozenset(paused)), busy, candidates)


def starts(chosen: Schedule) -> dict[str, int]:
    return {lane: run.run_id for lane, run in chosen.starts.items()}


def reserved_for(chosen: Schedule) -> int | None:
    return chosen.reserved_for and chosen.reserved_for.run_id


def active(lane: str = DEFAULT_LANE, warden: Warden = Warden.ALIVE, **facts: Any) -> ActiveRun:
    claimed = Claimed(1, RunId(1, 1), JobSpec(kind="command", name="x"), "t", "boot", lane)
    cores = next((known.cores for known in CPUS if known.name == lane), ())
    return ActiveRun(claimed, Lane(lane, cores), RunDir(Path("1.1")), warden, **facts)


def now(*running: ActiveRun, **facts: Any) -> Now:
    """The state of a machine without lanes on which nothing is blocked."""
    lanes = facts.get("lanes", ())
    states = {lane: LaneNow() for lane in (DEFAULT_LANE, *(lane.name for lane in lanes))}
    states |= facts.pop("states", {})
    return Now(1e9, Config(), running=running, states=states, **facts)


# -- the step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "actions"),
    [
        (now(), []),
        (now(candidates=(alone(1),)), [Start(DEFAULT_LANE, 1)]),
        (now(candidates=(alone(1), alone(2)), lanes=CPUS), [Start(DEFAULT_LANE, 1)]),
        (now(active(), candidates=(alone(1),)), [Watch(DEFAULT_LANE)]),
        # the table of docs/supervision.md
        (now(active(warden=Warden.ALIVE)), [Watch(DEFAULT_LANE)]),
        (now(active(warden=Warden.ALIVE, exit=ENDED)), []),
        (now(active(warden=Warden.STARTING)), []),
        (now(active(warden=Warden.KILLED)), [Sweep(DEFAULT_LANE)]),
        (now(active(warden=Warden.KILLED, exit=ENDED)), [Sweep(DEFAULT_LANE)]),
        (now(active(warden=Warden.GONE)), [End(DEFAULT_LANE)]),
        (now(active(warden=Warden.GONE, exit=ENDED)), [End(DEFAULT_LANE)]),
        (now(active(warden=Warden.STARTING, reads_code=True)), [ReadCode(DEFAULT_LANE)]),
        # what may change what can start goes first
        (now(active(), impossible=(7,), candidates=(alone(1),)), [Skip((7,))]),
        (now(impossible=(7,), candidates=(alone(1),), done=frozenset({Skip((7,))})), [Start(DEFAULT_LANE, 1)]),
        (now(candidates=(alone(1),), schedule_is_due=True), [SubmitSchedules()]),
        (now(active(), schedule_is_due=True), [Watch(DEFAULT_LANE)]),
        (now(active(), submits_schedule=True), [Watch(DEFAULT_LANE), SubmitSchedules()]),
        (now(active("cpu:0"), lanes=CPUS, schedule_is_due=True), [Watch("cpu:0"), SubmitSchedules()]),
        (
            now(active("cpu:0", Warden.GONE), lanes=CPUS, candidates=(candidate(2, "cpu"),)),
            [End("cpu:0")],
        ),
        (
            now(
                active("cpu:0", Warden.GONE),
                lanes=CPUS,
                candidates=(candidate(2, "cpu"),),
                done=frozenset({End("cpu:0")}),  # it survived SIGKILL: the other lanes continue
            ),
            [Start("cpu:1", 2)],
        ),
        # lanes
        (now(active("cpu:0"), lanes=CPUS, candidates=(candidate(2, "cpu"),)), [Watch("cpu:0"), Start("cpu:1", 2)]),
        (
            now(lanes=CPUS, candidates=(candidate(2, "cpu"),), states={"cpu:0": LaneNow(cools=True)}),
            [Start("cpu:1", 2)],
        ),
        (now(candidates=(alone(1),), states={DEFAULT_LANE: LaneNow(cools=True, held=True)}), []),
        (now(states={DEFAULT_LANE: LaneNow(held=True)}), [Release(DEFAULT_LANE)]),
        (now(states={DEFAULT_LANE: LaneNow(waiting_run=3)}), [Release(DEFAULT_LANE)]),
        (now(states={DEFAULT_LANE: LaneNow(reserved=True)}), [Release(DEFAULT_LANE)]),
        (now(states={DEFAULT_LANE: LaneNow(blocked=Blocked("x"))}), [Release(DEFAULT_LANE)]),
    ],
)
def test_what_to_do(state: Now, actions: list[Action]) -> None:
    assert decide.decide(state) == actions
    done = state.done | {*actions}
    assert not {*decide.decide(replace(state, done=done))} & done, "each is done once in a step"


@pytest.mark.parametrize(
    ("overdue_s", "waits", "busy", "made"),
    [
        (None, False, False, None),
        (0.0, False, False, BackUp(beside_runs=False)),
        (0.0, True, False, None),
        (1e9, True, False, BackUp(beside_runs=False)),
        (1e9, True, True, BackUp(beside_runs=True)),
        (0.0, False, True, None),
    ],
)
def test_a_backup_is_made_between_runs_and_beside_them_only_if_it_is_long_overdue(
    overdue_s: float | None, waits: bool, busy: bool, made: BackUp | None
) -> None:
    running = (active("cpu:0"),) if busy else ()
    waiting = (candidate(2, "cpu"),) if waits else ()
    actions = decide.decide(now(*running, lanes=CPUS, candidates=waiting, backup_overdue_s=overdue_s))
    assert [action for action in actions if isinstance(action, BackUp)] == ([made] if made else [])
    if made:
        assert not any(isinstance(action, Start) for action in actions)


def test_where_the_one_lane_is_busy_no_backup_is_made() -> None:
    assert decide.decide(now(active(), backup_overdue_s=1e9)) == [Watch(DEFAULT_LANE)]


def test_lanes_that_a_wide_run_awaits_are_reserved_and_the_others_say_why() -> None:
    state = now(active("cpu:1"), lanes=CPUS, candidates=(candidate(2, "cpu", gpus=2),))
    watch, *releases, reserve = decide.decide(state)
    assert (watch, reserve) == (Watch("cpu:1"), Reserve("cpu:0,cpu:1"))
    reasons = {action.lane: action.reason for action in releases if isinstance(action, Release)}
    assert reasons.keys() == {DEFAULT_LANE, "cpu:0"}
    for reason in reasons.values():
        assert reason is not None and (reason.kind, reason.run_id) == (Obstacle.RESERVED, 2)
    states = {lane: LaneNow(blocked=reason) for lane, reason in reasons.items()}
    assert decide.decide(replace(state, states={**state.states, **states})) == [watch, reserve], "they are stored"


def test_a_full_disk_stops_starts_and_its_reason_is_stored_once() -> None:
    state = now(candidates=(alone(1),), free_bytes=0)
    (release,) = decide.decide(state)
    assert isinstance(release, Release) and release.reason is not None and release.reason.kind is Obstacle.DISK
    stored = replace(state, free_bytes=4096, states={DEFAULT_LANE: LaneNow(blocked=release.reason)})
    assert decide.decide(stored) == []


# -- which run starts on which lane ------------------------------------------------------------------------------------


def test_submissions_go_side_by_side_and_the_runs_of_one_after_the_other() -> None:
    candidates = [gpu(1, 1), gpu(2, 1), gpu(3, 3), gpu(4, 4), gpu(5, 5)]
    assert starts(schedule(candidates, LANES)) == {"GPU-a": 1, "GPU-b": 3, "GPU-c": 4}
    assert starts(schedule([gpu(2, 1, "GPU-b")], LANES, busy={"GPU-b"})) == {}


def test_who_needs_the_machine_alone_waits_for_those_before_it_and_then_reserves() -> None:
    chosen = schedule([gpu(1), alone(2), gpu(3)], LANES)
    assert (starts(chosen), reserved_for(chosen)) == ({"GPU-a": 1}, 2)
    chosen = schedule([alone(2), gpu(3)], LANES, busy={"GPU-a"})
    assert (starts(chosen), reserved_for(chosen)) == ({}, 2)
    assert starts(schedule([alone(2), gpu(3)], LANES)) == {"machine": 2}
    chosen = schedule([gpu(1, lane="GPU-a"), alone(2), gpu(3)], LANES, busy={"GPU-a"})
    assert (starts(chosen), reserved_for(chosen)) == ({}, None)
    assert starts(schedule([gpu(3)], LANES, busy={"machine"})) == {}


def test_only_what_ends_before_it_could_start_overtakes_who_needs_the_machine() -> None:
    before, short = gpu(1, lane="GPU-a"), replace(gpu(5), may_overtake=True)
    chosen = schedule([before, alone(2), gpu(3), short], LANES, busy={"GPU-a"})
    assert (starts(chosen), reserved_for(chosen)) == ({"GPU-b": 5}, None)
    assert starts(schedule([before, alone(2), alone(4), short], LANES, busy={"GPU-a"})) == {}


def test_a_wide_run_takes_all_of_its_lanes_or_none() -> None:
    chosen = schedule([gpu(1, gpus=2), gpu(2)], LANES, busy={"GPU-a", "GPU-b"})
    assert (starts(chosen), reserved_for(chosen)) == ({}, 1)
    chosen = schedule([gpu(1, gpus=2), gpu(2)], LANES, busy={"GPU-b"})
    assert starts(chosen) == {"GPU-a,GPU-c": 1}
    chosen = schedule([gpu(1, lane="GPU-a,GPU-b", gpus=2), gpu(2)], LANES, busy={"GPU-a"})
    assert (starts(chosen), reserved_for(chosen)) == ({"GPU-c": 2}, 1)
    assert starts(schedule([gpu(1, gpus=4)], LANES)) == {"machine": 1}
    assert reserved_for(schedule([gpu(1, gpus=4)], LANES, busy={"GPU-a"})) == 1


def test_a_paused_lane_holds_up_only_the_runs_bound_to_it() -> None:
    chosen = schedule([gpu(1, lane="GPU-a"), gpu(2), alone(3)], LANES, paused={"GPU-a"})
    assert (starts(chosen), reserved_for(chosen)) == ({"GPU-b": 2}, 3)
    assert starts(schedule([gpu(1), alone(2)], LANES, paused=LANES)) == {"machine": 2}


def test_a_submission_whose_lane_is_gone_goes_on_alone() -> None:
    assert starts(schedule([gpu(1, lane="GPU-z")], LANES)) == {"machine": 1}
    assert starts(schedule([candidate(1, "cpu", lane="GPU-a")], LANES)) == {"machine": 1}


def test_a_run_stays_at_the_gate_where_it_waits() -> None:
    assert starts(schedule([gpu(1)], LANES, waiting_at={1: "GPU-b"})) == {"GPU-b": 1}
    assert starts(schedule([gpu(1)], LANES, waiting_at={1: "GPU-b"}, busy={"GPU-b"})) == {"GPU-a": 1}


def test_who_has_a_processor_of_a_busy_lane_is_busy() -> None:
    here = [Lane("cpu:0-1", (0, 1)), Lane("cpu:2-3", (2, 3)), Lane("GPU-a", (4, 5)), Lane("GPU-b", (6, 7))]
    assert taken([], here) == set()
    assert taken([Lane("cpu:0-3", (0, 1, 2, 3))], here) == {"cpu:0-3", "cpu:0-1", "cpu:2-3"}
    assert taken([Lane("GPU-c,GPU-d", (5, 6))], here) == {"GPU-a", "GPU-b", "GPU-c", "GPU-d"}
    assert taken([Lane("GPU-a", (4, 5))], here) == {"GPU-a"}


def test_a_lane_that_another_queue_has_leaves_the_others_to_this_one() -> None:
    assert starts(schedule([gpu(1), gpu(2)], LANES, elsewhere={"GPU-a"})) == {"GPU-b": 1, "GPU-c": 2}
    chosen = schedule([alone(1), gpu(2)], LANES, elsewhere={"GPU-a"})
    assert (starts(chosen), reserved_for(chosen)) == ({"machine": 1}, None), "it waits by the machine's lock"


def test_what_waits_for_a_paused_lane_is_stuck() -> None:
    candidates = [gpu(1, lane="GPU-a"), gpu(2), gpu(3, gpus=3), alone(4), gpu(5, lane="GPU-z")]
    assert stuck(candidates, LANES, ["GPU-a"]) == {1, 3}
    assert stuck(candidates, LANES, LANES) == {1, 2, 3}
    assert stuck(candidates, LANES, []) == set()
