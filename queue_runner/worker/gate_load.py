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
from collections.abc import Callable, Collection

from msgspec import Struct, structs

from queue_runner.host import run_sampler
from queue_runner.host.cpu_time import CpuTimes, MachineTime, ProcessTime, below, others_share, used_between
from queue_runner.machine_records import SensorSample

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


class _Sample(Struct, frozen=True):
    at: float
    machine: MachineTime
    queue: dict[tuple[int, float], ProcessTime]


class Load:
    """What others do on this machine. `sample` is called at every step, `read` when a run could start."""

    def __init__(
        self,
        *,
        gpus: Collection[str] = (),
        source: CpuTimes | None = None,
        sampler: run_sampler.Sampler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gpus` are the UUIDs of a lane's; all count, if none are given."""
        self._source = source or CpuTimes()
        self._clock = clock
        self._gpus = gpus
        self._sampler = sampler
        self._samples: deque[_Sample] = deque(maxlen=64)
        self._ended_at = -GPU_AFTER_S  # when a run of ours was last there
        self._missing_since: float | None = None  # a reading of the GPU
        self._settled_at = clock() + (_SETTLE_S if sys.platform == "darwin" else 0.0)

    def sample(self, roots: Collection[int] = (), *, running: bool = False, every_s: float = EVERY_S) -> None:
        """Note the processor time used until now, if the last note is `every_s` old. `roots` are processes of ours that
        are not below this one; `running`: a run of ours is there, and may use the GPU."""
        now = self._clock()
        if running:
            self._ended_at = now
        if not self._samples or now - self._samples[-1].at >= every_s:
            self._samples.extend(self._take(now, roots))

    def cpu_share(self, window_s: float | None = None) -> float | None:
        """Return the share of all processors that others used within the last seconds, at least `window_s` (WINDOW_S
        if None); None before there are samples of that time."""
        now = self._clock()
        least_s = WINDOW_S if window_s is None else window_s
        earlier = [sample for sample in self._samples if least_s <= now - sample.at <= OLD_S]
        if not earlier or not (latest := self._take(now, ())):
            return None
        before, after = earlier[-1], latest[0]
        return others_share(before.machine, after.machine, used_between(before.queue, after.queue))

    def read(self, *, cpu: bool = True, gpu: bool = True, window_s: float | None = None) -> SensorSample | None:
        """Return the current readings; None while one that will come is still missing.

        Without `cpu` or `gpu`, nothing of these is read or waited for. `window_s` is that of `cpu_share`.
        """
        now = self._clock()
        self._sampler = self._sampler or run_sampler.Sampler(gpus=self._gpus)
        reading = structs.replace(self._sampler.sample(), **_READ_HERE)
        if now < self._settled_at:
            return None
        if cpu and self._samples:  # else this kernel does not tell
            if (share := self.cpu_share(window_s)) is None:
                return None
            reading = structs.replace(reading, others_cpu_share=share)
        if gpu:
            if (use := self._gpu_use(self._sampler, now)) is None:
                return None
            reading |= use
        return reading

    def close(self) -> None:
        """End the tools that are still running."""
        if self._sampler is not None:
            self._sampler.close()

    def _gpu_use(self, sampler: run_sampler.Sampler, now: float) -> SensorSample | None:
        """Return the GPUs' utilisation and temperature, unknown where they cannot be read; None if they will be."""
        if not sampler.reads_gpu:
            return SensorSample()
        if now - self._ended_at < GPU_AFTER_S:
            return None
        age_s, use = sampler.gpu_use()
        if now - age_s >= self._ended_at + GPU_AFTER_S and age_s <= GPU_OLD_S:
            self._missing_since = None
            return use
        self._missing_since = now if self._missing_since is None else self._missing_since
        return SensorSample() if now - self._missing_since > GPU_UNKNOWN_S else None

    def _take(self, now: float, roots: Collection[int]) -> list[_Sample]:
        machine = self._source.machine()
        if machine is None:
            return []
        return [_Sample(now, machine, self._source.processes(below({os.getpid(), *roots})))]


_READ_HERE = dict.fromkeys(("others_cpu_share", "job_cpu_share", "gpu_busy_share", "gpu_temperature_c"))
"""Fields of a sample of the conditions that are read here, more often: unknown until then."""
