"""Linux's sensors besides load and memory: power, heat, waiting for processors, NVIDIA GPUs, energy counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from msgspec import structs

from queue_runner.host import nvidia
from queue_runner.host.background import BackgroundReader
from queue_runner.host.cpu_time import Named, pid_of
from queue_runner.host.energy_meters import Rapl
from queue_runner.host.power import Power, ThrottleCounters, linux_power
from queue_runner.machine_records import SensorSample

_SLOW_S = 10.0
_LOOKS = 3


class LinuxSensors:
    """The sensors of one run, which uses the GPUs of these UUIDs; any, if none are given."""

    def __init__(self, root: Path = Path("/"), gpus: Collection[str] = ()) -> None:
        self._root = root
        self._throttle = ThrottleCounters(root)
        self._power, self._power_due = Power(), 0.0
        self._rapl = Rapl(root)
        library = nvidia.library(root)
        self._gpus = nvidia.Nvml(library) if library else None
        if self._gpus is not None:
            self._gpus.watch(gpus)
        self._reading = BackgroundReader(self._read_beside) if self._gpus or self._rapl.folders else None
        self._newest: tuple[float, SensorSample] = (float("-inf"), SensorSample())
        self._hidden = False

    def sample(self, named: Sequence[Named], now: float) -> SensorSample:
        """Return values of a sample at `now` (seconds of any steady clock), of a run with these processes."""
        if now >= self._power_due:
            self._power, self._power_due = linux_power(self._root), now + _SLOW_S
        if self._gpus is not None:
            self._gpus.use_pids(map(pid_of, named))
        return SensorSample(thermal_level=self._throttle.level(), **structs.asdict(self._power)) | self._read()

    def counters(self) -> SensorSample:
        """Return the energy counters and their time."""
        newest = self._read()
        return SensorSample(energy_at=newest.energy_at, energy_j=newest.energy_j)

    @property
    def reads_gpu(self) -> bool:
        """Whether NVML can be asked."""
        return self._gpus is not None

    def gpu_use(self, now: float) -> tuple[float, SensorSample]:
        """Return the age in seconds of the newest reading that `sample` returned, infinite before, and its use and
        temperature of the GPUs."""
        at, newest = self._newest
        use = SensorSample(gpu_busy_share=newest.gpu_busy_share, gpu_temperature_c=newest.gpu_temperature_c)
        return time.time() - at, use

    def gpu_busy_after(self) -> float | None:
        """Return the lowest of three looks at the GPU's use, a second apart, after the run; None unless the GPU's
        processes had no names, so that nothing else tells of others. NVML's average is over a second at most."""
        if not self._hidden:
            return None
        time.sleep(1.0)
        return lowest_share(lambda: self._read().gpu_busy_share, 0.0, time.sleep)

    def close(self) -> None:
        """Release NVML, unless it hangs."""
        if self._gpus is not None and self._reading is not None and not self._reading.is_busy():
            self._gpus.close()

    def _read(self) -> SensorSample:
        newest = self._reading.latest() if self._reading is not None else None
        if newest is None:
            return SensorSample()
        at, sample = self._newest = newest
        self._hidden = sample.gpus_used is None and (self._hidden or sample.gpu_pids_hidden is not None)
        return sample if sample.energy_j is None else structs.replace(sample, energy_at=at)

    def _read_beside(self) -> SensorSample:
        sample = self._gpus.read() if self._gpus is not None else SensorSample()
        joules = {**self._rapl.read(), **(sample.energy_j or {})}
        return structs.replace(sample, energy_j=joules or None)


def lowest_share(look: Callable[[], float | None], busy_share: float, sleep: Callable[[float], None]) -> float | None:
    """Return the lowest of up to three looks at the GPU's use, a second apart: another follows one above `busy_share`.
    None if the first tells nothing."""
    shares: list[float] = []
    while (share := look()) is not None:
        shares.append(share)
        if share <= busy_share or len(shares) == _LOOKS:
            break
        sleep(1.0)
    return min(shares, default=None)
