"""Which runs a step starts, and on which lanes, without starting them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import Mock

import pytest

from queue_runner import config_file
from queue_runner.control import pausing
from queue_runner.host.lane_locks import LaneLocks
from queue_runner.lanes import Lane
from queue_runner.model import RunId
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob
from queue_runner.store import jobs, lane_claims, ready
from queue_runner.store.engine import looking, open_engine, writing
from queue_runner.store.jobs import Following
from queue_runner.worker import gate
from queue_runner.worker.gate import Disturbance
from queue_runner.worker.gate_load import Load
from queue_runner.worker.steps import Steps
from queue_runner.worker.supervisor import Supervisor
from queue_runner.worker.warden_starter import WardenStarter
from tests.process_support import needs_linux

pytestmark = [pytest.mark.process, needs_linux]

FIRST, SECOND, BOTH, MACHINE = "cpu:0", "cpu:1", "cpu:0,cpu:1", "machine"


class Box:
    """A queue of two lanes, whose supervisors note what they are to start. `cooling` are lanes that cool,
    `refused` those that will as soon as something is to start there."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.engine = open_engine(layout.db, keep_open=True)
        layout.config.write_text(f'lanes = "{FIRST},{SECOND}"\nmin_free_bytes = 0\nbackup_every_s = 0\n')
        self.cooling: set[str] = set()
        self.refused: set[str] = set()
        self.started: list[str] = []
        self._steps: Steps | None = None

    def submit(self, **changes: Any) -> None:
        with writing(self.engine) as connection:
            spec = JobSpec(kind="command", name="x", argv=("true",), **{"device": "cpu", **changes})
            jobs.submit(connection, "test", 0, [NewJob(spec)], [(0, 1)])

    def step(self) -> list[str]:
        """Let the worker look once; return the lanes on which it starts something."""
        if self._steps is None:
            self._steps = Steps(self.layout, config_file.load(self.layout.config), self.engine, lambda _: None)
        self.started.clear()
        self._steps.step()
        return sorted(self.started)

    def something_waits(self) -> bool:
        assert self._steps is not None
        return self._steps.now.something_waits

    def is_idle(self) -> bool:
        """Return whether hook_idle is called after a step."""
        self.step()
        assert self._steps is not None
        with looking(self.engine) as connection:
            return ready.is_idle(connection, self._steps.now.stuck)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.stop()
        self.engine.dispose()


