"""When a lane of several is idle."""

from __future__ import annotations

import time

import pytest

from queue_runner.host import locks
from queue_runner.host.run_dir import RunDir
from queue_runner.monitor.queue_state import idle
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob
from queue_runner.store import jobs
from queue_runner.store.engine import open_engine, writing
from tests.cli_support import Cli

pytestmark = pytest.mark.process

FIRST, SECOND = "cpu:0", "cpu:1"


@pytest.mark.parametrize(
    ("lane", "keeps"),
    [("machine", {FIRST, SECOND, None}), (FIRST, {FIRST, None}), (f"{FIRST},{SECOND}", {FIRST, SECOND, None})],
)
def test_a_lane_is_not_idle_while_a_run_has_it(layout: Layout, lane: str, keeps: set[str | None]) -> None:
    engine = open_engine(layout.db)
    with writing(engine) as connection:
        jobs.submit(connection, "test", 0, [NewJob(JobSpec("command", "x", argv=("true",)))], [(0, 1)])
        run = jobs.claimed(connection, 1, lane, "t" * 32, "boot", time.time())
    assert run is not None
    folder = RunDir(layout.run_dir(run.id))
    folder.path.mkdir(parents=True)
    with locks.try_lock(folder.warden_lock) or pytest.fail("the lock of the warden"):
        assert {one for one in (FIRST, SECOND, None) if not idle(layout, one)} == keeps
    assert idle(layout, FIRST)


def test_who_pauses_or_drains_a_lane_is_told_what_still_starts(layout: Layout, mpsq: Cli) -> None:
    mpsq.ok("config", "set", "lanes", f"{FIRST},{SECOND}")
    assert "whole machine still" in mpsq.ok("pause", "--lane", FIRST).err
    drained = mpsq.ok("pause", "--when-done", "--lane", FIRST).out
    assert drained.startswith(f"nothing runs on {FIRST}, ") and "whole machine still" in drained
