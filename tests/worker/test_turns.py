"""Whose turn it is where there are several lanes."""

from __future__ import annotations

from queue_runner.lanes import Lane
from queue_runner.worker.turns import Asked, stuck, taken, turns

LANES = ["GPU-a", "GPU-b", "GPU-c"]


def gpu(run: int, group: int | None = None, lane: str = "", gpus: int = 1) -> Asked:
    return Asked(run, run if group is None else group, "cuda", gpus, lane)


def alone(run: int) -> Asked:
    return Asked(run, run, "")


def test_submissions_go_side_by_side_and_the_runs_of_one_after_the_other() -> None:
    asked = [gpu(1, 1), gpu(2, 1), gpu(3, 3), gpu(4, 4), gpu(5, 5)]
    assert turns(asked, LANES).starts == {"GPU-a": 1, "GPU-b": 3, "GPU-c": 4}
    assert turns([gpu(2, 1, "GPU-b")], LANES, busy={"GPU-b"}).starts == {}


def test_who_needs_the_machine_alone_waits_for_those_before_it_and_then_reserves() -> None:
    found = turns([gpu(1), alone(2), gpu(3)], LANES)
    assert (found.starts, found.reserved_for) == ({"GPU-a": 1}, 2)
    found = turns([alone(2), gpu(3)], LANES, busy={"GPU-a"})
    assert (found.starts, found.reserved_for) == ({}, 2)
    assert turns([alone(2), gpu(3)], LANES).starts == {"machine": 2}
    found = turns([gpu(1, lane="GPU-a"), alone(2), gpu(3)], LANES, busy={"GPU-a"})
    assert (found.starts, found.reserved_for) == ({"GPU-b": 3}, None)
    assert turns([gpu(3)], LANES, busy={"machine"}).starts == {}


def test_a_wide_run_takes_all_of_its_lanes_or_none() -> None:
    found = turns([gpu(1, gpus=2), gpu(2)], LANES, busy={"GPU-a", "GPU-b"})
    assert (found.starts, found.reserved_for) == ({}, 1)
    found = turns([gpu(1, gpus=2), gpu(2)], LANES, busy={"GPU-b"})
    assert found.starts == {"GPU-a,GPU-c": 1}
    found = turns([gpu(1, lane="GPU-a,GPU-b", gpus=2), gpu(2)], LANES, busy={"GPU-a"})
    assert (found.starts, found.reserved_for) == ({"GPU-c": 2}, 1)
    assert turns([gpu(1, gpus=4)], LANES).starts == {"machine": 1}
    assert turns([gpu(1, gpus=4)], LANES, busy={"GPU-a"}).reserved_for == 1


def test_a_paused_lane_holds_up_only_what_is_bound_to_it() -> None:
    found = turns([gpu(1, lane="GPU-a"), gpu(2), alone(3)], LANES, paused={"GPU-a"})
    assert (found.starts, found.reserved_for) == ({"GPU-b": 2}, 3)
    assert turns([gpu(1), alone(2)], LANES, paused=LANES).starts == {"machine": 2}


def test_a_submission_whose_lane_is_gone_goes_on_alone() -> None:
    assert turns([gpu(1, lane="GPU-z")], LANES).starts == {"machine": 1}
    assert turns([Asked(1, 1, "cpu", 1, "GPU-a")], LANES).starts == {"machine": 1}


def test_a_run_stays_at_the_gate_where_it_waits() -> None:
    assert turns([gpu(1)], LANES, before={1: "GPU-b"}).starts == {"GPU-b": 1}
    assert turns([gpu(1)], LANES, before={1: "GPU-b"}, busy={"GPU-b"}).starts == {"GPU-a": 1}


def test_who_has_a_processor_of_a_busy_lane_is_busy() -> None:
    here = [Lane("cpu:0-1", (0, 1)), Lane("cpu:2-3", (2, 3)), Lane("GPU-a", (4, 5)), Lane("GPU-b", (6, 7))]
    assert taken([], here) == set()
    assert taken([Lane("cpu:0-3", (0, 1, 2, 3))], here) == {"cpu:0-3", "cpu:0-1", "cpu:2-3"}
    assert taken([Lane("GPU-c,GPU-d", (5, 6))], here) == {"GPU-a", "GPU-b", "GPU-c", "GPU-d"}
    assert taken([Lane("GPU-a", (4, 5))], here) == {"GPU-a"}


def test_a_lane_that_another_queue_has_leaves_the_others_to_this_one() -> None:
    assert turns([gpu(1), gpu(2)], LANES, elsewhere={"GPU-a"}).starts == {"GPU-b": 1, "GPU-c": 2}
    found = turns([alone(1), gpu(2)], LANES, elsewhere={"GPU-a"})
    assert (found.starts, found.reserved_for) == ({"machine": 1}, None), "it waits by the machine's lock"


def test_what_waits_for_a_paused_lane_is_stuck() -> None:
    asked = [gpu(1, lane="GPU-a"), gpu(2), gpu(3, gpus=3), alone(4), gpu(5, lane="GPU-z")]
    assert stuck(asked, LANES, ["GPU-a"]) == {1, 3}
    assert stuck(asked, LANES, LANES) == {1, 2, 3}
    assert stuck(asked, LANES, []) == set()
