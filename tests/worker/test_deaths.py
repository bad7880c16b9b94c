"""The table of deaths (docs/supervision.md): kill exactly there, start a worker, look whether the promise holds."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from queue_runner.host import locks
from queue_runner.host.warden_records import NotedProcess
from tests.process_support import SETSID, variables_of
from tests.queue_support import Queue, until, warden_pid

pytestmark = pytest.mark.process

JOB = 'echo "start $MPSQ_RUN" >> $J; sleep 0.3 && echo "end $MPSQ_RUN" >> $J; exit 3'


@pytest.mark.parametrize(
    "point",
    [
        "worker.lane",
        "worker.claimed",
        "worker.prepared",
        "worker.spawned",
        "worker.took_lane",
        "worker.scanned",
        "worker.ingested",
        "worker.done",
    ],
)
def test_the_worker_dies(queue: Queue, point: str) -> None:
    queue.submit(JOB)
    worker = queue.worker(point)
    assert queue.stopped(point) == worker.pid
    worker.kill()
    worker.wait()
    queue.worker()
    (row,) = queue.done()
    assert (row["outcome"], row["exit_code"]) == ("FAILED", 3)
    assert queue.written() == ["start 1.1", "end 1.1"]
    assert row["real_s"] >= 0.3 and row["max_rss_bytes"] > 0


@pytest.mark.parametrize("point", ["warden.locked", "warden.before_started"])
def test_the_warden_dies_before_the_fence(queue: Queue, point: str) -> None:
    queue.submit(JOB)
    worker = queue.worker(point)
    warden = queue.stopped(point)
    worker.kill()
    worker.wait()
    os.kill(warden, signal.SIGKILL)
    queue.worker()
    (row,) = queue.done()
    assert (row["outcome"], row["exit_code"]) == ("FAILED", 3)
    assert queue.written() == ["start 1.1", "end 1.1"]
    assert "unclaim" in queue.verbs(1)


@pytest.mark.parametrize("point", ["warden.started", "warden.spawned"])
def test_the_warden_dies_after_the_fence(queue: Queue, point: str) -> None:
    queue.submit(JOB.replace("sleep 0.3", "sleep 60"))
    queue.worker(point)
    os.kill(queue.stopped(point), signal.SIGKILL)
    (row,) = queue.done()
    assert (row["outcome"], row["reason"].split(":")[0]) == ("LOST", "warden_died")
    assert queue.written() in ([], ["start 1.1"])


@pytest.mark.parametrize("point", ["warden.reaped", "warden.exit_tmp"])
def test_the_warden_dies_between_the_end_and_its_word(queue: Queue, point: str) -> None:
    queue.submit(JOB)
    queue.worker(point)
    os.kill(queue.stopped(point), signal.SIGKILL)
    (row,) = queue.done()
    assert (row["outcome"], row["reason"].split(":")[0]) == ("LOST", "warden_died")
    assert queue.written() == ["start 1.1", "end 1.1"]


@pytest.mark.parametrize("point", ["warden.exited", "warden.swept"])
def test_the_warden_dies_after_its_word(queue: Queue, point: str) -> None:
    queue.submit(JOB)
    queue.worker(point)
    os.kill(queue.stopped(point), signal.SIGKILL)
    (row,) = queue.done()
    assert (row["outcome"], row["exit_code"]) == ("FAILED", 3)


def test_the_end_is_stored_while_the_warden_has_not_exited_yet(queue: Queue) -> None:
    """It has let go of the lane and rung by then; the worker used to wait for its next tick, of a second."""
    queue.submit(JOB)
    queue.worker("warden.rang")
    warden = queue.stopped("warden.rang")
    (row,) = queue.done()
    assert (row["outcome"], row["exit_code"]) == ("FAILED", 3)
    os.kill(warden, signal.SIGCONT)


def test_the_warden_dies_in_mid_run_and_nothing_is_left(queue: Queue) -> None:
    queue.submit(f"{SETSID} sleep 300 & sleep 300 & echo started >> $J; sleep 300")
    queue.submit("echo next >> $J")
    queue.worker()
    until(queue.written, "the job")
    os.kill(warden_pid(queue.layout, "1.1"), signal.SIGKILL)
    first, second = queue.done(2)
    assert (first["outcome"], second["outcome"]) == ("LOST", "SUCCEEDED")
    assert queue.written() == ["started", "next"]
    assert not sleeping(queue)


def sleeping(queue: Queue) -> list[str]:
    """Living processes whose environment names this test's queue."""
    home, found = str(queue.layout.home), []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or ())
        if "sleep" in command and variables_of(process.pid).get("MPSQ_HOME") == home:
            found.append(command)
    return found


def test_the_trainer_dies_and_its_status_is_true(queue: Queue) -> None:
    queue.submit("echo $$ >> $J; sleep 300")
    queue.worker()
    until(queue.written, "the job")
    os.kill(int(queue.written()[0]), signal.SIGKILL)
    (row,) = queue.done()
    assert (row["outcome"], row["signal"]) == ("KILLED", 9)


def test_the_worker_is_killed_in_mid_run_and_the_next_one_adopts(queue: Queue) -> None:
    queue.submit(JOB.replace("sleep 0.3", "while [ ! -e go ]; do sleep 0.02; done"))
    worker = queue.worker()
    until(queue.written, "the job")
    worker.kill()
    worker.wait()
    queue.adopted_by(queue.worker())
    assert [row["state"] for row in queue.rows()] == ["RUNNING"]
    (queue.folder / "go").touch()
    (row,) = queue.done()
    assert (row["outcome"], row["exit_code"]) == ("FAILED", 3)
    assert queue.written() == ["start 1.1", "end 1.1"]


