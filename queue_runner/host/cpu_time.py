"""CPU time of the whole machine, the hypervisor, and one run's processes. All times in seconds of CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from queue_runner.host import processes
from queue_runner.warden.files import LINUX
from queue_runner.warden.processes import rusage_darwin

Named = int | tuple[int, float]
"""A process: its pid, or (pid, start) in the kernel's own units, so that a reused pid is not mistaken for it."""


def pid_of(named: Named) -> int:
    """Return the pid of a process."""
    return named[0] if isinstance(named, tuple) else named


@dataclass(frozen=True)
class MachineTime:
    """Sums since boot over all processors. `total_s` is their capacity, steal included."""

    busy_s: float
    total_s: float
    steal_s: float | None


@dataclass(frozen=True)
class ProcessTime:
    """CPU time of a process: its own and that of the children it has waited for."""

    parent: int
    cpu_s: float


class Source(Protocol):
    def machine(self) -> MachineTime | None: ...

    def processes(self, named: Iterable[Named]) -> dict[tuple[int, float], ProcessTime]: ...


class LinuxSource:
    """CPU times from /proc/stat and /proc/PID/stat (proc(5))."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = f"{root}/proc".replace("//", "/")
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")

    def machine(self) -> MachineTime | None:
        """Return the machine's sums. user already includes guests; a processor waiting for a disk is idle."""
        fields = _first_line(f"{self._proc}/stat").split()
        if len(fields) < 9 or fields[0] != "cpu":
            return None
        user, nice, system, idle, iowait, irq, softirq, steal = (int(word) * self._tick_s for word in fields[1:9])
        busy = user + nice + system + irq + softirq
        return MachineTime(busy, busy + idle + iowait + steal, steal)

    def processes(self, named: Iterable[Named]) -> dict[tuple[int, float], ProcessTime]:
        times = {}
        for process in named:
            pid, start = process if isinstance(process, tuple) else (process, None)
            # the name, in parentheses, may contain anything, including a parenthesis
            fields = _first_line(f"{self._proc}/{pid}/stat").rpartition(")")[2].split()
            if len(fields) < 20 or (start is not None and int(fields[19]) != start):
                continue
            ticks = sum(int(word) for word in fields[11:15])
            times[pid, float(fields[19])] = ProcessTime(int(fields[1]), ticks * self._tick_s)
        return times


class MacSource:
    """CPU times on macOS, by psutil and libproc. There is no hypervisor steal."""

    def machine(self) -> MachineTime | None:
        import psutil

        times = psutil.cpu_times()
        busy = times.user + times.system + getattr(times, "nice", 0.0)
        return MachineTime(busy, busy + times.idle, None)

    def processes(self, named: Iterable[Named]) -> dict[tuple[int, float], ProcessTime]:
        times = {}
        for process in named:
            pid, start = process if isinstance(process, tuple) else (process, None)
            row = processes.look(pid)  # not psutil's create_time, which moves when the clock is set
            if row is None or (start is not None and not processes.same_start(row.start, start)):
                continue
            if (used := rusage_darwin(pid)) is not None:
                times[pid, row.start] = ProcessTime(row.parent, used.cpu_s)
        return times


class Shares:
    """Shares of the machine between two calls, computed from sums."""

    def __init__(self, source: Source, *, fresh: bool = False, queue_s: Callable[[], float] = lambda: 0.0) -> None:
        """`fresh`: the run has not begun, so that its processes' whole time is since now. `own` returns the seconds
        that the queue's processes have used; they are neither the run's nor others'."""
        self._source = source
        self._machine = source.machine()
        self._processes: dict[tuple[int, float], ProcessTime] | None = {} if fresh else None
        self._own, self._own_s = queue_s, queue_s()
        self._fresh, self._job_s = fresh, 0.0

    def since_last(self, named: Iterable[Named]) -> dict[str, float]:
        """Return shares of 1 of all processors since the last call: others_cpu_share, job_cpu_share, steal_share. {}
        without a previous call to compare with."""
        machine = self._source.machine()
        known, self._processes = self._processes, self._source.processes(named)
        job_s = None if known is None else used_between(known, self._processes)
        self._job_s += job_s or 0.0
        return self._shares(machine, job_s)

    def at_end(self, cpu_s: float) -> dict[str, float]:
        """Return the shares since the last call, after the end of a run that used `cpu_s` altogether, by wait4; {} if
        its beginning was not seen."""
        return self._shares(self._source.machine(), max(0.0, cpu_s - self._job_s)) if self._fresh else {}

    def _shares(self, machine: MachineTime | None, job_s: float | None) -> dict[str, float]:
        before, self._machine = self._machine, machine
        own_before, self._own_s = self._own_s, self._own()
        if before is None or machine is None:
            return {}
        total_s = machine.total_s - before.total_s
        if total_s <= 0:
            return {}
        shares = {}
        if before.steal_s is not None and machine.steal_s is not None:
            shares["steal_share"] = max(0.0, machine.steal_s - before.steal_s) / total_s
        if job_s is not None:
            own_s = max(0.0, self._own_s - own_before)
            others_s = max(0.0, machine.busy_s - before.busy_s - job_s - own_s)
            shares |= {"job_cpu_share": min(1.0, job_s / total_s), "others_cpu_share": min(1.0, others_s / total_s)}
        return {name: round(share, 4) for name, share in shares.items()}


def own_time(pids: Iterable[int]) -> float:
    """Return the CPU time of the queue's processes, without that of their children: those are the run and the hooks."""
    if LINUX:
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        stats = (_first_line(f"/proc/{pid}/stat").rpartition(")")[2].split() for pid in pids)
        return sum((int(fields[11]) + int(fields[12])) * tick_s for fields in stats if len(fields) > 12)
    import psutil

    used_s = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except (psutil.Error, OSError):
            continue
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


def _first_line(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1024).split(b"\n")[0].decode("utf-8", "replace")
    except OSError:
        return ""  # the process ended between the two calls
    finally:
        os.close(descriptor)
