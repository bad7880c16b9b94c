"""Locks: taken once, asked about without harm, given up by closing only."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from queue_runner.errors import MpsqError
from queue_runner.host import locks
from tests.patience import UNTIL_S, patience, until

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "locks"))
    return locks.lock_dir()


def test_a_lock_is_taken_once_and_free_after_close(folder: Path) -> None:
    path = folder / "a.lock"
    assert not locks.is_held(path)
    assert not path.exists(), "asking makes no file"
    held = locks.try_lock(path)
    assert held is not None and locks.is_held(path)
    assert locks.try_lock(path) is None
    held.close()
    held.close()
    assert not locks.is_held(path)
    assert path.exists(), "never unlinked"
    with pytest.raises(ValueError, match="closed"):
        _ = held.fd


def test_a_descriptor_is_closed_on_exec_unless_handed_over(folder: Path) -> None:
    held = locks.try_lock(folder / "a.lock")
    assert held is not None and not os.get_inheritable(held.fd)
    program = "import sys; sys.stdin.read()"
    command = [sys.executable, "-I", "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[held.fd]) as heir:
        held.close()
        assert locks.is_held(folder / "a.lock"), "the heir has it"
        assert heir.stdin is not None
        heir.stdin.close()
    assert not locks.is_held(folder / "a.lock")


def test_a_file_that_was_replaced_is_not_taken_for_the_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "a.lock"
    flock, meddled = fcntl.flock, []

    def unlink_first(fd: int, kind: int) -> None:
        if not meddled:
            meddled.append(path.unlink())
        flock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", unlink_first)
    held = locks.try_lock(path)
    assert held is not None and meddled
    assert os.fstat(held.fd).st_ino == path.stat().st_ino


def test_a_question_in_progress_does_not_fail_a_try(folder: Path) -> None:
    path = folder / "a.lock"
    path.touch(0o600)
    asking = os.open(path, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    threading.Timer(0.03, os.close, [asking]).start()
    held = locks.try_lock(path, patience(UNTIL_S))
    assert held is not None


def test_a_try_is_never_lost_to_those_who_ask(folder: Path) -> None:
    path = folder / "a.lock"
    path.touch(0o600)
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            locks.is_held(path)

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(100):
            held = locks.try_lock(path, patience(UNTIL_S))
            assert held is not None
            held.close()
    finally:
        stop.set()
        for asker in askers:
            asker.join()


def _count_up(path: Path, counter: Path, times: int) -> None:
    done = 0
    while done < times:
        held = locks.try_lock(path)
        if held is None:
            continue
        with held:
            counter.write_text(str(int(counter.read_text()) + 1))
        done += 1


def test_two_never_hold_it_at_once(folder: Path, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    context = multiprocessing.get_context("fork")
    arguments = (folder / "a.lock", counter, 100)
    counters = [context.Process(target=_count_up, args=arguments) for _ in range(3)]
    for process in counters:
        process.start()
    for process in counters:
        process.join(patience(UNTIL_S))
    assert counter.read_text() == "300"


def test_the_holder_says_who_it_is(folder: Path) -> None:
    path = folder / "a.lock"
    assert locks.read_holder(path) is None
    held = locks.try_lock(path)
    assert held is not None
    held.write_holder({"home": "/h" * 400})
    held.write_holder({"home": "/h"})
    holder = locks.read_holder(path)
    assert holder is not None
    assert (holder["pid"], holder["home"]) == (os.getpid(), "/h")
    assert holder["start"] and holder["host"]
    path.write_bytes(b"\xff{")
    assert locks.read_holder(path) is None


def test_the_directory_is_private_and_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locks.lock_dir().stat().st_mode & 0o777 == 0o700
    open_one = tmp_path / "open"
    open_one.mkdir(mode=0o755)
    monkeypatch.setenv("MPSQ_LOCKS", str(open_one))
    with pytest.raises(MpsqError, match="open to other users"):
        locks.lock_dir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "file"))
    with pytest.raises(MpsqError, match="belongs to another user"):
        locks.lock_dir()


def test_the_default_directory_does_not_hang_on_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_BASES", (tmp_path / "missing", tmp_path))
    monkeypatch.delenv("MPSQ_LOCKS")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/somewhere")
    monkeypatch.setenv("HOME", "/elsewhere")
    folder = locks.lock_dir()
    assert folder == tmp_path / f"mpsq-{os.getuid()}"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert locks.lock_dir() == folder
    folder.chmod(0o755)
    locks.lock_dir()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rename(tmp_path / "other")
    folder.symlink_to(tmp_path / "other")
    with pytest.raises(MpsqError, match="belongs to another user"):
        locks.lock_dir()


def test_a_home_has_one_lock_by_whatever_path(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    assert locks.worker_lock_path(home) == locks.worker_lock_path(tmp_path / "link")
    assert locks.worker_lock_path(home) != locks.worker_lock_path(tmp_path)


def test_a_queue_has_one_worker_whatever_the_folder_of_its_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers that share a home have each a /var/tmp."""
    home = tmp_path / "home"
    home.mkdir()
    held = locks.try_worker(home)
    assert held is not None and locks.try_worker(home) is None and locks.worker(home)[0]
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "others"))
    assert locks.try_worker(home) is None and locks.worker(home) == (True, None)
    held.close()
    assert not locks.worker(home)[0]
    with locks.try_worker(home) or pytest.fail("it was not released"):
        assert locks.worker(home)[0]


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a\0"])
def test_a_lane_must_be_a_file_name(name: str) -> None:
    with pytest.raises(ValueError, match="lane"):
        locks.lane_lock_path(name)


def test_a_lock_that_cannot_be_opened_is_a_sentence(folder: Path) -> None:
    (folder / "a.lock").mkdir()
    with pytest.raises(MpsqError, match="cannot be taken"):
        locks.try_lock(folder / "a.lock")


def test_a_lock_that_stays_taken_is_a_sentence(folder: Path) -> None:
    with locks.alone(folder / "a.lock", 1.0), pytest.raises(MpsqError) as error:  # type: ignore[union-attr]
        locks.share(folder / "a.lock", 0.05, "an mpsq submit")
    assert all(x in error.value.message for x in ("a.lock", "for 0 s"))
    assert "an mpsq submit" in str(error.value.hint)


def test_a_stream_of_sharers_waits_for_who_needs_it_alone(folder: Path) -> None:
    """One of four always shares it: without a turn to wait for, it would never be free."""
    path, over, taken = folder / "a.lock", threading.Event(), []

    def share_again_and_again() -> None:
        while not over.is_set():
            with locks.share(path):
                taken.append(over.wait(0.02))

    sharers = [threading.Thread(target=share_again_and_again) for _ in range(4)]
    for sharer in sharers:
        sharer.start()
    try:
        for _ in range(3):
            lock = locks.alone(path, patience(UNTIL_S))
            assert lock is not None
            taken.clear()
            lock.close()
            until(lambda: taken, "the sharers to have their turn again")
    finally:
        over.set()
        for sharer in sharers:
            sharer.join()
