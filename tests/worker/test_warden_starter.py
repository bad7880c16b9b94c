"""The process that forks wardens may die, stop or refuse at any moment: no run is lost, and none runs twice."""

from __future__ import annotations

import errno
import marshal
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from queue_runner.host.run_dir import RunDir
from queue_runner.warden.instructions import FDS_WORD, REQUEST_END, SOMETHING_LEFT
from queue_runner.worker import warden_starter
from queue_runner.worker.warden_starter import WardenStarter, _ForkServer
from tests.patience import UNTIL_S, patience
from tests.process_support import is_there
from tests.queue_support import Queue, until, warden_pid

pytestmark = pytest.mark.process

JOB = 'echo "start $MPSQ_RUN" >> $J; while [ ! -e go ]; do sleep 0.02; done; echo "end $MPSQ_RUN" >> $J; exit 3'


def starter_of(queue: Queue) -> int:
    """The process that forked the first run's warden."""
    return psutil.Process(warden_pid(queue.layout, "1.1")).ppid()


def check_ran_once(queue: Queue) -> None:
    (queue.folder / "go").touch()
    (row,) = queue.done()
    assert (row["outcome"], row["exit_code"]) == ("FAILED", 3)
    assert queue.written() == ["start 1.1", "end 1.1"]


def test_it_dies_with_a_request(queue: Queue) -> None:
    queue.submit(JOB)
    queue.worker("warden.requested")
    os.kill(queue.stopped("warden.requested"), signal.SIGKILL)
    os.kill(queue.stopped("warden.requested"), signal.SIGCONT)  # the next one's
    check_ran_once(queue)
    assert "unclaim" in queue.verbs(1)


def test_it_dies_before_its_answer(queue: Queue) -> None:
    queue.submit(JOB)
    queue.worker("warden.forked")
    os.kill(queue.stopped("warden.forked"), signal.SIGKILL)
    check_ran_once(queue)
    assert "unclaim" not in queue.verbs(1)


def test_it_dies_in_mid_run(queue: Queue) -> None:
    queue.submit(JOB)
    queue.submit("echo next >> $J")
    queue.worker()
    until(queue.written, "the job")
    os.kill(starter_of(queue), signal.SIGKILL)
    (queue.folder / "go").touch()
    first, second = queue.done(2)
    assert (first["outcome"], first["exit_code"], second["outcome"]) == ("FAILED", 3, "SUCCEEDED")
    assert queue.written() == ["start 1.1", "end 1.1", "next"]


def test_it_stands_still_and_the_warden_dies(queue: Queue) -> None:
    """Nobody waits for the dead warden then: it is a zombie."""
    queue.submit(JOB)
    worker = queue.worker()
    until(queue.written, "the job")
    starter = starter_of(queue)
    os.kill(starter, signal.SIGSTOP)
    try:
        os.kill(warden_pid(queue.layout, "1.1"), signal.SIGKILL)
        (row,) = queue.done()
    finally:
        os.kill(starter, signal.SIGCONT)
    assert (row["outcome"], row["reason"].split(":")[0]) == ("LOST", "warden_died")
    assert worker.poll() is None


@pytest.mark.parametrize("point", ["warden.requested", "warden.forked"])
def test_its_worker_dies_while_it_stands_still(queue: Queue, point: str) -> None:
    """The next worker waits for the lane, which the request holds."""
    queue.submit(JOB)
    worker = queue.worker(point)
    starter = queue.stopped(point)
    worker.kill()
    worker.wait()
    queue.adopted_by(queue.worker())
    os.kill(starter, signal.SIGCONT)
    check_ran_once(queue)
    until(lambda: not is_there(starter), "its end")


def test_it_ends_with_its_worker(queue: Queue) -> None:
    queue.submit(JOB)
    worker = queue.worker()
    until(queue.written, "the job")
    starter = starter_of(queue)
    worker.kill()
    worker.wait()
    until(lambda: not is_there(starter), "its end")
    assert is_there(warden_pid(queue.layout, "1.1"))
    queue.worker()
    check_ran_once(queue)


Spawn = Callable[[str], int | None]


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[WardenStarter]:
    made = WardenStarter(tmp_path)
    yield made
    made.close()


