"""The processes of a run as the worker sees them: found by the traces that they leave, and ended.

It adds to the warden's view (warden/process_tree.py) the traces that outlive a warden: notes in files, and holders of
the lane. On macOS other users' processes come from psutil. With its start time a pid identifies a process uniquely.
psutil's create_time would not do on macOS: since psutil 7.1 it changes whenever the clock is set.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec import Struct

from queue_runner.host.command import ask
from queue_runner.warden import process_tree
from queue_runner.warden.files import LINUX, awake
from queue_runner.warden.process_tree import Row, Termination, descendants, read

KILL_S = 3.0
"""How long SIGKILL is repeated before a process counts as unkillable (it hangs in the kernel)."""

_SAME_START_S = 0.02  # macOS only: psutil's and libproc's differ in rounding
_RESCAN_S = 0.02
_LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Process(Struct, frozen=True, order=True):
    """A process, distinguishable from a later one of the same pid."""

    pid: int
    start: float


class Traces(Struct, frozen=True):
    """Traces that identify a run's processes; each alone is sufficient."""

    tag: str | None = None
    """value of MPSQ_TAG in a process's environment"""
    sessions: frozenset[int] = frozenset()
    """session ids, and process groups, that the run's processes were seen in"""
    noted: frozenset[tuple[int, float]] = frozenset()
    """(pid, start) seen by the warden below the trainer"""
    lane: Path | None = None
    """file of the lane lock: its holders are the run's, while the note in the file names this run (key "token" equal to
    `tag`) and the lock was taken by the process that wrote the note"""
    boot_id: str | None = None
    """the boot under which all this was seen; after a reboot no process can remain"""


@functools.cache
def boot_id() -> str:
    """Return the identifier of this boot: pids and start times recorded under another one are meaningless now."""
    try:
        return _LINUX_BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return boot_id_darwin(lambda name: ask(["/usr/sbin/sysctl", "-n", name]) or "")


def boot_id_darwin(sysctl: Callable[[str], str]) -> str:
    """Return kern.bootsessionuuid, else the second of the boot, else "unknown".

    `sysctl` returns the value of a name, or "".
    """
    if uuid := sysctl("kern.bootsessionuuid").strip():
        return uuid.lower()
    # kern.boottime reads `{ sec = 1700000000, usec = 123456 } Tue Nov 14 22:13:20 2023`
    words = sysctl("kern.boottime").replace(",", " ").split()
    return f"boottime-{words[words.index('sec') + 2]}" if "sec" in words[:-2] else "unknown"


def look(pid: int) -> Row | None:
    """Return the row of a process; None when there is no such process (on macOS: or a zombie)."""
    if LINUX:
        return process_tree.row_linux(pid)
    return process_tree.row_darwin(pid) or _look_psutil(pid)


def start_time(pid: int) -> float | None:
    """Return the process's start time in the kernel's units; None when there is no such process."""
    row = look(pid)
    return row.start if row else None


def parent(pid: int) -> int | None:
    """Return the parent of a process; None when there is no such process."""
    row = look(pid)
    return row.parent if row else None


def descends(pid: int, roots: Collection[int], parent: Callable[[int], int | None] = parent) -> bool:
    """Return whether the process, or one of its ancestors, is one of these."""
    visited: set[int] = set()
    at: int | None = pid
    while at is not None and at > 1 and at not in visited:
        if at in roots:
            return True
        visited.add(at)
        at = parent(at)
    return False


def same_start(first: float, second: float) -> bool:
    """Return whether two start times are the same."""
    return first == second if LINUX else abs(first - second) < _SAME_START_S


def is_running(pid: int, start: float | None = None) -> bool:
    """Return whether such a process, started at `start` if that is known, has not ended: a zombie has."""
    row = look(pid)
    return row is not None and not row.ended and (start is None or same_start(row.start, start))


