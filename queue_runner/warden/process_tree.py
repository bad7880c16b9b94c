"""The process table, and the processes of a run: which belong to it, and how they are ended.

The standard library only, so it reads /proc, or libproc on macOS. The worker's view of processes (host/processes.py)
is built on it.
"""

# importing pathlib would add a fifth to the start time, so:
# ruff: noqa: PTH208
from __future__ import annotations

import json
import os
import signal

from queue_runner.warden.files import LINUX, awake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


NOTE_S = 0.5  # between notes of descendants, or longer: a scan may cost one percent of one core
KILL_S = 10.0  # how long SIGKILL is repeated before a process counts as unkillable: it hangs in the kernel
NOTED_MAX = 50_000


class Row:
    """A row of the process table. `start` is in the kernel's units, `ended` means a zombie, and `uninterruptible` that
    it waits in the kernel where SIGSTOP does not reach it yet (state D of Linux)."""

    __slots__ = ("ended", "group", "parent", "session", "start", "stopped", "uninterruptible")

    def __init__(
        self,
        parent: int,
        group: int,
        session: int,
        start: float,
        ended: bool,
        stopped: bool = False,
        uninterruptible: bool = False,
    ) -> None:
        self.parent, self.group, self.session, self.start = parent, group, session, start
        self.ended, self.stopped, self.uninterruptible = ended, stopped, uninterruptible


def read(path: str) -> bytes:
    """Read a whole file. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def row_linux(pid: int) -> Row | None:
    try:
        text = read(f"/proc/{pid}/stat")
    except OSError:
        return None
    words = text[text.rindex(b")") + 2 :].split()  # proc(5): words[0] is field 3
    ended = words[0] in b"ZX" and int(words[17]) <= 1  # other threads may outlive the main one
    parent, group, session, start = (int(words[at]) for at in (1, 2, 3, 19))
    return Row(parent, group, session, start, ended, words[0] == b"T", words[0] == b"D")


_loaded: list[Any] = []


def libproc() -> Any:
    """Return macOS's libSystem, loaded once: loading it for each of 600 processes took most of a scan's time."""
    if not _loaded:
        import ctypes

        _loaded.append(ctypes.CDLL(None))
    return _loaded[0]


def row_darwin(pid: int) -> Row | None:
    """Read proc_pidinfo(PROC_PIDTBSDINFO): struct proc_bsdinfo of sys/proc_info.h, 136 bytes.

    States of sys/proc.h: SSTOP is 4, SZOMB is 5."""
    import ctypes
    import struct

    buffer = ctypes.create_string_buffer(136)
    if libproc().proc_pidinfo(pid, 3, ctypes.c_uint64(0), buffer, 136) != 136:  # another user's, a zombie, or gone
        return None
    try:
        session = os.getsid(pid)
    except OSError:
        return None
    status, parent, group = (struct.unpack_from("I", buffer, at)[0] for at in (4, 16, 100))
    seconds, micros = struct.unpack_from("QQ", buffer, 120)
    return Row(parent, group, session, seconds + micros / 1e6, status == 5, status == 4)


class ResourceUse:
    """Resources used by a process: CPU time with that of the children it waited for, memory now and at most."""

    __slots__ = ("cpu_s", "footprint_bytes", "max_footprint_bytes")

    def __init__(self, cpu_s: float, footprint_bytes: int, max_footprint_bytes: int) -> None:
        self.cpu_s, self.footprint_bytes, self.max_footprint_bytes = cpu_s, footprint_bytes, max_footprint_bytes


def rusage_darwin(pid: int) -> ResourceUse | None:
    """Read proc_pid_rusage(RUSAGE_INFO_V4): struct rusage_info_v4 of sys/resource.h, 296 bytes; None for another
    user's process. Its times are in units of mach_timebase_info, 125/3 ns on Apple silicon. The physical footprint has
    what the resident size lacks, compressed pages and the GPU's, and not the pages that were freed."""
    import ctypes
    import struct

    buffer = ctypes.create_string_buffer(296)
    if libproc().proc_pid_rusage(pid, 4, buffer) != 0:
        return None
    timebase = ctypes.create_string_buffer(8)
    libproc().mach_timebase_info(timebase)
    numerator, denominator = struct.unpack("II", timebase.raw)
    times = (*struct.unpack_from("QQ", buffer, 16), *struct.unpack_from("QQ", buffer, 96))  # own, children's
    (footprint,), (largest,) = (struct.unpack_from("Q", buffer, at) for at in (72, 240))
    return ResourceUse(sum(times) * numerator / denominator / 1e9, footprint, largest)


def pids_darwin() -> list[int]:
    import ctypes

    library = libproc()
    room = library.proc_listallpids(None, 0) + 64
    buffer = (ctypes.c_int * room)()
    return list(buffer[: library.proc_listallpids(buffer, ctypes.sizeof(buffer))])


row: Callable[[int], Row | None] = row_linux if LINUX else row_darwin


