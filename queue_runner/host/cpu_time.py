"""CPU time of the whole machine, the hypervisor, and one run's processes. All times in seconds of CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from msgspec import Struct

from queue_runner.host import processes
from queue_runner.machine_records import SensorSample
from queue_runner.warden.files import LINUX
from queue_runner.warden.process_tree import descendants, read, rusage_darwin, table

Named = int | tuple[int, float]
"""A process: its pid, or (pid, start) in the kernel's own units, so that a reused pid is not mistaken for it."""


_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def pid_of(named: Named) -> int:
    """Return the pid of a process."""
    return named[0] if isinstance(named, tuple) else named


class MachineTime(Struct, frozen=True):
    """Sums since boot over all processors that this process may use. `total_s` is their capacity, steal included."""

    busy_s: float
    total_s: float
    steal_s: float | None


class ProcessTime(Struct, frozen=True):
    """CPU time of a process: its own and that of the children it has waited for."""

    parent: int
    cpu_s: float


class CpuTimes:
    """The CPU times that the kernel tells: on macOS through psutil, on Linux from /proc (proc(5)). There psutil takes
    four times as long for a process, and a megabyte in an idle worker."""

    def machine(self) -> MachineTime | None:
        """Return the machine's sums; None where they cannot be read."""
        return _machine_linux() if LINUX else _machine_darwin()

    def processes(self, named: Iterable[Named]) -> dict[tuple[int, float], ProcessTime]:
        """Return the times of the processes that are there."""
        times = {}
        for process in named:
            pid, start = process if isinstance(process, tuple) else (process, None)
            row = _time_linux(pid) if LINUX else _time_darwin(pid)
            if row is not None and (start is None or processes.same_start(row[0], start)):
                times[pid, row[0]] = row[1]
        return times


def _machine_linux() -> MachineTime | None:
    """user already includes guests; a processor waiting for a disk is idle."""
    try:
        rows = [line.split() for line in read("/proc/stat").splitlines() if line.startswith(b"cpu")]
    except OSError:
        return None
    ours = {b"cpu%d" % processor for processor in os.sched_getaffinity(0)}
    if len(ours) < len(rows) - 1:  # a scheduler gave us a part of the machine: what the others do is not beside us
        rows = [row for row in rows if row[0] in ours]
    else:
        rows = rows[:1]
    if not rows or any(len(row) < 9 for row in rows):
        return None
    columns = zip(*(map(int, row[1:9]) for row in rows), strict=True)
    user, nice, system, idle, iowait, irq, softirq, steal = (sum(column) / _TICKS_PER_S for column in columns)
    busy = user + nice + system + irq + softirq
    return MachineTime(busy, busy + idle + iowait + steal, steal)


def _machine_darwin() -> MachineTime:
    """macOS has no hypervisor steal."""
    import psutil

    times = psutil.cpu_times()
    busy = times.user + times.system + times.nice
    return MachineTime(busy, busy + times.idle, None)


def _stat(path: str) -> list[bytes]:
    """Return the words of the first line, without a process's name, which may contain anything; [] without the file."""
    try:
        return read(path).partition(b"\n")[0].rpartition(b")")[2].split()
    except OSError:
        return []


def _time_linux(pid: int) -> tuple[float, ProcessTime] | None:
    fields = _stat(f"/proc/{pid}/stat")
    if len(fields) < 20:
        return None
    return float(fields[19]), ProcessTime(int(fields[1]), sum(map(int, fields[11:15])) / _TICKS_PER_S)


def _time_darwin(pid: int) -> tuple[float, ProcessTime] | None:
    row = processes.look(pid)
    used = rusage_darwin(pid) if row is not None else None
    return None if row is None or used is None else (row.start, ProcessTime(row.parent, used.cpu_s))


class Shares:
    """Shares of the machine between two calls, computed from sums."""

    def __init__(self, source: CpuTimes, *, fresh: bool = False, queue_s: Callable[[], float] = lambda: 0.0) -> None:
        """`fresh`: the run has not begun, so that its processes' whole time is since now. `own` returns the seconds
        that the queue's processes have used; they are neither the run's nor others'."""
        self._source = source
        self._machine = source.machine()
        self._processes: dict[tuple[int, float], ProcessTime] | None = {} if fresh else None
        self._own, self._own_s = queue_s, queue_s()
        self._fresh, self._job_s = fresh, 0.0

    def since_last(self, named: Iterable[Named]) -> SensorSample:
        """Return shares of 1 of all processors since the last call: others_cpu_share, job_cpu_share, steal_share. None
        is known without a previous call to compare with."""
        machine = self._source.machine()
        known, self._processes = self._processes, self._source.processes(named)
        job_s = None if known is None else used_between(known, self._processes)
        self._job_s += job_s or 0.0
        return self._shares(machine, job_s)

    def at_end(self, cpu_s: float) -> SensorSample:
        """Return the shares since the last call, after the end of a run that used `cpu_s` altogether, by wait4; none
        is known if its beginning was not seen."""
        if not self._fresh:
            return SensorSample()
        return self._shares(self._source.machine(), max(0.0, cpu_s - self._job_s))

    def _shares(self, machine: MachineTime | None, job_s: float | None) -> SensorSample:
        before, self._machine = self._machine, machine
        own_before, self._own_s = self._own_s, self._own()
        total_s = machine.total_s - before.total_s if before is not None and machine is not None else 0.0
        if before is None or machine is None or total_s <= 0:
            return SensorSample()
        shares = SensorSample()
        if before.steal_s is not None and machine.steal_s is not None:
            shares |= SensorSample(steal_share=round(max(0.0, machine.steal_s - before.steal_s) / total_s, 4))
        if job_s is not None:
            own_s = max(0.0, self._own_s - own_before)
            others = others_share(before, machine, job_s + own_s) or 0.0
            shares |= SensorSample(job_cpu_share=round(min(1.0, job_s / total_s), 4), others_cpu_share=round(others, 4))
        return shares