def exists(pid: int) -> bool:
    """Return whether there is such a process, a zombie included. Costs a tenth of `is_running`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


def is_stopped(pid: int, start: float) -> bool:
    """Return whether the process is stopped, by SIGSTOP or another signal of its kind."""
    row = look(pid)
    return row is not None and same_start(row.start, start) and row.stopped


def find_orphans(traces: Traces) -> dict[int, Row]:
    """Find all living processes of the run and their descendants, never this process or its ancestors."""
    if traces.boot_id is not None and traces.boot_id != boot_id():
        return {}
    table = process_tree.table() if LINUX else process_tree.table(look)
    spared = _ancestors(table, os.getpid())
    sessions = _still_theirs(traces, table)
    noted = dict(traces.noted)

    def is_known(pid: int, row: Row) -> bool:
        if pid in noted and same_start(row.start, noted[pid]):
            return True
        return (row.session in sessions or row.group in sessions) and _is_ours(pid)

    others = {pid for pid, row in table.items() if pid not in spared and not row.ended}
    theirs = {pid for pid in others if is_known(pid, table[pid])}
    if traces.tag is not None:
        theirs |= process_tree.tagged(others - theirs, traces.tag)
        theirs |= _lane_holders(traces.lane, traces.tag, others - theirs)
    return {pid: table[pid] for pid in descendants(table, theirs) - spared if not table[pid].ended}


def end_all(
    traces: Traces,
    int_s: float = 5.0,
    term_s: float = 5.0,
    *,
    kill_s: float = KILL_S,
    find: Callable[[Traces], dict[int, Row]] = find_orphans,
) -> list[Process]:
    """End the run's remaining processes: SIGINT, after `int_s` SIGTERM, after `term_s` more SIGKILL, repeated until two
    scans in a row find nothing. A grace of 0 skips its signal.

    Return those that did not die: [] guarantees that none remain. Blocks for the sum of the times at most.
    """
    ending = Termination(lambda: find(traces), {"int": int_s, "term": term_s})
    give_up = awake() + int_s + term_s + kill_s
    while not ending.step():
        if awake() > give_up:
            return sorted(Process(pid, seen.start) for pid, seen in find(traces).items())
        time.sleep(_RESCAN_S)
    return []


# -- what can be known of a process ---------------------------------------------------------------------------------


def _ancestors(table: dict[int, Row], pid: int) -> set[int]:
    """Return the process itself, all its ancestors, and init."""
    ancestors = {0, 1}
    while pid not in ancestors:
        ancestors.add(pid)
        pid = table[pid].parent if pid in table else 1
    return ancestors


def _still_theirs(traces: Traces, table: dict[int, Row]) -> set[int]:
    """Return sessions and groups whose id was not reused: the leader's pid is free or still the leader's."""
    noted = dict(traces.noted)

    def is_theirs(number: int) -> bool:
        leader = table.get(number)
        return leader is None or number not in noted or same_start(leader.start, noted[number])

    return {number for number in traces.sessions if number > 1 and is_theirs(number)}


def _is_ours(pid: int) -> bool:
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


def _lane_holders(lane: Path | None, tag: str, pids: set[int]) -> set[int]:
    """Return which of these processes hold this run's lane. The note is reread per scan: the lane may be another's."""
    from queue_runner.host.locks import read_holder

    note = read_holder(lane) if lane is not None else None
    if lane is None or note is None or note.get("token") != tag:
        return set()
    try:
        file = lane.stat()
    except OSError:
        return set()
    return {pid for pid in pids if _is_ours(pid) and _holds_lock(pid, lane, file, note.get("pid"))}


def _holds_lock(pid: int, path: Path, file: os.stat_result, taker: int | None) -> bool:
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
            info = read(f"/proc/{pid}/fdinfo/{number}")
        except FileNotFoundError:
            continue  # closed in the meantime
        if (opened.st_dev, opened.st_ino) != (file.st_dev, file.st_ino):
            continue
        for line in info.splitlines():
            words = line.split()  # lock: 1: FLOCK ADVISORY WRITE 4711 fd:01:1234 0 EOF
            if words[:1] == [b"lock:"] and words[2:3] == [b"FLOCK"] and words[4:5] == [b"WRITE"]:
                return int(words[5]) in (0, taker)
    return False


def _look_psutil(pid: int) -> Row | None:
    """Look up another user's process, of which the parent matters and the start time does not."""
    import psutil

    try:
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE
        return Row(process.ppid(), os.getpgid(pid), os.getsid(pid), process.create_time(), ended)
    except (psutil.Error, OSError):
        return None