def test_sigterm_detaches_and_the_run_goes_on(queue: Queue) -> None:
    queue.submit(JOB.replace("sleep 0.3", "while [ ! -e go ]; do sleep 0.02; done"))
    worker = queue.worker()
    until(queue.written, "the job")
    worker.terminate()
    assert worker.wait() == 0
    (queue.folder / "go").touch()
    until(lambda: len(queue.written()) == 2, "the end of the job")
    queue.worker()
    assert queue.done()[0]["exit_code"] == 3


def test_all_die_at_once(queue: Queue) -> None:
    queue.submit("echo $$ >> $J; sleep 300")
    queue.submit("echo next >> $J")
    worker = queue.worker()
    trainer = int(until(queue.written, "the job")[0])
    for pid in (worker.pid, warden_pid(queue.layout, "1.1"), trainer):
        os.kill(pid, signal.SIGKILL)
    worker.wait()
    queue.worker()
    first, second = queue.done(2)
    assert (first["outcome"], second["outcome"]) == ("LOST", "SUCCEEDED")
    assert not sleeping(queue)


def test_the_machine_reboots(queue: Queue) -> None:
    """The boot id of the claim is another one: what ran is lost, what waits goes on without a hand."""
    import sqlite3

    queue.submit("echo started >> $J; exec sleep 300")
    queue.submit("echo next >> $J")
    worker = queue.worker()
    until(queue.written, "the job")
    warden = warden_pid(queue.layout, "1.1")
    worker.kill()
    worker.wait()
    os.kill(warden, signal.SIGKILL)
    trainers = [process.pid for process in noted(queue)]
    for pid in trainers:
        os.kill(pid, signal.SIGKILL)
    with sqlite3.connect(queue.layout.db) as connection:
        connection.execute("UPDATE runs SET boot_id = 'the boot before' WHERE state = 'RUNNING'")
    queue.worker()
    first, second = queue.done(2)
    assert (first["outcome"], first["reason"].split(":")[0], second["outcome"]) == ("LOST", "reboot", "SUCCEEDED")


def noted(queue: Queue) -> list[NotedProcess]:
    from queue_runner.host.run_dir import RunDir

    return until(RunDir(queue.layout.run_dir("1.1")).noted, "noted processes")


@pytest.mark.parametrize(("point", "count"), [("submit.before_commit", 0), ("submit.committed", 1)])
def test_the_submitter_dies(queue: Queue, point: str, count: int) -> None:
    submitter = queue.command("submit", "--", "/usr/bin/true", stop_at=point)
    queue.stopped(point)
    submitter.kill()
    submitter.wait()
    assert len(queue.rows()) == count
    queue.submit("exit 0")
    queue.worker()
    assert [row["outcome"] for row in queue.done(count + 1)] == ["SUCCEEDED"] * (count + 1)


@pytest.mark.parametrize("point", ["cancel.committed", "cancel.filed"])
def test_the_canceller_dies(queue: Queue, point: str) -> None:
    queue.submit("echo started >> $J; sleep 300")
    queue.worker()
    until(queue.written, "the job")
    canceller = queue.command("cancel", "1", stop_at=point)
    queue.stopped(point)
    canceller.kill()
    canceller.wait()
    assert queue.done()[0]["outcome"] == "CANCELLED"
    assert not sleeping(queue)


def test_a_second_worker_says_who_holds_the_queue(queue: Queue) -> None:
    first = queue.worker()
    until(queue.layout.fifo.exists, "the first worker")
    second = queue.worker()
    assert second.wait() == 75
    assert f"process {first.pid}" in queue.log()
    as_a_service = queue.worker("", "--service")
    assert as_a_service.wait() == 0


def test_a_service_waits_for_a_worker_that_ends_with_the_queue(queue: Queue) -> None:
    """`mpsq run` starts one while the service is down, as after an upgrade: nobody would start the service again."""
    queue.submit(f"while [ ! -e {queue.folder}/go ]; do sleep 0.02; done")
    until_idle = queue.worker("", "--until-idle")
    until(lambda: queue.rows()[0]["started_at"], "the start")
    service = queue.worker("", "--service")
    until(lambda: "this one waits" in queue.log(), "the service")
    (queue.folder / "go").touch()
    assert until_idle.wait() == 0
    queue.submit("echo ran >> $J")
    queue.done(2)
    assert service.poll() is None and queue.written() == ["ran"]


def test_two_queues_on_one_machine_take_turns(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from queue_runner.host.home import ensure_home

    (tmp_path / "other").mkdir()
    monkeypatch.setenv("MPSQ_HOME", str(tmp_path / "other" / "home"))
    other = Queue(ensure_home(tmp_path / "other" / "home"), tmp_path / "other")
    other.journal = queue.journal
    script = f'echo "start {{}}" >> $J; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo "end {{}}" >> $J'
    try:
        other.submit(script.format("theirs", "theirs"), repeats=3)
        other.worker()
        until(lambda: other.rows()[0]["started_at"], "the start of their first run")
        monkeypatch.setenv("MPSQ_HOME", str(queue.layout.home))
        queue.submit(script.format("ours", "ours"), repeats=3)
        queue.worker()
        until(lambda: locks.is_held(locks.turn_of(locks.lane_lock_path("machine"))), "the turn")
        (tmp_path / "go").touch()
        queue.done(3)
        other.done(3)
    finally:
        other.close()
    words = [line.split() for line in queue.written()]
    assert [word for word, _ in words] == ["start", "end"] * 6, "never two at once"
    assert words[2] == ["start", "ours"], "a queue that had the next run ready kept the other one out until its last"
