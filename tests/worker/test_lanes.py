"""Lanes of two processors, a stand-in for two GPUs: what runs beside what, alone, and what survives the worker."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sqlite3
import time
from pathlib import Path

import pytest
from rich.console import Console

from queue_runner.control import pausing
from queue_runner.host import locks
from queue_runner.host.run_dir import RunDir
from queue_runner.monitor import dashboard
from queue_runner.monitor.queue_status import read_status
from queue_runner.paths import Layout
from queue_runner.web import views
from queue_runner.web.overview import OverviewReader
from tests.cli_support import Cli
from tests.process_support import needs_linux
from tests.queue_support import Queue, until, warden_pid

pytestmark = [pytest.mark.process, needs_linux]

FIRST, SECOND = "cpu:0", "cpu:1"
WAITS = 'echo "start $MPSQ_RUN" >> $J; while [ ! -e go$MPSQ_RUN ]; do sleep 0.02; done; echo "end $MPSQ_RUN" >> $J'


@pytest.fixture
def lanes(queue: Queue) -> Queue:
    with queue.layout.config.open("a") as file:
        file.write(f'lanes = "{FIRST},{SECOND}"\n')
    return queue


def run_on(queue: Queue, script: str = WAITS, **options: object) -> int:
    return queue.submit(script, device="cpu", **options)


def running(queue: Queue) -> dict[str, str]:
    """The runs that are RUNNING and have begun, by lane."""
    begun = {line.split()[1] for line in queue.written() if line.startswith("start")}
    return {row["lane"]: row["run"] for row in queue.rows() if row["state"] == "RUNNING" and row["run"] in begun}


def go(queue: Queue, *runs: str) -> None:
    for run in runs:
        (queue.folder / f"go{run}").touch()


def stored(queue: Queue, sql: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(f"file:{queue.layout.db}?mode=ro", uri=True) as connection:
        return connection.execute(sql).fetchall()


def test_two_submissions_run_side_by_side_and_one_alone_waits_for_both(lanes: Queue) -> None:
    run_on(lanes, repeats=2)
    run_on(lanes)
    alone = lanes.submit(WAITS)  # names no device
    late = run_on(lanes)
    lanes.worker()
    until(lambda: running(lanes) == {FIRST: "1.1", SECOND: "2.1"}, "two runs at once")
    spec = json.loads((lanes.layout.run_dir("2.1") / "spec.json").read_text())
    assert (spec["cores"], spec["env"]["OMP_NUM_THREADS"]) == ([1], "1")
    go(lanes, "2.1", "1.1")
    until(lambda: running(lanes) == {FIRST: "1.2"}, "the second repeat on the lane of the first")
    go(lanes, "1.2")
    until(lambda: running(lanes) == {"machine": f"{alone}.1"}, "the run that needs the machine alone")
    go(lanes, f"{alone}.1", f"{late}.1")
    lanes.done(5)
    assert [line for line in lanes.written() if line.startswith("start")][-2:] == [
        f"start {alone}.1",
        f"start {late}.1",
    ]
    assert stored(lanes, "SELECT DISTINCT lane FROM jobs WHERE id = 1") == [(FIRST,)]
    asked = [json.loads(str(text))["cores"] for (text,) in stored(lanes, "SELECT spec_json FROM jobs ORDER BY id")]
    assert asked == [1, 1, 0, 1]


def test_only_what_ends_before_overtakes_a_run_that_needs_the_machine_alone(lanes: Queue) -> None:
    """One lane is busy for as long as its run took before; the other one is free."""
    short = "echo short >> $J"
    run_on(lanes)
    run_on(lanes, short)
    lanes.worker()
    until(lambda: lanes.rows()[1]["state"] == "DONE" and running(lanes) == {FIRST: "1.1"}, "the end of the short one")
    ((started, took_s),) = stored(lanes, "SELECT r.started_at, e.real_s FROM runs r, exits e WHERE r.job_id = 1")
    until(lambda: time.time() - float(str(started)) > 5 * float(str(took_s)), "a long run")
    go(lanes, "1.1")
    lanes.done(2)
    before = run_on(lanes, repeats=2)
    alone = lanes.submit(WAITS)
    run_on(lanes, "echo unknown >> $J")
    known = run_on(lanes, short)
    until(lambda: {row["job_id"]: row["state"] for row in lanes.rows()}[known] == "DONE", "the short one again")
    assert lanes.written().count("short") == 2 and "unknown" not in lanes.written()
    assert running(lanes) == {FIRST: f"{before}.1"}
    go(lanes, f"{before}.1", f"{before}.2")
    until(lambda: running(lanes) == {"machine": f"{alone}.1"}, "the run that needs the machine alone")
    assert "unknown" not in lanes.written()
    go(lanes, f"{alone}.1")
    assert {row["outcome"] for row in lanes.done(7)} == {"SUCCEEDED"}


def test_a_run_that_waits_to_be_alone_keeps_the_lanes_free(lanes: Queue) -> None:
    run_on(lanes)
    lanes.worker()
    until(lambda: running(lanes) == {FIRST: "1.1"})
    lanes.submit(WAITS)
    run_on(lanes)
    until(
        lambda: stored(lanes, "SELECT blocked_reason FROM lanes WHERE name = 'cpu:1'") == [("kept free for run 2.1",)],
        "the reservation",
    )
    go(lanes, "1.1")
    until(lambda: running(lanes) == {"machine": "2.1"})
    go(lanes, "2.1")
    until(lambda: running(lanes) == {FIRST: "3.1"})
    go(lanes, "3.1")
    lanes.done(3)


def test_another_queue_starts_nothing_on_lanes_for_which_a_run_of_several_waits(
    lanes: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        run_on(lanes)
    lanes.worker()
    until(lambda: running(lanes) == {FIRST: "1.1", SECOND: "2.1"})
    (folder := tmp_path / "other").mkdir()
    monkeypatch.setenv("MPSQ_HOME", str(folder / "home"))
    (home := Layout(folder / "home")).home.mkdir(mode=0o700)
    wide = Queue(home, folder)
    with home.config.open("a") as file:
        file.write(f'lanes = "{FIRST},{SECOND}"\n')
    try:
        run_on(wide, gpus=2)
        wide.worker()
        until(lambda: locks.is_held(locks.turn_of(locks.lane_lock_path(SECOND))), "the turn of the run of two lanes")
        go(lanes, "2.1")
        what = "a run of another queue needs this lane with others and starts first"
        until(lambda: (what,) in stored(lanes, "SELECT blocked_reason FROM lanes"), "what the lane waits for")
        assert running(lanes) == {FIRST: "1.1"}
        go(lanes, "1.1")
        until(lambda: running(wide) == {f"{FIRST},{SECOND}": "1.1"}, "the run of two lanes")
        until(lambda: not running(lanes), "the end as the other queue stores it")
        go(wide, "1.1")
        until(lambda: "3.1" in running(lanes).values(), "the run that let it go first")
        go(lanes, "3.1")  # where it has the lane already, its end comes before the other end is stored
        wide.done(1)
    finally:
        wide.close()
    lanes.done(3)


def test_who_holds_the_machine_keeps_the_lanes_out_and_lanes_keep_it_out(lanes: Queue) -> None:
    path = locks.lane_lock_path("machine")
    held = locks.try_lock(path)  # as the worker of every earlier version
    assert held is not None
    run_on(lanes)
    lanes.worker()
    until(
        lambda: stored(lanes, "SELECT 1 FROM lanes WHERE blocked_reason LIKE '%another queue of yours%'"), "the block"
    )
    held.close()
    until(lambda: running(lanes) == {FIRST: "1.1"})
    assert locks.try_lock(path, 0.05) is None
    go(lanes, "1.1")
    lanes.done(1)
    until(lambda: locks.try_lock(path, 0.05), "the machine's lock").close()


def test_the_next_worker_adopts_both(lanes: Queue) -> None:
    run_on(lanes)
    run_on(lanes)
    worker = lanes.worker()
    until(lambda: len(running(lanes)) == 2)
    worker.kill()
    worker.wait()
    run_on(lanes)
    lanes.worker()
    os.kill(warden_pid(lanes.layout, "2.1"), signal.SIGKILL)  # what it leaves is ended; the other lane is untouched
    until(lambda: lanes.rows()[1]["state"] == "DONE")
    assert lanes.rows()[1]["outcome"] == "LOST"
    until(lambda: running(lanes) == {FIRST: "1.1", SECOND: "3.1"})
    go(lanes, "1.1", "3.1")
    assert [row["outcome"] for row in lanes.done(3)] == ["SUCCEEDED", "LOST", "SUCCEEDED"]
    assert not locks.is_held(RunDir(lanes.layout.run_dir("1.1")).warden_lock)


def test_who_waits_for_a_question_starts_once_it_is_closed(lanes: Queue) -> None:
    """The history has no entry of it, and nothing else could start: the other submission has one lane."""
    question = run_on(lanes, "until [ -e go ]; do sleep 0.02; done; exit 3", until="1%")
    run_on(lanes, repeats=2)
    run_on(lanes, "echo after >> $J", after=(f"{question}:fail",))
    lanes.worker()
    until(lambda: running(lanes) == {SECOND: "2.1"}, "the submission beside the question")
    go(lanes, "")
    until(lambda: lanes.written() == ["start 2.1", "after"], "the job that waited for the question")


def test_a_paused_lane_starts_nothing_and_its_submissions_wait(lanes: Queue) -> None:
    run_on(lanes, repeats=2)
    lanes.worker()
    until(lambda: running(lanes) == {FIRST: "1.1"})
    pausing.pause_lane(lanes.layout, "test", FIRST)
    run_on(lanes)
    go(lanes, "1.1")
    until(lambda: running(lanes) == {SECOND: "2.1"})
    assert lanes.rows()[1]["state"] == "QUEUED"
    pausing.pause_lane(lanes.layout, None, FIRST)
    until(lambda: running(lanes) == {FIRST: "1.2", SECOND: "2.1"})
    go(lanes, "1.2", "2.1")
    lanes.done(3)


def test_each_lane_is_shown_and_what_is_done_to_one_leaves_the_other(lanes: Queue, mpsq: Cli) -> None:
    run_on(lanes, repeats=2)
    run_on(lanes)
    lanes.worker()
    until(lambda: running(lanes) == {FIRST: "1.1", SECOND: "2.1"}, "two runs at once")
    mpsq.ok("pause", "--lane", SECOND)
    found = read_status(lanes.layout)
    console = Console(file=io.StringIO(), width=100, height=40)
    console.print(dashboard.frame(found, [], dashboard.tables(found), console))
    watched = console.file.getvalue()  # type: ignore[attr-defined]
    page = dict(views.queue(lanes.layout, OverviewReader(lanes.layout)).lane)
    for shown in (mpsq.ok("status").out, watched, f"lanes {page['lanes']}"):
        assert re.search(r"lanes +cpu:0 +1\.1 ", shown), shown
        assert re.search(r"cpu:1 +2\.1 .*resume --lane", shown), shown
    why = " ".join(mpsq.ok("why", "1.2").out.split())
    assert "on lane cpu:0" in why and "run 1.1" in why
    assert "cpu:0" in mpsq.ok("show", "1.1").out
    assert mpsq.ok("cancel", "1.1").out == "run 1.1 cancelled\n"
    until(lambda: running(lanes) == {FIRST: "1.2", SECOND: "2.1"}, "the next on the lane of the one that was cancelled")
    assert lanes.rows()[0]["outcome"] == "CANCELLED"
    go(lanes, "1.2", "2.1")
    assert [row["outcome"] for row in lanes.done(3)] == ["CANCELLED", "SUCCEEDED", "SUCCEEDED"]
