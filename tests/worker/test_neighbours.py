"""Which runs of other lanes a run was beside, whatever the order in which a worker takes note of ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import convert

from queue_runner.host.run_dir import RunDir
from queue_runner.host.warden_records import RunEnd
from queue_runner.model import Ending, Outcome
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob
from queue_runner.store import jobs, read
from queue_runner.store.engine import Engine, open_engine, writing
from queue_runner.store.jobs import Claimed
from queue_runner.worker import finish
from tests import named_rows

pytestmark = pytest.mark.process


@pytest.fixture
def engine(layout: Layout) -> Iterator[Engine]:
    engine = open_engine(layout.db, keep_open=True)
    yield engine
    engine.dispose()


def exit_of(began: float, ended: float) -> dict[str, Any]:
    """What a warden writes of a command without an error."""
    times = {"real_s": ended - began, "slept_s": 0.0, "paused_s": 0.0, "started_at": began, "ended_at": ended}
    return {"v": 1, "exit_code": 0, "signal": None, "spawn_error": None, "stop": None, "oom_killed": False, **times}


class Box:
    """A queue with runs on lanes, as they are while they run. Times are seconds of one clock."""

    def __init__(self, engine: Engine, layout: Layout) -> None:
        self.engine, self.layout = engine, layout

    def run(self, lane: str, began: float, ended: float | None = None, **changes: Any) -> tuple[Claimed, RunDir]:
        """Add a run that is RUNNING in the database; with `ended` its warden has written the end."""
        with writing(self.engine) as connection:
            spec = JobSpec(kind="command", name="x", argv=("true",), on=changes.pop("on", {}))
            jobs.submit(connection, "test", 0, [NewJob(spec, 1)], [(0, 1)])
            connection.change("UPDATE runs SET lane = 'machine' WHERE state = 'QUEUED'")
            (queued,) = connection.column("SELECT id FROM runs WHERE state = 'QUEUED'")
            run = jobs.claimed(connection, queued, "machine", "t" * 32, "boot", time.time())
            assert run is not None
            values = {"lane": lane, "claimed_at": began, "started_at": began, **changes}
            for name, value in values.items():
                connection.change(f"UPDATE runs SET {name} = ? WHERE id = ?", (value, run.run_id))
        folder = RunDir(self.layout.run_dir(run.id))
        (folder.path / "warden").mkdir(parents=True)
        if ended is not None:
            (folder.path / "warden" / "exit.json").write_text(json.dumps(exit_of(began, ended)))
        return run, folder

    def end(self, run: Claimed, folder: RunDir, began: float, ended: float) -> None:
        ending = Ending(Outcome.SUCCEEDED, 0)
        finish.finish(self.engine, run, folder, ending, convert(exit_of(began, ended), RunEnd))

    def said(self, run: Claimed) -> list[str]:
        with read.reading(self.layout.db) as connection:
            return [
                t["detail"]
                for t in named_rows.detail(connection, "taints", run.run_id)
                if t["kind"] == "neighbour_busy"
            ]

    def share(self, run: Claimed) -> float | None:
        with read.reading(self.layout.db) as connection:
            found = connection.execute("SELECT value FROM v_metric WHERE run_id = ?", [run.run_id]).fetchone()
            return found and found["value"]


@pytest.fixture
def box(engine: Engine, layout: Layout) -> Box:
    return Box(engine, layout)


@pytest.mark.parametrize("first", ["own", "other"])
def test_both_runs_carry_it_in_whatever_order_their_ends_are_seen(box: Box, first: str) -> None:
    """As by a worker that was down while both ended."""
    reason, other = box.run("cpu:0", 100.0, 200.0), box.run("cpu:1", 150.0, 170.0)
    ends = [(*reason, 100.0, 200.0), (*other, 150.0, 170.0)]
    for run, folder, began, ended in ends if first == "own" else ends[::-1]:
        box.end(run, folder, began, ended)
    for (run, _), share, neighbour in ((reason, " 20.0 % ", " 2.1 on cpu:1"), (other, " 100 % ", " 1.1 on cpu:0")):
        (answer,) = box.said(run)
        assert share in answer and answer.endswith(neighbour)
    assert (box.share(reason[0]), box.share(other[0])) == (pytest.approx(0.2), pytest.approx(1.0))


def test_one_that_outlasts_the_run_counts_to_its_end(box: Box) -> None:
    reason, _ = box.run("cpu:0", 100.0, 200.0), box.run("cpu:1", 150.0)
    box.end(*reason, 100.0, 200.0)
    assert box.share(reason[0]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("lane", "began", "ended", "changes"),
    [
        ("cpu:1", 20.0, 100.0, {}),  # it ended hours before a worker came to see it
        ("cpu:1", 200.0, None, {}),  # it started after this run
        ("cpu:1", 150.0, None, {"started_at": None}),  # it is claimed, and has not started yet
        ("cpu:1", 150.0, 170.0, {"boot_id": "an earlier one"}),
        ("slurm-g2-0a1b2c", 150.0, 170.0, {"on": {"to": "slurm"}}),  # on a node
    ],
)
def test_what_was_not_beside_it(
    box: Box, lane: str, began: float, ended: float | None, changes: dict[str, Any]
) -> None:
    reason, _ = box.run("cpu:0", 100.0, 200.0), box.run(lane, began, ended, **changes)
    box.end(*reason, 100.0, 200.0)
    assert box.said(reason[0]) == [] and box.share(reason[0]) is None


def test_a_neighbour_whose_fence_no_worker_has_seen_yet_counts(box: Box) -> None:
    reason = box.run("cpu:0", 100.0, 200.0)
    _, there = box.run("cpu:1", 150.0, started_at=None)
    fence = {"v": 1, "run": "2.1", "boot_id": "boot", "warden_pid": os.getpid(), "warden_start": 1.0, "at": 150.0}
    (there.path / "warden" / "started").write_text(json.dumps(fence))
    box.end(*reason, 100.0, 200.0)
    assert box.share(reason[0]) == pytest.approx(0.5)


def test_a_run_that_was_sent_elsewhere_has_no_neighbours_here(box: Box, engine: Engine) -> None:
    reason, folder = box.run("slurm-g1-0a1b2c", 100.0, 200.0, on={"to": "slurm"})
    box.run("cpu:1", 150.0, 170.0)
    with writing(engine) as connection:
        assert finish.find_neighbours(connection, reason, folder, convert(exit_of(100.0, 200.0), RunEnd)) == []
