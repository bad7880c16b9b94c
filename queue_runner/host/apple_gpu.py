"""The GPU of a Mac, read from ioreg without sudo: how busy it is, and how much of that is other programs.

Each program that computes on it has clients of the driver in the registry (AGXDeviceUserClient). Everybody can read
them: the program's pid and the nanoseconds of GPU time that it has used, the figures of the Activity Monitor. These
decide. The driver's "Device Utilization %" is only a hint: on an M4 Pro and Max it jumps between 0 and 100
(github.com/exelban/stats, issues 2399, 2525, 2748 and 3359).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from queue_runner.host import processes
from queue_runner.host.command import Ask

IOREG = ("/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c")
HINT = (*IOREG, "IOAccelerator")
"""The command whose output hinted_share reads."""
CLIENTS = (*IOREG, "AGXDeviceUserClient")
"""The command whose output clients reads."""
HINT_OVER_S = 1.0
"""The hint is a short average; how short is not documented."""
LOOK_S = 0.5
_MIN_INTERVAL_S = 0.5


class GpuClient(Struct, frozen=True):
    """A program's client of the GPU's driver, and the GPU time that it has used so far."""

    pid: int
    gpu_ns: int


class GpuReading(Struct, frozen=True):
    """The use of the GPU between two lists of its clients, as shares from 0 to 1."""

    at_s: float
    """the time of the newer list, on the caller's clock"""
    over_s: float
    """seconds since the older one"""
    busy_share: float
    """by all programs, WindowServer included"""
    others_busy_share: float | None = None
    """by programs that are not the run's; None until the run has used the GPU itself"""


def hinted_share(text: str | None) -> float | None:
    """Return the "Device Utilization %" of the busiest GPU as a share; None if it is missing."""
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


class GpuMeter:
    """The use of the GPU, from one list of its clients to the next."""

    def __init__(
        self,
        *,
        is_alive: Callable[[int], bool] | None = None,
        parent: Callable[[int], int | None] | None = None,
    ) -> None:
        self._is_alive = is_alive or processes.exists
        self._parent = parent or processes.parent
        self._run_pids: set[int] = set()
        self._run_uses_it = False
        self._before: tuple[float, Mapping[str, GpuClient]] | None = None

    def read(self, text: str | None, at_s: float | None, run_pids: Iterable[int] = ()) -> GpuReading | None:
        """Return the use since the list before; None without two lists, and for a list that was already read.

        `text` is the newest list, requested at `at_s`. `run_pids` are the run's processes, to which their descendants
        belong. A new client has used all of its time since the list before. One whose process has ended meanwhile is
        not one of the others: it may have been the run's.
        """
        self._run_pids.update(run_pids)
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
        run_users = {pid for pid in used_ns if processes.descends(pid, self._run_pids, self._parent)}
        self._run_pids |= run_users  # an orphan has lost the ancestors that identify it
        self._run_uses_it |= bool(run_users)
        over_s = at_s - since[0]
        others = [ns for pid, ns in used_ns.items() if pid not in self._run_pids and self._is_alive(pid)]
        others_share = _share(others, over_s) if self._run_uses_it else None
        return GpuReading(at_s, round(over_s, 3), _share(used_ns.values(), over_s), others_share)


def use_now(
    ask: Ask, *, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> float | None:
    """Return the use of the GPU over the next LOOK_S, 0 to 1; the driver's hint where it lists no clients."""
    meter = GpuMeter()
    meter.read(ask(CLIENTS), clock())
    sleep(LOOK_S)
    reading = meter.read(ask(CLIENTS), clock())
    return reading.busy_share if reading is not None else hinted_share(ask(HINT))


def _share(used_ns: Iterable[int], over_s: float) -> float:
    return round(min(1.0, sum(used_ns) / 1e9 / over_s), 4)
