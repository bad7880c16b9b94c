"""The system calls of the product, led to the simulated machine while one of its greenlets runs.

`install` must come before the first import of queue_runner: modules take names such as `row` from each other, and
default arguments such as `time.time`. Outside of a simulation every call is the real one.
"""

from __future__ import annotations

import builtins
import datetime
import errno
import fcntl
import io
import os
import random
import secrets
import select
import shutil
import signal
import sqlite3
import stat
import tempfile
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from tests.faults import sqlite_files
from tests.faults.machine import Killed, Machine, Process, Task

machine: Machine | None = None
"""The machine that is simulated now."""
start_program: Callable[..., Process] | None = None
"""Starts a simulated program for a worker that starts a warden, and for fork: set by the world."""

_DiskUsage = namedtuple("_DiskUsage", "total used free")


class REAL:
    """The calls as they are outside of a simulation."""

    open, close, dup, read, write, pwrite = os.open, os.close, os.dup, os.read, os.write, os.pwrite
    select, file, connect, time, urandom = select.select, io.open, sqlite3.connect, time.time, os.urandom


def task() -> Task | None:
    return machine.current if machine is not None else None


def _here() -> Process | None:
    now = task()
    return now.process if now is not None else None


def begin(simulated: Machine | None) -> None:
    """Simulate this machine from now on."""
    global machine
    machine = simulated
    if simulated is not None:
        simulated.close_dead = sqlite_files.close_dead  # type: ignore[method-assign]
        random.seed(simulated.random.random())
        tempfile._name_sequence = _names(simulated)  # type: ignore[attr-defined]


def _names(simulated: Machine) -> Iterable[str]:
    number = 0
    while True:
        number += 1
        yield f"t{number}"


# -- files and descriptors --------------------------------------------------------------------------------------------


def _full(path: object) -> None:
    if machine is not None and machine.disk_is_full:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _is_creating(path: object, flags: int) -> bool:
    return bool(flags & os.O_CREAT) and not os.path.lexists(path)  # type: ignore[arg-type]


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    now = task()
    if now is None or machine is None:
        return REAL.open(path, flags, mode, dir_fd=dir_fd)
    creates = machine.disk.covers(path) and _is_creating(path, flags)
    machine.point("create" if creates else "open", _short(path))
    if creates and _is_creating(path, flags):
        _full(path)
        machine.disk.changed("create", os.fspath(path))
    fd = REAL.open(path, flags, mode, dir_fd=dir_fd)
    now.process.fds[fd] = os.fspath(path)
    return fd


def _short(path: object) -> str:
    return "/".join(os.fspath(path).split("/")[-3:]) if isinstance(path, str | os.PathLike) else str(path)


def _close(fd: int) -> None:
    process = _here()
    if process is None:
        return REAL.close(fd)
    if not process.is_alive:
        return None  # the kernel has closed it
    if process.fds.get(fd, "").endswith((".lock", ".turn")) and machine is not None:
        machine.point("close", _short(process.fds[fd]))
    process.fds.pop(fd, None)
    return REAL.close(fd)


def _dup(fd: int) -> int:
    process = _here()
    if process is None:
        return REAL.dup(fd)
    if not process.is_alive:
        raise Killed
    copy = REAL.dup(fd)
    process.fds[copy] = process.fds.get(fd, "")
    return copy


def _pipe() -> tuple[int, int]:
    process = _here()
    ends = _real["os.pipe"]()
    if process is not None:
        process.fds |= {ends[0]: "pipe", ends[1]: "pipe"}
    return ends  # type: ignore[no-any-return]


def _fdopen(fd: int, *arguments: Any, **named: Any) -> Any:
    process = _here()
    if process is not None:
        if not process.is_alive:
            raise Killed
        process.fds.pop(fd, None)  # the file object closes it
    return _real["os.fdopen"](fd, *arguments, **named)


