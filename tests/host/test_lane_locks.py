"""The locks of lanes beside that of the machine."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from queue_runner.errors import MpsqError
from queue_runner.host import lane_locks, locks, processes
from queue_runner.host.lane_locks import LaneLocks

MACHINE, A, B, C = "machine", "cpu:0", "cpu:1", "cpu:2"
GPU = "GPU-5c1a7b9e-0000-1111-2222-333344445555"


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "locks"))


def test_lanes_go_side_by_side_and_the_machine_alone() -> None:
    first, second = LaneLocks(A).take(), LaneLocks(B).take()
    assert first and second and len(first.fds) == 2 and first.shares
    assert LaneLocks(A).take() is None
    assert LaneLocks(MACHINE).take() is None
    first.close()
    second.close()
    alone = LaneLocks(MACHINE).take()
    assert alone and len(alone.fds) == 1 and not alone.shares
    assert LaneLocks(A).take() is None


@contextlib.contextmanager
def holding(fds: list[int]) -> Iterator[int]:
    """A process that has inherited these descriptors."""
    process = subprocess.Popen(["sleep", "600"], pass_fds=fds)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("linux", [True, False] if processes.LINUX else [False])
def test_who_shares_the_machine_is_no_leftover_of_the_run_that_had_it_before(
    linux: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for macOS on Linux: nothing tells who holds a lock alone from who shares it, so the note decides."""
    monkeypatch.setattr(processes, "LINUX", linux)
    before = LaneLocks(MACHINE).take()
    assert before
    before.write_holder({"token": "t" * 32})
    lane = lane_locks.paths(MACHINE)[0]
    with holding(before.fds) as own:
        assert processes._lane_holders(lane, "t" * 32, {own}) == {own}
    before.close()
    another = LaneLocks(A).take()
    assert another
    with holding(another.fds) as theirs:
        assert not processes._lane_holders(lane, "t" * 32, {theirs}), "it would be ended"
    another.close()
    again = LaneLocks(MACHINE).take()
    assert again
    again.write_holder({"token": "t" * 32})
    assert locks.read_holder(lane)


def test_who_waits_learns_which_other_queue_runs_what(tmp_path: Path) -> None:
    home, other = tmp_path / "mine", tmp_path / "theirs"
    hold = LaneLocks(A).take()
    assert hold
    unknown = LaneLocks(A).held_by(home)
    hold.write_holder({"home": str(other), "run": "3.1"})
    assert "3.1" not in unknown
    for lane in (A, MACHINE):  # which needs what every lane has
        words = LaneLocks(lane).held_by(home)
        assert all(x in words for x in ("run 3.1 of", str(other), " since ", f"process {os.getpid()}")), words
    assert LaneLocks(A).held_by(other) == LaneLocks(B).held_by(home) == unknown, "it is this queue's own note"
    hold.close()
    assert LaneLocks(A).held_by(home) == unknown


def test_several_lanes_are_taken_all_or_none() -> None:
    second = LaneLocks(B).take()
    assert second and LaneLocks(f"{A},{B}").take() is None
    left = LaneLocks(A).take()
    assert left, "what it could have had is free again"
    left.close()
    second.close()
    both = LaneLocks(f"{B},{A}").take()
    assert both and len(both.fds) == 3
    assert LaneLocks(A).take() is None and LaneLocks(B).take() is None and LaneLocks(C).take()


