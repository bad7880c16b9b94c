"""The load of this machine by others within the last few seconds, while no run is measured: the gate's readings.

The queue's own processes are the worker and all below it (wardens, runs, hooks), and those named beside it. What they
used until they ended is in the CPU time of the parent that waited for them. Nothing here blocks: processor time is read
from the kernel, and tools answer beside the worker.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from queue_runner.host import apple_gpu, conditions, nvidia
from queue_runner.host.background import BackgroundReader
from queue_runner.host.command import PolledCommand
from queue_runner.host.cpu_time import LinuxSource, MachineTime, MacSource, ProcessTime, Source, used_between
from queue_runner.warden import processes
from queue_runner.warden.files import read

WINDOW_S = 3.0
"""Least time over which the processors' load is taken: a command of mpsq, 0.3 s of CPU time, is 5 % of two cores."""
OLD_S = 12.0
"""An earlier sample is too old to say what happens now."""
EVERY_S = 0.5
"""Least time between two samples that are kept."""
GPU_AFTER_S = 1.2
"""How long after a run the GPU's utilisation, an average of up to a second (NVML), may still be the run's."""
GPU_OLD_S = 4.0
GPU_UNKNOWN_S = 10.0
"""A tool that has not answered for this long is not waited for."""
_SETTLE_S = 1.0
"""On macOS the answers of all tools come with the next sample."""


START_KEYS: dict[str, str] = {
    "gate_waited_s": "how long the start waited for a quiet machine, seconds",
    "env_padding_bytes": "bytes by which the environment was padded",
    "hash_seed": "PYTHONHASHSEED, where it was drawn",
    "canary_s": "duration of the canary before the run, seconds",
    "canary_level_s": "its level: the median of its first readings under this boot of the same canary_of",
    "canary_of": "what its level belongs to: device, version of torch, variables that change its speed",
    "canary_count": "multiplications in it",
    "canary_cost_s": "how long it took altogether, seconds",
    "canary_tries": "how often it was asked: more than once if the device was below its level",
}
"""Keys of the record of a run's start, which is one of its conditions."""


class Gpu(Protocol):
    """A tool that tells the use of the GPUs by all programs, and its answer with the time of its query."""

    def latest(self, now: float) -> tuple[float, Mapping[str, float | None]] | None: ...

    def close(self) -> None: ...


class Apple:
    """macOS's ioreg, asked once a second while somebody reads the answers."""

    def __init__(self) -> None:
        self._asked = PolledCommand(apple_gpu.USE, 1.0)

    def latest(self, now: float) -> tuple[float, Mapping[str, float | None]] | None:
        text, at = self._asked.latest(now), self._asked.answered_s
        return None if at is None else (at, {"gpu_busy_share": apple_gpu.busy_share(text)})

    def close(self) -> None:
        self._asked.close()


class Nvidia:
    """NVML, read in a thread: its first reading takes up to a second."""

    def __init__(self, library: Any, uuids: Collection[str] = ()) -> None:
        self._gpus = nvidia.Nvml(library)
        self._gpus.watch(uuids)
        self._reading = BackgroundReader(self._gpus.read)

    def latest(self, now: float) -> tuple[float, Mapping[str, float | None]] | None:
        if (newest := self._reading.latest()) is None:
            return None
        at, reading = newest
        return now - (time.time() - at), {key: reading.get(key) for key in ("gpu_busy_share", "gpu_temperature_c")}

    def close(self) -> None:
        if not self._reading.is_busy():
            self._gpus.close()


def gpu_tool(platform: str = sys.platform, uuids: Collection[str] = ()) -> Gpu | None:
    """Return the tool that tells the use of the GPUs, of those named if any are; None if there is none here."""
    if platform == "darwin":
        return Apple()
    library = nvidia.library()
    return Nvidia(library, uuids) if library else None