def _file(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
    if task() is not None and machine is not None and isinstance(file, str | os.PathLike):
        creates = any(letter in mode for letter in "wax+") and machine.disk.covers(file) and not os.path.lexists(file)
        machine.point("create" if creates else "open", _short(file))
        if creates and not os.path.lexists(file):
            _full(file)
            machine.disk.changed("create", os.fspath(file))
    return REAL.file(file, mode, *arguments, **named)


def _read(fd: int, size: int) -> bytes:
    now = task()
    if now is not None and machine is not None and _blocks(fd):
        machine.wait(lambda: bool(REAL.select([fd], [], [], 0)[0]))
    return REAL.read(fd, size)


def _blocks(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return (stat.S_ISFIFO(mode) and os.get_blocking(fd)) or False


def _written(name: str) -> Callable[..., int]:
    real = getattr(REAL, name)

    def write(fd: int, data: bytes, *at: int) -> int:
        process = _here()
        if process is None or machine is None:
            return real(fd, data, *at)  # type: ignore[no-any-return]
        machine.point(name, _short(process.fds.get(fd, "")))
        if machine.disk_is_full and stat.S_ISREG(os.fstat(fd).st_mode) and _grows(fd, data, at):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, *at)  # type: ignore[no-any-return]

    return write


def _grows(fd: int, data: bytes, at: tuple[int, ...]) -> bool:
    return not at or at[0] + len(data) > os.fstat(fd).st_size


def _changing(name: str, n_paths: int) -> Callable[..., Any]:
    """Return a call that changes names."""
    real = getattr(os, name)

    def change(*arguments: Any, **named: Any) -> Any:
        if task() is None or machine is None:
            return real(*arguments, **named)
        machine.point(name, " ".join(_short(path) for path in arguments[:n_paths]))
        if machine.disk.covers(arguments[0]):
            paths = [os.fspath(path) for path in arguments[:n_paths]]
            n_before = len(machine.disk.changes)
            if name != "mkdir" or not os.path.lexists(paths[0]):
                if name in ("mkdir", "link", "symlink"):
                    _full(paths[0])
                machine.disk.changed({"remove": "unlink", "symlink": "link"}.get(name, name), paths[0], *paths[1:])
            try:
                return real(*arguments, **named)
            except BaseException:
                del machine.disk.changes[n_before:]
                raise
        return real(*arguments, **named)

    return change


def _fsync(fd: int) -> None:
    if task() is not None and machine is not None:
        machine.point("fsync")
        machine.disk.fsync(fd)


def _at_point(module: Any, name: str) -> Callable[..., Any]:
    real = getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        process = _here()
        if process is not None and machine is not None:
            detail = process.fds.get(arguments[0], "") if arguments and isinstance(arguments[0], int) else ""
            machine.point(name, _short(detail))
        return real(*arguments, **named)

    return call


def _disk_usage(path: Any) -> Any:
    if task() is None or machine is None:
        return _real["shutil.disk_usage"](path)
    return _DiskUsage(1 << 40, 0, 1 << 12 if machine.disk_is_full else 1 << 39)


# -- processes and signals --------------------------------------------------------------------------------------------


def _getpid() -> int:
    process = _here()
    return _real["os.getpid"]() if process is None else process.pid  # type: ignore[no-any-return]


def _getsid(pid: int) -> int:
    process = _here()
    if process is None or machine is None:
        return _real["os.getsid"](pid)  # type: ignore[no-any-return]
    return (machine.processes[pid] if pid else process).session


def _fork() -> int:
    process = _here()
    assert process is not None and start_program is not None and machine is not None, "only simulated processes fork"
    machine.point("fork")
    return start_program(process, None, ()).pid


def _wait4(pid: int, options: int) -> tuple[int, int, Any]:
    process = _here()
    assert process is not None and machine is not None and options & os.WNOHANG and pid == -1
    if not process.is_alive:
        raise Killed
    children = [child for child in machine.processes.values() if child.parent is process]
    if not children:
        raise ChildProcessError
    for child in children:
        if child.exited is not None:
            del machine.processes[child.pid]
            usage = SimpleNamespace(ru_utime=0.1, ru_stime=0.01, ru_maxrss=1000)
            return child.pid, child.exited, usage
        if child.stop_is_news and options & os.WUNTRACED:
            child.stop_is_news = False
            return child.pid, (signal.SIGSTOP << 8) | 0x7F, None
        if child.was_continued and options & os.WCONTINUED:
            child.was_continued = False
            return child.pid, 0xFFFF, None
    return 0, 0, None


def _kill(pid: int, number: int) -> None:
    if task() is None or machine is None:
        _real["os.kill"](pid, number)
        return
    machine.point("kill", f"{pid} {number}")
    if pid not in machine.processes:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    if number:  # 0 asks whether there is such a process
        _deliver(machine.processes[pid], number)


def _deliver(process: Process, number: int) -> None:
    assert machine is not None
    machine.kill(process, number)
    here = _here()
    if here is not None and not here.is_alive:
        raise Killed


_pidfds: dict[int, int] = {}


def _pidfd_open(pid: int, flags: int = 0) -> int:
    if task() is None or machine is None:
        return _real["os.pidfd_open"](pid, flags)  # type: ignore[no-any-return]
    machine.point("pidfd_open", str(pid))
    if pid not in machine.processes:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    fd = _open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    _pidfds[fd] = machine.processes[pid].pid
    return fd


def _pidfd_send_signal(fd: int, number: int, *_: Any) -> None:
    assert machine is not None
    machine.point("signal", f"{_pidfds[fd]} {int(number)}")
    process = machine.processes.get(_pidfds[fd])
    if process is None or not process.is_alive:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    _deliver(process, number)


def _signal(number: int, handler: Any) -> Any:
    process = _here()
    if process is None:
        return _real["signal.signal"](number, handler)
    before = process.handlers.get(number, signal.SIG_DFL)
    process.handlers[number] = handler
    return before


def _getsignal(number: int) -> Any:
    process = _here()
    return _real["signal.getsignal"](number) if process is None else process.handlers.get(number, signal.SIG_DFL)


def _set_wakeup_fd(fd: int, **named: Any) -> int:
    process = _here()
    if process is None:
        return _real["signal.set_wakeup_fd"](fd, **named)  # type: ignore[no-any-return]
    process.wakeup_fd = fd
    return -1


# -- time and threads -------------------------------------------------------------------------------------------------


def _clock(name: str, simulated: Callable[[Machine], float]) -> Callable[[], float]:
    real = getattr(time, name)

    def read() -> float:
        if machine is None or machine.current is None:
            return real()  # type: ignore[no-any-return]
        return simulated(machine)

    return read


def _clock_gettime(which: int) -> float:
    if machine is None or machine.current is None:
        return _real["time.clock_gettime"](which)  # type: ignore[no-any-return]
    return machine.awake_s + (machine.slept_s if which == getattr(time, "CLOCK_BOOTTIME", -1) else 0.0)


def _sleep(seconds: float) -> None:
    if task() is None or machine is None:
        _real["time.sleep"](seconds)
    else:
        machine.wait(None, seconds)


def _calendar(name: str) -> Callable[..., Any]:
    real = getattr(time, name)
    return lambda seconds=None: real(time.time() if seconds is None else seconds)


def _select(readers: Any, writers: Any, others: Any, timeout: float | None = None) -> Any:
    if task() is None or machine is None:
        return REAL.select(readers, writers, others, timeout)
    machine.wait(lambda: any(REAL.select(readers, writers, others, 0)), timeout)
    return REAL.select(readers, writers, others, 0)


class Thread:
    """threading.Thread of a simulated process."""

    def __init__(self, target: Callable[..., object], args: Iterable[Any] = (), **named: Any) -> None:
        self._function = lambda: target(*args)
        self._task: Task | None = None
        self._name = named.get("name", target.__name__)

    def start(self) -> None:
        process = _here()
        assert process is not None and machine is not None
        self._task = machine.thread(process, self._function, self._name)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.has_ended

    def join(self, timeout: float | None = None) -> None:
        assert machine is not None
        machine.wait(lambda: not self.is_alive(), timeout)


class Event:
    """threading.Event of a simulated process."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        assert machine is not None
        return machine.wait(lambda: self._is_set, timeout)


class Lock:
    """threading.Lock of a simulated process."""

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> Lock:
        assert machine is not None
        machine.wait(lambda: not self._held)
        self._held = True
        return self

    def __exit__(self, *_: object) -> None:
        self._held = False


threads = SimpleNamespace(Thread=Thread, Event=Event, Lock=Lock, get_ident=threading.get_ident)
"""What modules of the product get as `threading`."""


class Datetime(datetime.datetime):
    """datetime whose now is that of the simulated machine."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:  # type: ignore[override]
        return datetime.datetime.fromtimestamp(time.time(), tz)


# -- the rest ---------------------------------------------------------------------------------------------------------


def _urandom(size: int) -> bytes:
    if task() is None or machine is None:
        return REAL.urandom(size)
    return machine.random.randbytes(size)


def _token_hex(size: int = 32) -> str:
    return _urandom(size).hex()


def _connect(database: Any, *arguments: Any, **named: Any) -> sqlite3.Connection:
    now = task()
    if now is None or machine is None:
        return REAL.connect(database, *arguments, **named)
    machine.point("connect", _short(database) if not str(database).startswith("file:") else "")
    return sqlite_files.connect(machine, now.process, database, *arguments, **named)


_real: dict[str, Any] = {}


def install() -> None:
    """Replace the calls, once in a process."""
    if _real:
        return
    replaced: list[tuple[Any, str, Any]] = [
        (os, "open", _open),
        (os, "close", _close),
        (os, "dup", _dup),
        (os, "pipe", _pipe),
        (os, "fdopen", _fdopen),
        (os, "read", _read),
        (os, "write", _written("write")),
        (os, "pwrite", _written("pwrite")),
        (os, "fsync", _fsync),
        (os, "getpid", _getpid),
        (os, "getsid", _getsid),
        (os, "fork", _fork),
        (os, "wait4", _wait4),
        (os, "kill", _kill),
        (os, "pidfd_open", _pidfd_open),
        (os, "urandom", _urandom),
        *((os, name, _changing(name, 2)) for name in ("rename", "replace", "link", "symlink")),
        *((os, name, _changing(name, 1)) for name in ("unlink", "remove", "mkdir", "rmdir")),
        *((os, name, _at_point(os, name)) for name in ("ftruncate", "scandir")),
        (fcntl, "flock", _at_point(fcntl, "flock")),
        (signal, "signal", _signal),
        (signal, "getsignal", _getsignal),
        (signal, "set_wakeup_fd", _set_wakeup_fd),
        (signal, "pidfd_send_signal", _pidfd_send_signal),
        (time, "time", _clock("time", lambda now: now.wall)),
        (time, "time_ns", _clock("time_ns", lambda now: int(now.wall * 1e9))),
        *((time, name, _clock(name, lambda now: now.awake_s)) for name in ("monotonic", "perf_counter")),
        (time, "clock_gettime", _clock_gettime),
        (time, "sleep", _sleep),
        *((time, name, _calendar(name)) for name in ("gmtime", "localtime")),
        (select, "select", _select),
        (secrets, "token_hex", _token_hex),
        (shutil, "disk_usage", _disk_usage),
        (sqlite3, "connect", _connect),
        (builtins, "open", _file),
        (io, "open", _file),
    ]
    for module, name, call in replaced:
        key = f"{module.__name__}.{name}"
        _real.setdefault(key, getattr(module, name))
        setattr(module, name, call)
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # else rmtree names no paths
    _process_table()


def _process_table() -> None:
    """Let the product see the simulated processes."""
    from queue_runner.host import processes
    from queue_runner.warden import process_tree
    from queue_runner.warden.process_tree import Row

    def row(pid: int) -> Row | None:
        assert machine is not None
        process = machine.processes.get(pid)
        if process is None:
            return None
        parent = 1 if process.parent is None else process.parent.pid
        return Row(
            parent, process.group, process.session, process.start, process.exited is not None, process.is_stopped
        )

    def table(look: Callable[[int], Row | None] = row) -> dict[int, Row]:
        assert machine is not None
        machine.point("table")
        return {pid: each for pid in list(machine.processes) if (each := row(pid)) is not None}

    def environment(pid: int) -> list[bytes]:
        assert machine is not None
        process = machine.processes.get(pid)
        return [f"MPSQ_TAG={process.tag}".encode()] if process is not None and process.is_alive else []

    def kill_children() -> None:
        process = _here()
        assert machine is not None
        for child in list(machine.processes.values()):
            if child.parent is process and child.is_alive:
                _deliver(child, signal.SIGKILL)

    process_tree.row = process_tree.row_linux = row
    process_tree.table = table
    process_tree.environment = environment
    process_tree.kill_children = kill_children
    processes.boot_id = lambda: "unknown" if machine is None else machine.boot_id  # type: ignore[assignment]