@pytest.fixture
def spawn(starter: WardenStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spawn:
    """Start a warden whose supervision is this Python instead, with `folder` and `lane`, on a lane of 300 locks."""
    monkeypatch.setattr(warden_starter, "ANSWER_S", patience(UNTIL_S))
    (tmp_path / "warden").mkdir()
    *modules, forks = marshal.loads(warden_starter.warden_code())

    def spawn(program: str) -> int | None:
        code = f"import sys, os, time\ndef main(folder, lane):\n    {program}\n"
        patched = [*modules, ("queue_runner.warden.supervise", compile(code, "stand-in", "exec")), forks]
        monkeypatch.setattr(warden_starter, "warden_code", lambda: marshal.dumps(patched))
        ends = [end for _ in range(150) for end in socket.socketpair()]
        try:
            return starter.spawn(RunDir(tmp_path), [end.fileno() for end in ends])
        finally:
            for end in ends:
                end.close()

    return spawn


def test_a_warden_has_each_lock_of_its_lane_and_its_exit_code_is_known(spawn: Spawn, starter: WardenStarter) -> None:
    pid = spawn("return len({os.fstat(fd).st_ino for fd in lane}) // 50")
    assert pid is not None and starter.exit_code(pid, 60.0) == 6


def test_what_a_warden_says_at_its_end_is_in_its_log(spawn: Spawn, starter: WardenStarter, tmp_path: Path) -> None:
    pid = spawn("raise ValueError('no such thing')")
    assert pid is not None and starter.exit_code(pid, 60.0) == 1
    assert "no such thing" in (tmp_path / "warden" / "warden.log").read_text()


def test_a_fork_that_fails_is_an_error_of_the_machine(spawn: Spawn) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EAGAIN)):
        spawn("pass\ndef fork():\n    raise BlockingIOError(11, 'no process')\nos.fork = fork")


def test_a_slow_one_serves_the_request_that_nobody_waits_for(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(warden_starter, "ANSWER_S", 0.1)
    assert (
        spawn("open(folder + '/served', 'x').close()\n    return 0\nprint('slow', flush=True)\ntime.sleep(2)") is None
    )
    until((tmp_path / "served").exists, "the late warden")


def test_one_that_cannot_start_says_why_in_the_log_of_the_warden(spawn: Spawn, tmp_path: Path) -> None:
    assert spawn("pass\nraise SystemExit('no such library')") is None
    assert "no such library" in (tmp_path / "warden" / "warden.log").read_text()


def test_a_log_that_a_job_has_replaced_changes_nothing(spawn: Spawn, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "warden" / "warden.log")
    assert spawn("pass\nraise SystemExit('no such library')") is None


def test_a_warden_that_misses_a_lock_does_not_begin(
    spawn: Spawn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_ForkServer, "request", lacking(1))
    assert spawn("open(folder + '/served', 'x').close()") is None
    assert "299 of 300 locks" in (tmp_path / "warden" / "warden.log").read_text()
    assert not (tmp_path / "served").exists()


def lacking(count: int) -> Callable[..., None]:
    def request(self: _ForkServer, folder: Path, lane_fds: list[int]) -> None:
        for fd in lane_fds[count:]:
            socket.send_fds(self._socket, [FDS_WORD], [fd])
        self._socket.sendall(b"%d %b" % (len(lane_fds), bytes(folder)) + REQUEST_END)

    return request


def test_one_that_has_died_is_replaced(spawn: Spawn, starter: WardenStarter) -> None:
    first = spawn("time.sleep(600)")
    assert first is not None and starter.exit_code(first) is None
    os.kill(psutil.Process(first).ppid(), signal.SIGKILL)
    assert starter.exit_code(first, 60.0) == SOMETHING_LEFT
    os.kill(first, signal.SIGKILL)
    second = spawn("return 0")
    assert second is not None and starter.exit_code(second, 60.0) == 0


def test_it_rests_once_its_wardens_have_ended(
    spawn: Spawn, starter: WardenStarter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(warden_starter, "REST_S", 0.0)
    pid = spawn("while not os.path.exists(folder + '/go'): time.sleep(0.01)\n    return 0")
    assert pid is not None
    before = starter.get_ready()
    starter.rest()
    assert before.is_alive
    (tmp_path / "go").touch()
    assert starter.exit_code(pid, 60.0) is not None
    starter.rest()
    assert starter.get_ready() is not before