def others_share(before: MachineTime, now: MachineTime, ours_s: float) -> float | None:
    """Return the share of all processors that was used between two readings, without `ours_s`; None where no
    time has passed."""
    total_s = now.total_s - before.total_s
    return min(1.0, max(0.0, now.busy_s - before.busy_s - ours_s) / total_s) if total_s > 0 else None


def own_time(pids: Iterable[int]) -> float:
    """Return the CPU time of the queue's processes, without that of their children: those are the run and the hooks."""
    if LINUX:
        return sum(int(word) for pid in pids for word in _stat(f"/proc/{pid}/stat")[11:13]) / _TICKS_PER_S
    import psutil

    used_s = 0.0
    for pid in pids:
        with suppress(psutil.Error, OSError):
            times = psutil.Process(pid).cpu_times()
            used_s += float(times.user + times.system)
    return used_s


def used_between(
    before: Mapping[tuple[int, float], ProcessTime], now: Mapping[tuple[int, float], ProcessTime]
) -> float:
    """Return the CPU time that the processes used between two scans.

    The time of an ended process is added to the parent that waited for it, so its earlier part is subtracted there.
    If the parent is also gone, or not one of the run's, the last stretch is unknown and counts as others'.
    """
    alive, parents = {pid for pid, _ in now}, {pid: time.parent for (pid, _), time in before.items()}

    def waited_for(pid: int) -> bool:
        """Whether all that have ended above the process passed its time on to one that is alive."""
        visited: set[int] = set()
        while pid not in alive and pid in parents and pid not in visited:
            visited.add(pid)
            pid = parents[pid]
        return pid in alive

    passed_on = (time.cpu_s for key, time in before.items() if key in now or waited_for(time.parent))
    return max(0.0, sum(time.cpu_s for time in now.values()) - sum(passed_on))


def below(roots: Iterable[int]) -> set[int]:
    """Return these processes and all below them."""
    try:
        pids: set[int] = set()
        todo = list(roots)
        while todo:
            if (pid := todo.pop()) not in pids:
                pids.add(pid)
                todo += _children(pid)
        return pids
    except NotImplementedError:
        return descendants(table(), roots)


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process: a fiftieth of the time of reading the whole table.

    Raises: NotImplementedError where the kernel does not list them (Linux without CONFIG_PROC_CHILDREN, macOS).
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except FileNotFoundError:
        if pid == os.getpid():
            raise NotImplementedError from None
        return []  # it has ended
    except OSError:
        return []
    children: list[int] = []
    for thread in threads:
        try:
            children += map(int, read(f"/proc/{pid}/task/{thread}/children").split())
        except FileNotFoundError:
            if pid == os.getpid() and thread == str(pid):
                raise NotImplementedError from None
        except OSError:
            continue
    return children


class NeighbourTime:
    """A counter of the seconds that all processes below some wardens use, from its first call on: those of the queue's
    runs on other lanes, which are neither a run's own nor others'.

    What a run used between the last look at it and its end is not known: its rate until then is taken to continue.
    """

    def __init__(self, wardens: Callable[[], Collection[int]]) -> None:
        self._wardens = wardens
        self._source = CpuTimes()
        self._before: dict[int, dict[tuple[int, float], ProcessTime]] | None = None
        self._rates: dict[int, float] = {}
        self._at = time.monotonic()
        self._used_s = 0.0

    def __call__(self) -> float:
        """Return the seconds so far."""
        now = time.monotonic()
        processes = {pid: self._source.processes(below([pid])) for pid in self._wardens()}
        before, past_s = self._before, now - self._at
        self._before, self._at = processes, now
        if before is None:
            return 0.0
        for pid, times in processes.items():
            used_s = used_between(before.get(pid, {}), times)
            self._rates[pid] = used_s / past_s if past_s > 0 else self._rates.get(pid, 0.0)
            self._used_s += used_s
        for pid in before.keys() - processes.keys():
            self._used_s += self._rates.pop(pid, 0.0) * past_s
        return self._used_s