def table(look: Callable[[int], Row | None] = row) -> dict[int, Row]:
    """Return all visible processes by pid."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()] if LINUX else pids_darwin()
    return {pid: process for pid in pids if (process := look(pid))}


def descendants(table: dict[int, Row], roots: Iterable[int]) -> set[int]:
    """Return the roots and all processes below them."""
    children: dict[int, list[int]] = {}
    for pid, each in table.items():
        children.setdefault(each.parent, []).append(pid)
    pids: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in pids:
            pids.add(pid)
            todo += children.get(pid, ())
    return pids


def environment_linux(pid: int) -> list[bytes]:
    try:
        return read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return []


def environment_darwin(pid: int) -> list[bytes]:
    """Read sysctl KERN_PROCARGS2: the number of arguments as an int, the program's path, zeros, then the arguments and
    the variables, each ended by a zero (sysctl_procargsx of XNU's bsd/kern/kern_sysctl.c).

    [] for another user's process; without the variables for a restricted one, such as Apple's own."""
    import ctypes

    name, size = (ctypes.c_int * 3)(1, 49, pid), ctypes.c_size_t(0)  # CTL_KERN, KERN_PROCARGS2
    sysctl = libproc().sysctl
    if sysctl(name, 3, None, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return []
    buffer = ctypes.create_string_buffer(size.value)
    if sysctl(name, 3, buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return []
    data = buffer.raw[: size.value]
    _, _, words = data[4:].partition(b"\0")
    return words.lstrip(b"\0").split(b"\0")[int.from_bytes(data[:4], "little") :]


environment: Callable[[int], list[bytes]] = environment_linux if LINUX else environment_darwin


def tagged(pids: Iterable[int], tag: str) -> set[int]:
    """Return the processes that were started with MPSQ_TAG=tag, where their environments can be read."""
    word = f"MPSQ_TAG={tag}".encode()
    return {pid for pid in pids if word in environment(pid)}


def send(pid: int, start: float, *numbers: int) -> None:
    """Signal exactly this process, by pidfd where there is one."""
    try:
        if not hasattr(os, "pidfd_open"):
            if (now := row(pid)) is not None and now.start == start:
                for each in numbers:
                    os.kill(pid, each)
            return
        pidfd = os.pidfd_open(pid)
        try:
            if (now := row(pid)) is not None and now.start == start:
                for each in numbers:
                    signal.pidfd_send_signal(pidfd, each)
        finally:
            os.close(pidfd)
    except (ProcessLookupError, PermissionError):
        pass


def kill_children() -> None:
    """Send SIGKILL to the children of this process, as the kernel lists them (Linux).

    The warden is a subreaper: as long as a descendant lives, so does a child. Of a program that forks and exits all the
    time a scan of all processes sees only the past; this is fast enough.
    """
    try:
        children = read("/proc/thread-self/children").split()
    except OSError:
        return  # macOS, or a kernel without CONFIG_PROC_CHILDREN: scans have to suffice
    for child in children:
        os.kill(int(child), signal.SIGKILL)  # nobody has reaped it, so the pid is still its own


class ProcessTree:
    """All processes started by the trainer, including detached ones."""

    def __init__(self, tag: str, notes: str) -> None:
        self.tag = tag
        self.notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.noted: set[tuple[int, float]] = set()
        self.sessions: dict[int, float | None] = {}  # session -> start time of its leader, if seen
        self.next_note = 0.0
        self.largest_bytes = 0  # on macOS: footprint of the largest process at its highest

    def weigh(self, pid: int) -> None:
        """Read the memory of one of the processes, on macOS, where wait4 only tells the resident size."""
        if not LINUX and (used := rusage_darwin(pid)) is not None:
            self.largest_bytes = max(self.largest_bytes, used.max_footprint_bytes)

    def find(self) -> dict[int, Row]:
        """Find descendants (on Linux with orphans: subreaper), noted processes, those of their sessions, and tagged
        ones, which are younger than this process."""
        rows = table()
        this_process = rows.pop(os.getpid(), None)
        oldest = this_process.start if this_process else 0.0
        sessions = {s for s, start in self.sessions.items() if s not in rows or start in (None, rows[s].start)}
        roots = {
            pid
            for pid, each in rows.items()
            if (pid, each.start) in self.noted or each.session in sessions or each.parent == os.getpid()
        } - {1}
        younger = {pid for pid, each in rows.items() if each.start >= oldest}
        roots |= tagged(younger - roots - {1}, self.tag)
        return {pid: rows[pid] for pid in descendants(rows, roots) if not rows[pid].ended}

    def note(self) -> None:
        """Record the processes found, for a worker that may have to end them without us."""
        began = awake()
        if began < self.next_note:
            return
        self.remember(self.find())
        self.next_note = awake() + max(NOTE_S, 100 * (awake() - began))

    def remember(self, rows: dict[int, Row]) -> None:
        for pid, each in rows.items():
            self.weigh(pid)
            if (pid, each.start) in self.noted or len(self.noted) >= NOTED_MAX:
                continue
            self.noted.add((pid, each.start))
            leader = each if each.session == pid else rows.get(each.session)
            if self.sessions.get(each.session) is None and each.session != os.getsid(0):
                self.sessions[each.session] = leader.start if leader else None
            line = {"pid": pid, "start": each.start, "sid": each.session, "pgid": each.group}
            try:
                os.write(self.notes, json.dumps(line).encode() + b"\n")
            except OSError:
                pass  # the disk is full: the other traces must suffice


class Termination:
    """The escalation that ends the processes that `find` finds: SIGINT, after its grace SIGTERM, after that grace
    SIGKILL. A grace of 0 skips its signal."""

    def __init__(self, find: Callable[[], dict[int, Row]], grace: dict[str, float]) -> None:
        self.find, self.int_s, self.term_s = find, grace["int"], grace["int"] + grace["term"]
        self.began = awake()
        self.sent: set[tuple[int, float, int]] = set()

    def step(self, *, sure: bool = False) -> bool:
        """Send the signals that are due. Return True once two scans in a row find no process; one, if it is `sure` that
        no process starts another meanwhile."""
        left = self.find()
        if not left and (sure or not self.find()):
            return True
        passed = awake() - self.began
        number = signal.SIGINT if passed < self.int_s else signal.SIGTERM if passed < self.term_s else signal.SIGKILL
        for pid, each in left.items():
            if (pid, each.start, number) not in self.sent or number == signal.SIGKILL:
                self.sent.add((pid, each.start, number))
                send(pid, each.start, number, signal.SIGCONT)  # continue a stopped process so that it can act on it
        return False