@dataclass(frozen=True)
class _Sample:
    at: float
    machine: MachineTime
    queue: dict[tuple[int, float], ProcessTime]


class Load:
    """What others do on this machine. `sample` is called at every step, `read` when a run could start."""

    def __init__(
        self,
        *,
        platform: str = sys.platform,
        source: Source | None = None,
        gpu: Gpu | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source or (LinuxSource() if platform.startswith("linux") else MacSource())
        self._clock = clock
        self._samples: deque[_Sample] = deque(maxlen=64)
        self._ended_at = -GPU_AFTER_S  # when a run of ours was last there
        self._gpu = gpu or gpu_tool(platform)
        self._asked_at: float | None = None
        self._sampler: conditions.Sampler | None = None
        self._settled_at = clock() + (_SETTLE_S if platform == "darwin" else 0.0)

    def sample(self, roots: Collection[int] = (), *, running: bool = False, every_s: float = EVERY_S) -> None:
        """Note the processor time used until now, if the last note is `every_s` old. `roots` are processes of ours that
        are not below this one; `running`: a run of ours is there, and may use the GPU."""
        now = self._clock()
        if running:
            self._ended_at = now
        if not self._samples or now - self._samples[-1].at >= every_s:
            self._samples.extend(self._take(now, roots))

    def cpu_share(self) -> float | None:
        """Return the share of all processors that others used within the last few seconds; None before there are
        samples of that time."""
        now = self._clock()
        earlier = [one for one in self._samples if WINDOW_S <= now - one.at <= OLD_S]
        if not earlier or not (latest := self._take(now, ())):
            return None
        before, after = earlier[-1], latest[0]
        total_s = after.machine.total_s - before.machine.total_s
        others_s = after.machine.busy_s - before.machine.busy_s - used_between(before.queue, after.queue)
        return min(1.0, max(0.0, others_s) / total_s) if total_s > 0 else None

    def read(self, *, cpu: bool = True, gpu: bool = True) -> dict[str, Any] | None:
        """Return the current readings, by the keys of `conditions`; None while one that will come is still missing.

        Without `cpu` or `gpu`, nothing of these is read or waited for.
        """
        now = self._clock()
        self._sampler = self._sampler or conditions.Sampler()
        reading = {key: value for key, value in self._sampler.sample().items() if key not in _OWN}
        if now < self._settled_at:
            return None
        if cpu and self._samples:  # else this kernel does not tell
            if (share := self.cpu_share()) is None:
                return None
            reading["others_cpu_share"] = share
        if gpu:
            if (use := self._gpu_use(now)) is None:
                return None
            reading |= {key: value for key, value in use.items() if value is not None}
        return reading

    def close(self) -> None:
        """End the tools that are still running."""
        for tool in (self._sampler, self._gpu):
            if tool is not None:
                tool.close()

    def _gpu_use(self, now: float) -> Mapping[str, float | None] | None:
        """Return the utilisation and temperature of the GPUs, {} where that cannot be known; None if it will be."""
        if self._gpu is None:
            return {}
        if now - self._ended_at < GPU_AFTER_S:
            return None
        answer = self._gpu.latest(now)
        if answer is not None and answer[0] >= self._ended_at + GPU_AFTER_S and now - answer[0] <= GPU_OLD_S:
            self._asked_at = None
            return answer[1]
        self._asked_at = now if self._asked_at is None else self._asked_at
        return {} if now - self._asked_at > GPU_UNKNOWN_S else None

    def _take(self, now: float, roots: Collection[int]) -> list[_Sample]:
        machine = self._source.machine()
        if machine is None:
            return []
        return [_Sample(now, machine, self._source.processes(below({os.getpid(), *roots})))]


_OWN = ("others_cpu_share", "job_cpu_share", "gpu_busy_share", "gpu_temperature_c")
"""Keys of a sample of the conditions that are read here, more often."""


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
        return processes.descendants(processes.table(), roots)


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
