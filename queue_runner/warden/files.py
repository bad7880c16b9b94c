"""The warden's clocks and files."""

# importing pathlib would add a fifth to the start time, so:
# ruff: noqa: PTH101, PTH103, PTH104, PTH108, PTH112, PTH114, PTH120
from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import sys
import time

TYPE_CHECKING = False  # importing typing would add a quarter to the start time
if TYPE_CHECKING:
    from typing import Any

LINUX = sys.platform.startswith("linux")
RESERVED_BYTES = 8192
_QUESTIONS_LAST_S = 1.0  # as in queue_runner/host/locks.py


def awake() -> float:
    """Return seconds on the clock that stops while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC))


def with_sleep() -> float:
    """Return seconds on the clock that runs while the machine sleeps (clock names are swapped on Linux and macOS)."""
    name = "CLOCK_BOOTTIME" if LINUX else "CLOCK_MONOTONIC_RAW"
    return time.clock_gettime(getattr(time, name, time.CLOCK_MONOTONIC))


def reach(name: str) -> None:
    """Stop here if a test requests it: create the file `name.pid` in $MPSQ_STOP_DIR, then SIGSTOP this process. With
    MPSQ_STOP_AT unset, as always outside tests, reaching a point costs one look at the environment."""
    if name and os.environ.get("MPSQ_STOP_AT") == name:
        marker = f"{os.environ['MPSQ_STOP_DIR']}/{name}.{os.getpid()}"
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        from threading import get_ident

        signal.pthread_kill(get_ident(), signal.SIGSTOP)  # a signal to the process may stop this thread slightly later


def say(*words: object) -> None:
    """Write a line to warden.log."""
    try:
        print(*words, file=sys.stderr, flush=True)
    except OSError:
        pass  # the disk is full: do not lose the result over a log line


def grants(fd: int, kind: int) -> bool:
    """Try a flock without waiting. Return whether it was granted."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def hold(path: str) -> int | None:
    """Take the lock; None when it is held. Wait for processes that merely query it (locks.py)."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = awake() + _QUESTIONS_LAST_S
    while not grants(fd, fcntl.LOCK_EX):
        if not grants(fd, fcntl.LOCK_SH) or awake() > deadline:
            os.close(fd)
            return None
        time.sleep(0.001)
    return fd


def sync(fd: int) -> None:
    """Flush to the medium: fsync alone leaves data in the drive's cache on macOS (fcntl(2), F_FULLFSYNC)."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(fd, full)
            return
        except OSError:
            pass
    os.fsync(fd)


def reserve(path: str) -> None:
    """Reserve disk space for a file to be published, so that a full disk does not lose it. Raises: OSError."""
    fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(fd, b" " * RESERVED_BYTES, 0) != RESERVED_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def clear_way(path: str) -> None:
    """Undo a job's interference with `path`: make its folders folders that are accessible to us, and remove anything
    but files at the names to be written. Reserved space stays."""
    folder = os.path.dirname(path)
    try:
        for each in (os.path.dirname(folder), folder):
            if os.path.lexists(each) and not (os.path.isdir(each) and not os.path.islink(each)):
                os.unlink(each)
            os.makedirs(each, 0o700, exist_ok=True)
            os.chmod(each, 0o700)
        for each in (path, path + ".tmp"):
            if os.path.lexists(each) and not stat.S_ISREG(os.lstat(each).st_mode):
                os.rename(each, f"{each}.aside-{time.time_ns()}")
    except OSError as error:
        say("in the way of", path, error)


def publish(path: str, data: dict[str, Any], before_rename: str = "", keep_trying_s: float = 0.0) -> None:
    """Write a file atomically and durably. Raises: OSError after `keep_trying_s` of failed attempts."""
    text = json.dumps(data).encode()
    deadline = awake() + keep_trying_s
    while True:
        try:
            # do not block on a FIFO or follow a link
            fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if os.pwrite(fd, text, 0) != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.ftruncate(fd, len(text))
                sync(fd)
            finally:
                os.close(fd)
            reach(before_rename)
            os.rename(path + ".tmp", path)
            folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                sync(folder)
            finally:
                os.close(folder)
            return
        except OSError as error:
            if awake() > deadline:
                raise
            say("cannot write", path, error)
            clear_way(path)
            time.sleep(0.1)
