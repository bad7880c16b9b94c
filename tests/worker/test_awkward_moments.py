"""Awkward moments: a signal in the middle of a step, a cancel between claim and start, a wish that comes too early."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from queue_runner import config_file
from queue_runner.config_file import Config
from queue_runner.control import pausing
from queue_runner.host import locks, wakeup
from queue_runner.model import DEFAULT_LANE
from queue_runner.store import read
from queue_runner.store.engine import open_engine
from queue_runner.worker import main_loop
from queue_runner.worker.main_loop import LOOK_UP_S
from queue_runner.worker.now import Clocks
from queue_runner.worker.supervisor import Supervisor
from queue_runner.worker.warden_starter import WardenStarter
from tests import named_rows
from tests.process_support import is_there
from tests.queue_support import Queue, until, warden_pid
from tests.worker.test_hostile_jobs import ask_to_cancel

pytestmark = pytest.mark.process

JOB = "echo ran >> $J; exit 3"


@pytest.mark.parametrize(
    ("point", "number"),
    [
        *((f"worker.{point}", signal.SIGTERM) for point in ("lane", "claimed", "spawned", "ingested", "done")),
        *(("worker.spawned", number) for number in (signal.SIGHUP, signal.SIGINT)),
    ],
)
def test_a_signal_in_the_middle_of_a_step(queue: Queue, point: str, number: signal.Signals) -> None:
    """The step is finished, the worker ends, and it says nothing of an exception."""
    queue.submit(JOB, device="cpu")  # else a worker that waits for a look at the GPU reaches worker.lane again
    worker = queue.worker(point)
    queue.stopped(point)
    worker.send_signal(number)
    worker.send_signal(signal.SIGCONT)
    assert worker.wait() == 0
    assert "Traceback" not in queue.log()
    queue.worker()
    assert queue.done()[0]["exit_code"] == 3
    assert queue.written() == ["ran"]


def test_a_worker_under_nohup_outlives_a_hangup(queue: Queue) -> None:
    """Signals that its parent ignores stay ignored: SIGHUP under nohup, SIGINT in a script's background job."""
    ignored = (signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    try:
        worker = queue.worker()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    queue.submit(JOB)
    queue.done()
    for number in ignored:
        worker.send_signal(number)
    queue.submit(JOB)
    assert len(queue.done(2)) == 2 and worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_supervisors_that_cannot_start_cost_one_run_and_not_the_queue(queue: Queue) -> None:
    """As where another Python has taken the place of the one that a worker's environment uses."""
    for _ in range(3):
        queue.submit("echo ran >> $J")
    code = (
        "from queue_runner.worker import main_loop, warden_starter\n"
        "warden_starter.PROGRAM, main_loop.BUSY_TICK_S = 'raise SystemExit(\"bad marshal data\")', 0.02\n"
        "main_loop.main([])\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        reason = until(lambda: blocked_reason(queue) or len([row for row in queue.rows() if row["outcome"]]) > 1, "it")
        assert "run 2.1" in str(reason) and "bad marshal data" in str(reason)
    finally:
        worker.terminate()
        worker.wait()
    assert [row["outcome"] for row in queue.rows()] == ["SPAWN_FAILED", None, None]
    queue.worker()
    queue.done(3)
    assert queue.written() == ["ran", "ran"]


def test_a_mistake_of_ours_before_a_start_costs_that_run_and_not_the_queue(queue: Queue) -> None:
    for _ in range(3):
        queue.submit("echo ran >> $J")
    code = (
        "from queue_runner.worker import launch, main_loop\n"
        "prepare = launch.prepare\n"
        "launch.prepare = lambda *given: {}['lost'] if given[2].id.job < 3 else prepare(*given)\n"
        "main_loop.main(['--until-idle'])\n"
    )
    subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=True)
    assert [row["outcome"] for row in queue.rows()] == ["SPAWN_FAILED", "SPAWN_FAILED", "SUCCEEDED"]
    assert "KeyError('lost')" in queue.rows()[0]["reason"]


def test_beside_a_run_that_writes_nothing_the_worker_steps_only_when_a_sample_is_due(
    queue: Queue, tmp_path: Path
) -> None:
    """What the run writes is stored all the same, and the loss of its warden is noticed, without the next tick."""
    note = '{"v": 1, "type": "note", "t": 0.1, "kind": "hello", "text": "it wrote"}'
    queue.submit(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo '{note}' >> $MPSQ_EVENTS; sleep 600")
    code = (
        "from queue_runner.worker import main_loop, observer\n"
        "main_loop.WATCH_TICK_S = 3600.0\n"
        "observer.FIRST_S = observer.FIRST_EVERY_S = 0.0\n"
        "step = main_loop.Steps.step\n"
        f"main_loop.Steps.step = lambda self: print('x', file=open({str(tmp_path / 'steps')!r}, 'a')) or step(self)\n"
        "main_loop.main([])\n"
    )
    queue.layout.config.write_text("sample_s = 3600\n")
    worker = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)

    def rests() -> bool:
        before = (tmp_path / "steps").read_text()
        time.sleep(2 * LOOK_UP_S)
        return (tmp_path / "steps").read_text() == before

    try:
        warden = warden_pid(queue.layout, "1.1")
        until(rests, "a rest")
        (tmp_path / "go").touch()
        with read.reading(queue.layout.db) as connection:
            until(lambda: named_rows.detail(connection, "notes", 1), "the note")
        until(rests, "another rest")
        os.kill(warden, signal.SIGKILL)
        assert queue.done()[0]["outcome"] == "LOST"
    finally:
        worker.terminate()
        worker.wait()


def test_a_part_with_nothing_to_do_rests_until_the_next_poll_or_ring(queue: Queue, tmp_path: Path) -> None:
    """So an idle worker costs next to nothing."""
    queue.layout.config.write_text("poll_s = 3.0\n")
    code = (
        "import sys, time\n"
        "from queue_runner.worker import main_loop\n"
        "class Part:\n"
        "    def step(self): return print(time.monotonic(), file=calls, flush=True) is not None\n"
        "    def busy(self): return False\n"
        "    def stop(self): pass\n"
        "calls = open(sys.argv.pop(), 'w')\n"
        "main_loop.extensions.worker_parts = lambda *_: [Part()]\n"
        "main_loop.PARTS_EVERY_S = 0.05\n"
        "main_loop.main([])\n"
    )
    calls = tmp_path / "calls"
    calls.touch()
    worker = subprocess.Popen([sys.executable, "-c", code, str(calls)], stderr=subprocess.DEVNULL)

    def gaps() -> list[float]:
        return [later - earlier for earlier, later in pairwise(map(float, calls.read_text().split()))]

    try:
        until(lambda: any(gap > 2 for gap in gaps()), "a rest")
        rested = len(gaps())
        until(lambda: wakeup.ring(queue.layout.fifo) or any(gap < 1 for gap in gaps()[rested:]), "two calls in a row")
    finally:
        worker.terminate()
        worker.wait()


def blocked_reason(queue: Queue) -> str | None:
    with read.reading(queue.layout.db) as connection:
        reason = read.lane(connection, DEFAULT_LANE).blocked_reason
    return reason if reason and "not known" not in reason else None


@pytest.mark.parametrize("point", ["worker.claimed", "worker.spawned"])
def test_cancel_between_claim_and_start(queue: Queue, point: str) -> None:
    """At worker.claimed the request is there before the warden is: the job never runs."""
    queue.submit("echo ran >> $J; sleep 300")
    worker = queue.worker(point)
    queue.stopped(point)
    ask_to_cancel(queue)
    worker.send_signal(signal.SIGCONT)
    assert queue.done()[0]["outcome"] == "CANCELLED"
    if point == "worker.claimed":
        assert queue.written() == []


def unreadable(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Submit a job whose code nobody can read. Return the file with the process id of who tries to."""
    tree, told = queue.folder / "tree", queue.folder / "told"
    tree.mkdir()
    (tree / "train.sh").write_text(f"echo ran >> {queue.journal}\n")
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    queue.submit("sh train.sh", cwd=str(tree), snapshot="auto")
    stand_in = queue.folder / "bin" / "git"  # for one that waits for the answer to a privacy prompt
    stand_in.parent.mkdir()
    stand_in.write_text(f"#!/bin/sh\necho $$ > {told}\nexec sleep 1000\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(stand_in.parent), prepend=os.pathsep)
    return told


def reader(told: Path) -> int:
    """Return the process that tries to read it, once it is there."""
    pid = int(until(lambda: told.exists() and told.read_text(), "the look at its code"))
    told.unlink()
    return pid


@pytest.mark.needs_program("git")
def test_cancel_while_its_code_is_read(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that macOS guards is waited for in the child that reads it: the worker waited two minutes with it."""
    told = unreadable(queue, monkeypatch)
    queue.worker()
    pid = reader(told)
    ask_to_cancel(queue)
    (row,) = queue.done()
    assert row["outcome"] == "CANCELLED" and queue.written() == []
    until(lambda: not is_there(pid), "the end of who reads")


@pytest.mark.needs_program("git")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_ends_while_code_is_read(queue: Queue, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It waited two minutes for the code, or left the process behind that reads it."""
    told = unreadable(queue, monkeypatch)
    worker = queue.worker()
    pid = reader(told)
    until(lambda: "must be read before run 1.1 begins" in queue.why("1"), "the reason")
    worker.send_signal(number)
    assert worker.wait() in (0, -number)
    until(lambda: not is_there(pid), "the end of who reads")
    assert [row["state"] for row in queue.rows()] == ["QUEUED" if number == signal.SIGTERM else "RUNNING"]
    queue.worker()
    reader(told)
    assert [row["state"] for row in queue.rows()] == ["RUNNING"] and queue.written() == []


def test_cancel_of_a_run_that_never_came_to_its_fence(queue: Queue) -> None:
    """Worker and warden are dead, the user has cancelled: it does not start again only to be stopped."""
    queue.submit(JOB)
    worker = queue.worker("warden.locked")
    warden = queue.stopped("warden.locked")
    worker.kill()
    worker.wait()
    os.kill(warden, signal.SIGKILL)
    ask_to_cancel(queue)
    queue.worker()
    assert queue.done()[0]["outcome"] == "CANCELLED"
    assert queue.written() == []


def test_a_lane_is_not_called_blocked_when_nothing_waits(queue: Queue) -> None:
    other = locks.try_lock(locks.lane_lock_path("machine"))
    assert other is not None
    queue.submit(JOB)
    queue.worker()
    until(lambda: blocked(queue), "the lane to be called blocked")
    ask_to_cancel(queue)
    until(lambda: blocked(queue) is None, "the lane to be called free")
    other.close()


def test_nobody_else_reads_what_a_queue_knows(queue: Queue) -> None:
    queue.submit(JOB)
    umask = os.umask(0o002)
    queue.worker()
    os.umask(umask)
    queue.done()
    run = queue.layout.run_dir("1.1")
    warden = (run / "warden", run / "warden" / "warden.log", run / "warden" / "exit.json")
    for path in (queue.layout.db, run, run / "spec.json", run / "stdout.log", *warden):
        assert path.stat().st_mode & 0o077 == 0, path


def blocked(queue: Queue) -> str | None:
    with sqlite3.connect(f"file:{queue.layout.db}?mode=ro", uri=True) as connection:
        row = connection.execute("SELECT blocked_reason FROM lanes").fetchone()
    return str(row[0]) if row and row[0] else None


def test_no_dead_warden_is_left_unburied(queue: Queue) -> None:
    queue.submit(JOB)
    worker = queue.worker()
    queue.done()
    until(lambda: not psutil.Process(worker.pid).children(), "the warden to be reaped")


def test_the_next_worker_owns_the_queue_at_once(queue: Queue) -> None:
    queue.submit("echo ran >> $J; while [ ! -e go ]; do sleep 0.02; done; exit 3")
    worker = queue.worker()
    until(queue.written, "the job")
    worker.kill()
    worker.wait()
    path = locks.worker_lock_path(queue.layout.home)
    next_one = queue.worker()
    until(lambda: (locks.read_holder(path) or {}).get("pid") == next_one.pid)
    assert queue.rows()[0]["state"] == "RUNNING"  # it adopts, and does not wait for the run
    (queue.folder / "go").touch()
    assert queue.done()[0]["exit_code"] == 3


def test_a_worker_that_leaves_a_paused_queue_names_what_still_waits(queue: Queue) -> None:
    """It ended at once without a word."""
    queue.submit("true")
    pausing.pause_lane(queue.layout, "test")
    assert queue.worker("", "--until-idle").wait() == 0
    assert "1 run cannot start" in queue.log() and queue.rows()[0]["state"] == "QUEUED"


def test_a_worker_that_is_about_to_leave_stays_for_a_new_job(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It left, and logged that the job cannot start."""
    held = locks.try_lock(locks.worker_lock_path(queue.layout.home))
    assert held is not None
    settings = config_file.load(queue.layout.config)
    worker = main_loop.Worker(queue.layout, settings, held, main_loop.ServiceManager(), until_idle=True)
    has_work = worker._has_work

    def submitting() -> bool:
        is_idle = not has_work()
        queue.submit("true")
        return not is_idle

    monkeypatch.setattr(worker, "_has_work", submitting)
    with caplog.at_level("INFO"):
        worker._step_once()
    assert not worker._stopped.is_set() and "cannot start" not in caplog.text
    worker._steps.stop()
    held.close()


def test_a_pause_between_runs_ends_in_time(queue: Queue) -> None:
    """The worker slept until it polled the queue again."""
    with queue.layout.config.open("a") as settings:
        settings.write("cooldown_s = 0.5\n")
    text = queue.layout.config.read_text()
    queue.layout.config.write_text(text.replace("poll_s = 1.0", "poll_s = 3600"))
    for _ in range(2):
        queue.submit("true")
    queue.worker()
    first, second = queue.done(2)
    assert second["started_at"] - first["ended_at"] >= 0.5


def test_a_pause_that_ends_during_a_step_makes_the_next_one_due(queue: Queue) -> None:
    """The simulator's seed 270: the step saw the pause, and nobody woke the worker after it."""
    now = 100.0
    clocks = Clocks(lambda: 5.0, lambda: now)
    engine, starter = open_engine(queue.layout.db), WardenStarter(queue.folder)
    supervisor = Supervisor(queue.layout, Config(), engine, print, starter, {}, clocks=clocks)
    supervisor._not_before = 101.0
    assert supervisor.state().cools and supervisor.due == 6.0
    now = 102.0
    assert supervisor.due == 5.0
    assert not supervisor.state().cools and supervisor.due is None
