"""Processes by identity (pid, start time), and the termination of a run's remaining processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from queue_runner.host import clocks, process_table
from queue_runner.host.process_table import LINUX, Process, ProcessRow, same_start

__all__ = ["Process", "Traces", "end_all", "find_orphans", "same_process", "send", "stage", "start_time"]

KILL_S = 3.0
"""How long SIGKILL is repeated before a process counts as unkillable (it hangs in the kernel)."""

_RESCAN_S = 0.02


@dataclass(frozen=True)
class Traces:
    """Traces that identify a run's processes; each alone is sufficient.

    tag       value of MPSQ_TAG in a process's environment
    sessions  session ids, and process groups, that the run's processes were seen in
    noted     (pid, start) seen by the warden below the trainer
    lane      file of the lane lock: its holders are the run's, while the note in the file names this run
              (key "token" equal to `tag`) and the lock was taken by the process that wrote the note
    boot_id   the boot under which all this was seen; after a reboot no process can remain
    """

    tag: str | None = None
    sessions: frozenset[int] = frozenset()
    noted: frozenset[tuple[int, float]] = frozenset()
    lane: Path | None = None
    boot_id: str | None = None


def start_time(pid: int) -> float | None:
    """Return the process's start time in the kernel's units; None when there is no such process."""
    seen = process_table.look(pid)
    return seen.process.start if seen else None


def same_process(pid: int, start: float) -> bool:
    """Return whether `pid` is still the process started at `start`, possibly a zombie."""
    now = start_time(pid)
    return now is not None and same_start(now, start)


def find_orphans(traces: Traces) -> set[Process]:
    """Find all living processes of the run and their descendants, never this process or its ancestors."""
    if traces.boot_id is not None and traces.boot_id != clocks.boot_id():
        return set()
    table = process_table.table()
    spared = _ancestors(table, os.getpid())
    sessions = _still_theirs(traces, table)
    noted = dict(traces.noted)
    holds_lane = _lane_of(traces)

    def is_known(seen: ProcessRow) -> bool:
        pid = seen.process.pid
        if pid in noted and same_start(seen.process.start, noted[pid]):
            return True
        if (seen.session in sessions or seen.group in sessions) and process_table.is_ours(pid):
            return True
        return (traces.tag is not None and process_table.has_tag(pid, traces.tag)) or holds_lane(pid)

    found = {pid for pid, seen in table.items() if pid not in spared and not seen.ended and is_known(seen)}
    found |= {pid for pid in _below(table, found) if pid not in spared and not table[pid].ended}
    return {table[pid].process for pid in found}


def send(process: Process, number: int) -> bool:
    """Signal exactly this process, and continue it if stopped, so that it can act on the signal.

    Return False when it is gone, or may not be signalled by us.
    """
    if process.pid <= 1 or process.pid == os.getpid():
        return False
    try:
        if not LINUX or not hasattr(os, "pidfd_open"):
            if not same_process(process.pid, process.start):
                return False
            os.kill(process.pid, number)
            os.kill(process.pid, signal.SIGCONT)
            return True
        pidfd = os.pidfd_open(process.pid)
        try:
            if not same_process(process.pid, process.start):
                return False
            signal.pidfd_send_signal(pidfd, number)
            signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        finally:
            os.close(pidfd)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_all(
    traces: Traces,
    int_s: float = 5.0,
    term_s: float = 5.0,
    *,
    kill_s: float = KILL_S,
    find: Callable[[Traces], set[Process]] = find_orphans,
) -> list[Process]:
    """End the run's remaining processes: SIGINT, after `int_s` SIGTERM, after `term_s` more SIGKILL, repeated until two
    scans in a row find nothing. A grace of 0 skips its signal.

    Return those that did not die: [] guarantees that none remain. Blocks for the sum of the times at most.
    """
    began = time.monotonic()
    sent: set[tuple[Process, int]] = set()
    while True:
        left = find(traces)
        if not left and not find(traces):
            return []
        passed = time.monotonic() - began
        if passed > int_s + term_s + kill_s:
            return sorted(left)
        number = stage(passed, int_s, term_s)
        for process in left:
            if (process, number) not in sent or number == signal.SIGKILL:
                send(process, number)
                sent.add((process, number))
        time.sleep(_RESCAN_S)


def stage(passed_s: float, int_s: float, term_s: float) -> signal.Signals:
    """Return the signal that is due `passed_s` seconds after termination began."""
    if passed_s < int_s:
        return signal.SIGINT
    return signal.SIGTERM if passed_s < int_s + term_s else signal.SIGKILL


# -- what can be known from the table -------------------------------------------------------------------------------


def _ancestors(table: dict[int, ProcessRow], pid: int) -> set[int]:
    """Return the process itself, all its ancestors, and init."""
    found = {0, 1}
    while pid not in found:
        found.add(pid)
        pid = table[pid].parent if pid in table else 1
    return found


def _below(table: dict[int, ProcessRow], roots: set[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, seen in table.items():
        children.setdefault(seen.parent, []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


def _still_theirs(traces: Traces, table: dict[int, ProcessRow]) -> set[int]:
    """Return sessions and groups whose id was not reused: the leader's pid is free or still the leader's."""
    noted = dict(traces.noted)

    def is_theirs(number: int) -> bool:
        leader = table.get(number)
        return leader is None or number not in noted or same_start(leader.process.start, noted[number])

    return {number for number in traces.sessions if number > 1 and is_theirs(number)}


def _lane_of(traces: Traces) -> Callable[[int], bool]:
    """Return a test for holders of this run's lane. The note is reread per scan: the lane may be another's by now."""
    if traces.lane is not None and traces.tag is not None:
        from queue_runner.host.locks import read_holder

        lane, note = traces.lane, read_holder(traces.lane) or {}
        if note.get("token") == traces.tag:
            try:
                file = lane.stat()
            except OSError:
                return lambda pid: False
            taker = note.get("pid")
            return lambda pid: process_table.is_ours(pid) and process_table.holds_lock(pid, lane, file, taker)
    return lambda pid: False