@pytest.fixture
def box(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    box = Box(layout)

    def start(self: Supervisor, *_: object, **__: object) -> bool:
        box.started.append(self.lane.name)
        box.cooling |= {self.lane.name} & box.refused
        return False

    monkeypatch.setattr(Supervisor, "start", start)
    monkeypatch.setattr(Supervisor, "in_cooldown", property(lambda self: self.lane.name in box.cooling))
    yield box
    box.close()


def test_nothing_starts_on_a_lane_while_the_machine_cools(box: Box) -> None:
    box.submit()
    box.cooling = {MACHINE}
    assert box.step() == []
    box.cooling = set()
    assert box.step() == [FIRST]


def test_several_lanes_that_a_run_had_cool_together(box: Box) -> None:
    box.refused = {BOTH}
    box.submit(gpus=2)
    assert box.step() == [BOTH]
    box.submit()
    for _ in range(2):  # nor is that forgotten at the next look
        assert box.step() == []
    box.cooling = set()
    assert box.step() == [BOTH]


def test_a_lane_that_another_queue_has_is_left_to_it(box: Box) -> None:
    other = LaneLocks("cpu:0+2").take()
    assert other
    other.write_holder({"home": "/another/queue", "run": "7.2"})
    box.submit()
    box.submit()
    assert box.step() == [SECOND]
    with looking(box.engine) as connection:
        reason = connection.value("SELECT blocked_reason FROM lanes WHERE name = ?", (FIRST,))
    assert all(x in str(reason) for x in ("run 7.2 of", "/another/queue", f"process {os.getpid()})"))
    other.close()
    assert box.step() == [FIRST, SECOND]


@pytest.mark.parametrize("error", [None, OSError("the disk refuses")])
def test_an_end_that_is_not_stored_yet_holds_up_no_other_lane(
    box: Box, monkeypatch: pytest.MonkeyPatch, error: OSError | None
) -> None:
    box.submit()
    box.submit()
    with writing(box.engine) as connection:
        assert lane_claims.claim(connection, Lane(FIRST, (0,)), "t" * 32, "boot", 1, time.time())
    end = Mock(return_value=False, side_effect=error)
    monkeypatch.setattr(Supervisor, "end", end)
    expected: AbstractContextManager[object] = pytest.raises(OSError, match="refuses") if error else nullcontext()
    with expected:
        box.step()
    assert (end.call_count, box.started) == (1, [SECOND])


def test_jobs_of_no_lane_yet_are_idle_while_all_lanes_are_paused(box: Box) -> None:
    """hook_idle was not called."""
    box.submit()
    for lane in (FIRST, SECOND):
        pausing.pause_lane(box.layout, "test", lane)
        assert box.is_idle() is (lane == SECOND)


def test_a_run_of_several_lanes_keeps_other_queues_out_until_it_has_them(box: Box) -> None:
    """Else two queues that start a run on one lane while the other is busy make it wait for as long as they like."""
    other = LaneLocks(SECOND).take()
    assert other
    box.submit(gpus=2)
    for _ in range(2):
        assert box.step() == []
        assert LaneLocks(FIRST).goes_first() and "with others" in LaneLocks(SECOND).goes_first()
    other.close()
    assert box.step() == [BOTH]
    box.close()
    assert not LaneLocks(FIRST).goes_first()


def test_a_run_of_several_lanes_takes_no_turn_before_an_earlier_one_of_its_queue_has_begun(box: Box) -> None:
    """Else neither would ever start."""
    box.submit()
    box.submit(gpus=2)
    for _ in range(2):
        assert box.step() == [FIRST]
        assert not LaneLocks(FIRST).goes_first()


def test_a_run_of_several_lanes_that_is_held_gives_up_its_turn(box: Box) -> None:
    other = LaneLocks(SECOND).take()
    assert other
    box.submit(gpus=2)
    assert box.step() == [] and LaneLocks(FIRST).goes_first()
    pausing.pause_lane(box.layout, "test", SECOND)
    assert box.step() == [] and not LaneLocks(FIRST).goes_first()
    other.close()


def test_a_worker_does_not_wait_for_lanes_that_a_user_has_paused(box: Box) -> None:
    box.submit()
    for lane in (FIRST, SECOND):
        assert box.step() and box.something_waits()
        pausing.pause_lane(box.layout, "test", lane)
    assert box.step() == [] and not box.something_waits()
    box.submit(device="")
    assert box.step() == [MACHINE] and box.something_waits()


def test_a_run_that_needs_the_machine_alone_keeps_its_turn_and_its_wait(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another queue's lanes make the machine noisy: were each to start beside the last, its gate would never open."""
    layout.config.write_text("min_free_bytes = 0\ngate_cpu_share = 1\ngate_battery = false\n")
    engine = open_engine(layout.db, keep_open=True)
    monkeypatch.setattr(gate, "disturbances", lambda *_, **__: [Disturbance("load", "test {}", ("is", "was"))])
    monkeypatch.setattr(Load, "read", lambda *_, **__: {})
    supervisor = Supervisor(
        layout, config_file.load(layout.config), engine, lambda _: None, WardenStarter(layout.home), {}
    )
    with writing(engine) as connection:
        spec = JobSpec(kind="command", name="x", argv=("true",), gate=True)
        jobs.submit(connection, "test", 0, [NewJob(spec)], [(0, 1)])

    monkeypatch.setattr(lane_claims, "claim", lambda *_, **__: pytest.fail("claimed"))

    def start() -> None:
        assert not supervisor.start(Following(1, RunId(1, 1), spec))

    start()
    with writing(engine) as connection:
        waits = jobs.waits_since(connection, 1)
    assert waits is not None and LaneLocks(FIRST).goes_first()
    other = LaneLocks(SECOND).take()  # it has begun before
    start()
    assert other and supervisor.state().waiting_run == 1 and (supervisor.due or 0) > time.time()
    other.close()
    start()
    with writing(engine) as connection:
        assert jobs.waits_since(connection, 1) == waits
    supervisor.stop()
    assert not LaneLocks(FIRST).goes_first()
    engine.dispose()
