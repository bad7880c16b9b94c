"""The process table: one pass over /proc on Linux; on macOS libproc for this user's processes, psutil for others'.

A start time is in the kernel's own units: clock ticks since boot (field 22 of /proc/PID/stat, proc(5)) on Linux,
seconds since 1970 as recorded by the kernel (proc_pidinfo) on macOS. With the pid it identifies a process uniquely.
psutil's create_time does not on macOS: since psutil 7.1 it changes whenever the clock is set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from queue_runner.warden import processes

LINUX = sys.platform.startswith("linux")
TAG_VARIABLE = "MPSQ_TAG"

_SAME_START_S = 0.02  # macOS only: seconds as a double, possibly converted through JSON


@dataclass(frozen=True, order=True)
class Process:
    """A process, distinguishable from a later one of the same pid."""

    pid: int
    start: float


@dataclass(frozen=True)
class ProcessRow:
    """A row of the table. `ended`: a zombie, which uses nothing and only waits to be reaped."""

    process: Process
    parent: int
    group: int
    session: int
    ended: bool


def look(pid: int) -> ProcessRow | None:
    """Return the row of a process; None when there is no such process (on macOS: or a zombie)."""
    if LINUX:
        return _look_linux(pid)
    row = processes.row_darwin(pid)
    if row is None:
        return _look_psutil(pid)
    return ProcessRow(Process(pid, row.start), row.parent, row.group, row.session, row.ended)


def table() -> dict[int, ProcessRow]:
    """Return all visible processes by pid."""
    if LINUX:
        pids: Iterator[int] = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    else:
        import psutil

        pids = iter(psutil.pids())
    return {pid: seen for pid in pids if (seen := look(pid))}


def same_start(one: float, other: float) -> bool:
    """Return whether two start times are the same."""
    return one == other if LINUX else abs(one - other) < _SAME_START_S


def is_ours(pid: int) -> bool:
    """Return whether the process is this user's."""
    if LINUX:
        try:
            return os.stat(f"/proc/{pid}").st_uid == os.geteuid()  # noqa: PTH116
        except OSError:
            return False
    import psutil

    try:
        return bool(psutil.Process(pid).uids().effective == os.geteuid())
    except (psutil.Error, OSError):
        return False


def has_tag(pid: int, tag: str) -> bool:
    """Return whether the process was started with MPSQ_TAG=tag. Apple's own binaries hide their environment."""
    if LINUX:
        try:
            return f"{TAG_VARIABLE}={tag}".encode() in _read(f"/proc/{pid}/environ").split(b"\0")
        except OSError:
            return False
    import psutil

    try:
        return bool(psutil.Process(pid).environ().get(TAG_VARIABLE) == tag)
    except (psutil.Error, OSError):
        return False


def holds_lock(pid: int, path: Path, file: os.stat_result, taker: int | None) -> bool:
    """Return whether the process holds the flock on `path` (whose stat is `file`) that the process `taker` took.

    Having the file open is not holding it: another queue's worker opens it to try. On Linux fdinfo distinguishes the
    two, and shows who took the lock (0: a process that is gone, or is outside this container). Elsewhere nothing does,
    so a process that also has a worker's lock open is assumed to be a worker.
    """
    if LINUX:
        try:
            return _holds_lock_linux(pid, path.name, file, taker)
        except OSError:
            return False  # gone, or another user's
    import psutil

    try:
        names = {Path(opened.path).name for opened in psutil.Process(pid).open_files()}
    except (psutil.Error, OSError):
        return False
    return path.name in names and not any(n.startswith("worker-") and n.endswith(".lock") for n in names)


def _holds_lock_linux(pid: int, name: str, file: os.stat_result, taker: int | None) -> bool:
    for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
        try:
            if not os.readlink(f"/proc/{pid}/fd/{number}").endswith(name):  # noqa: PTH115
                continue
            opened = os.stat(f"/proc/{pid}/fd/{number}")  # noqa: PTH116
            info = _read(f"/proc/{pid}/fdinfo/{number}")
        except FileNotFoundError:
            continue  # closed in the meantime
        if (opened.st_dev, opened.st_ino) != (file.st_dev, file.st_ino):
            continue
        for line in info.splitlines():
            words = line.split()  # lock: 1: FLOCK ADVISORY WRITE 4711 fd:01:1234 0 EOF
            if words[:1] == [b"lock:"] and words[2:3] == [b"FLOCK"] and words[4:5] == [b"WRITE"]:
                return int(words[5]) in (0, taker)
    return False


def _look_linux(pid: int) -> ProcessRow | None:
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    words = text[text.rindex(b")") + 2 :].split()  # the name before it may contain anything; words[0] is field 3
    return ProcessRow(
        process=Process(pid, int(words[19])),
        parent=int(words[1]),
        group=int(words[2]),
        session=int(words[3]),
        ended=words[0] in b"ZX" and int(words[17]) <= 1,  # the main thread may end while others still run
    )


def _look_psutil(pid: int) -> ProcessRow | None:
    """Look up another user's process, of which the parent matters and the start time does not."""
    import psutil

    try:
        process = psutil.Process(pid)
        return ProcessRow(
            process=Process(pid, process.create_time()),
            parent=process.ppid(),
            group=os.getpgid(pid),
            session=os.getsid(pid),
            ended=process.status() == psutil.STATUS_ZOMBIE,
        )
    except (psutil.Error, OSError):
        return None


def _read(path: str) -> bytes:
    """Read a file of /proc quickly. Raises: OSError when its process is gone or another user's."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)
