"""Linux's sensors besides load and memory: power, heat, waiting for processors, NVIDIA GPUs, energy counters."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from queue_runner.host import nvidia
from queue_runner.host.background import BackgroundReader
from queue_runner.host.cpu_time import Named, pid_of
from queue_runner.host.energy_meters import Rapl
from queue_runner.host.filesystem import read_text
from queue_runner.host.power import Power, ThrottleCounters, linux_power

GPU_KEYS = ("gpu_busy_share", "gpu_temperature_c")
"""Keys of a reading of the GPUs while no run uses them."""
_SLOW_S = 10.0
_LOOKS_AFTER = 3


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
        self._newest: tuple[float, dict[str, Any]] = (float("-inf"), {})
        self._hidden = False

    def sample(self, named: Sequence[Named], now: float) -> dict[str, Any]:
        """Return values of a sample at `now` (seconds of any steady clock), of a run with these processes."""
        if now >= self._power_due:
            self._power, self._power_due = linux_power(self._root), now + _SLOW_S
        if self._gpus is not None:
            self._gpus.use_pids(map(pid_of, named))
        return {"thermal_level": self._throttle.level(), **vars(self._power), **self._read()}

    def counters(self) -> dict[str, Any]:
        """Return the energy counters and their time."""
        readings = self._read()
        return {name: readings[name] for name in ("energy_at", "energy_j") if name in readings}

    @property
    def reads_gpu(self) -> bool:
        """Whether NVML can be asked."""
        return self._gpus is not None

    def gpu_use(self, now: float) -> tuple[float, dict[str, Any]]:
        """Return the age in seconds and the values of the newest reading that `sample` returned; infinite before."""
        at, readings = self._newest
        return time.time() - at, {key: readings[key] for key in GPU_KEYS if key in readings}

    def gpu_busy_after(self) -> float | None:
        """Return the lowest of three looks at the GPU's use, a second apart, after the run; None unless the GPU's
        processes had no names, so that nothing else tells of others. NVML's average is over a second at most."""
        looks: list[float] = []
        while self._hidden and (not looks or (looks[-1] > 0 and len(looks) < _LOOKS_AFTER)):
            time.sleep(1.0)
            share = self._read().get("gpu_busy_share")
            if share is None:
                break
            looks.append(share)
        return min(looks, default=None)

    def close(self) -> None:
        """Release NVML, unless it hangs."""
        if self._gpus is not None and self._reading is not None and not self._reading.is_busy():
            self._gpus.close()

    def _read(self) -> dict[str, Any]:
        newest = self._reading.latest() if self._reading is not None else None
        if newest is None:
            return {}
        at, readings = self._newest = newest
        self._hidden = "gpus_used" not in readings and (self._hidden or "gpu_pids_hidden" in readings)
        return {**readings, "energy_at": at} if "energy_j" in readings else readings

    def _read_beside(self) -> dict[str, Any]:
        readings = self._gpus.read() if self._gpus is not None else {}
        joules = {**self._rapl.read(), **readings.get("energy_j", {})}
        return {**readings, "energy_j": joules} if joules else readings


def waited_for_cpu(root: Path = Path("/")) -> int | None:
    """Return the microseconds since boot in which some task waited for a processor (/proc/pressure/cpu: Linux 4.20,
    unless started with psi=0); None if not counted."""
    match = re.search(r"^some .*\btotal=(\d+)", read_text(root / "proc/pressure/cpu"), re.MULTILINE)
    return int(match[1]) if match else None
