"""The GPU of a Mac, as ioreg tells without sudo: how busy it is, and how much of that other programs are.

Every program that computes on it has clients of the driver in the registry (AGXDeviceUserClient), readable by
everybody, each with the program's pid and the nanoseconds of GPU time that it has used: what Activity Monitor shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from queue_runner.host import processes

IOREG = ("/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c")
USE = (*IOREG, "IOAccelerator")
"""The command whose output busy_share reads."""
CLIENTS = (*IOREG, "AGXDeviceUserClient")
"""The command whose output clients reads."""
_MIN_INTERVAL_S = 0.5


@dataclass(frozen=True)
class GpuClient:
    """A program's client of the GPU's driver, and the GPU time that it has used so far."""

    pid: int
    gpu_ns: int


def busy_share(text: str | None) -> float | None:
    """Return the use of the busiest GPU by all programs, WindowServer included: a short average, 0 to 1."""
    percents = [int(percent) for percent in re.findall(r'"Device Utilization %"=(\d{1,3})\b', text or "")]
    return max(percents) / 100 if percents else None


def clients(text: str | None) -> dict[str, GpuClient]:
    """Return the clients by the id of their registry entry. In an entry AppUsage, with a count for each API, comes
    before its IOUserClientCreator, "pid 533, WindowServer"."""
    clients = {}
    for entry in re.split(r"^[ |]*\+-o ", text or "", flags=re.MULTILINE):
        id, creator = re.search(r"\bid (0x[0-9a-f]+)", entry), re.search(r'"IOUserClientCreator" = "pid (\d+),', entry)
        if id and creator:
            used = re.findall(r'"accumulatedGPUTime"=(\d+)', entry)
            clients[id[1]] = GpuClient(int(creator[1]), sum(map(int, used)))
    return clients


class Others:
    """The use of the GPU by programs that are not the run's, from one list of its clients to the next."""

    def __init__(
        self,
        *,
        is_alive: Callable[[int], bool] | None = None,
        parent: Callable[[int], int | None] | None = None,
    ) -> None:
        self._is_alive = is_alive or _is_alive
        self._parent = parent or processes.parent
        self._own: set[int] = set()
        self._own_use = False
        self._before: tuple[float, Mapping[str, GpuClient]] | None = None

    def busy_share(self, text: str | None, at_s: float | None, run_pids: Iterable[int]) -> float | None:
        """Return their share of the time since the list before, 0 to 1; None without two lists, and until the run has
        used the GPU itself.

        `text` is the newest list, asked for at `at_s`; `own` are the run's processes, as their descendants are. A
        client that is new has used all of its time since then. One whose process has ended meanwhile counts for nobody:
        it may have been the run's.
        """
        self._own.update(run_pids)
        now = clients(text)
        if at_s is None or not now:
            return None
        if self._before is not None and at_s - self._before[0] < _MIN_INTERVAL_S:
            return None
        since, self._before = self._before, (at_s, now)
        if since is None:
            return None
        used_ns: dict[int, int] = {}
        for id, client in now.items():
            new_ns = client.gpu_ns - (since[1][id].gpu_ns if id in since[1] else 0)
            if new_ns > 0:
                used_ns[client.pid] = used_ns.get(client.pid, 0) + new_ns
        own_users = {pid for pid in used_ns if processes.descends(pid, self._own, self._parent)}
        self._own |= own_users  # an orphan has lost the ancestors that identify it
        self._own_use |= bool(own_users)
        if not self._own_use:
            return None
        others_ns = sum(ns for pid, ns in used_ns.items() if pid not in self._own and self._is_alive(pid))
        return round(min(1.0, others_ns / 1e9 / (at_s - since[0])), 4)


def _is_alive(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid)