@pytest.mark.parametrize("fault", ["a lock that cannot be opened", "a full disk"])
def test_a_try_that_fails_holds_nothing(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The worker repeats it at each step: 1,000 left descriptors are as many as a process may have."""
    if fault == "a full disk":
        monkeypatch.setattr(locks.Lock, "forget_holder", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")))
    else:
        locks.lane_lock_path(B).symlink_to("nowhere")
    with pytest.raises((MpsqError, OSError)):
        LaneLocks(f"{A},{B}").take()
    alone = LaneLocks(MACHINE).take()
    assert alone
    alone.close()


def test_who_waits_to_be_alone_keeps_newcomers_out_until_it_dies() -> None:
    running = LaneLocks(A).take()
    waits = LaneLocks(MACHINE)
    assert running and waits.take() is None
    assert LaneLocks(B).goes_first()
    running.close()
    alone = waits.take()
    assert alone and not LaneLocks(B).goes_first(), "its turn is over as it has the machine"
    assert LaneLocks(B).take() is None
    waits.leave()
    alone.close()


def test_two_queues_that_need_the_machine_alone_take_turns() -> None:
    """A queue that had the next run ready kept the other one out until its own last run."""
    first, second = LaneLocks(MACHINE), LaneLocks(MACHINE)
    running = first.take()
    assert running and not first.goes_first() and second.take() is None
    running.close()
    between = first.take()
    assert between and first.goes_first()
    between.close()
    alone = second.take()
    assert alone and not second.goes_first()
    assert first.take() is None and LaneLocks(MACHINE).goes_first(), "the turn is the first one's again"
    first.leave()
    alone.close()


def test_who_waits_for_several_lanes_keeps_newcomers_out_of_them() -> None:
    running = LaneLocks(A).take()
    waits, later = LaneLocks(f"{A},{B}"), LaneLocks(f"{B},{C}")
    assert running and waits.take() is None
    assert "with others" in LaneLocks(B).goes_first() and not LaneLocks(C).goes_first()
    other = LaneLocks(C).take()
    assert other and later.take() is None
    other.close()
    assert not LaneLocks(C).goes_first(), "a turn of some of its lanes is none: two that wait would wait forever"
    running.close()
    both = waits.take()
    assert both and not LaneLocks(A).goes_first() and not LaneLocks(B).goes_first(), "its turn is over: it has them"
    assert later.take() is None and LaneLocks(C).goes_first(), "the turn is the next one's"
    later.leave()
    both.close()


def test_a_turn_ends_with_its_descriptor() -> None:
    running = LaneLocks(A).take()
    waits = LaneLocks(MACHINE)
    assert running and waits.take() is None and LaneLocks(B).goes_first()
    waits.leave()  # as a worker that dies does
    assert not LaneLocks(B).goes_first()


def test_who_lends_the_machine_keeps_its_turn() -> None:
    queue = LaneLocks(MACHINE)
    alone = queue.take()
    assert alone and not queue.is_shared()
    queue.wait_in_turn()
    alone.close()
    assert LaneLocks(B).goes_first() and queue.is_shared()
    again = queue.take()
    assert again and not LaneLocks(B).goes_first()
    again.close()


def test_lanes_of_other_names_exclude_each_other_by_each_processor() -> None:
    wide = LaneLocks("cpu:0-3").take()
    assert wide and LaneLocks("cpu:0-7").take() is None and LaneLocks("cpu:1+9").take() is None
    other = LaneLocks("cpu:4-7").take()
    assert other
    other.close()
    assert LaneLocks(GPU, (3, 4)).take() is None, "a GPU's processors are its lane's, too"
    wide.close()
    near = LaneLocks(GPU, (3, 4)).take()
    assert near and LaneLocks("cpu:0-3").take() is None and LaneLocks(GPU).take() is None
    assert LaneLocks("cpu:0+2").take() and lane_locks.paths(GPU, (3,))[0] == locks.lane_lock_path(GPU)


def test_a_lane_of_many_single_processors_has_locks() -> None:
    hold = LaneLocks("cpu:" + "+".join(map(str, range(0, 200, 2)))).take()
    assert hold and len(hold.fds) == 101
    hold.close()


def test_parts_of_a_machine_go_side_by_side_each_with_the_locks_of_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two queues to which a scheduler gave a GPU each, and others of the machine."""
    monkeypatch.setenv(lane_locks.PART, f"{GPU} {A}")
    first = LaneLocks(MACHINE).take()
    assert first and first.shares and LaneLocks(MACHINE).take() is None
    monkeypatch.setenv(lane_locks.PART, B)
    second = LaneLocks(MACHINE).take()
    assert second
    monkeypatch.delenv(lane_locks.PART)
    assert LaneLocks(MACHINE).take() is None and LaneLocks(GPU).take() is None and LaneLocks(A).take() is None
    other = LaneLocks(C).take()
    assert other
    for hold in (first, second, other):
        hold.close()
    alone = LaneLocks(MACHINE).take()
    assert alone
    monkeypatch.setenv(lane_locks.PART, B)
    assert LaneLocks(MACHINE).take() is None
