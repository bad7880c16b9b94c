"""The conditions of a measurement: a series of cheap samples, stored with the run, never hashed.

A sample holds only what is known: a missing key is unknown, never 0. On Linux a sample reads files in /proc and /sys
for well under 3 ms; every tool (nvidia-smi, macOS's commands) runs beside the worker, and its answer is in the next
sample.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from queue_runner.host.command import Ask, Asked, ask
from queue_runner.host.cpu_time import LinuxSource, MacSource, Named, Shares
from queue_runner.host.filesystem import read_text
from queue_runner.host.power import Power, ThrottleCounters, linux_power, parse_battery, parse_low_power, parse_pressure

MIN_INTERVAL_S = 0.5
"""For samples closer than this, the kernel's clock tick of 10 ms is too coarse for a share."""
_SLOW_S = 10.0
_IOREG = ("/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
_GPU_LOOKS = 3
_BRIEFLY = partial(ask, timeout_s=2.0)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

KEYS: dict[str, str] = {
    "battery_share": "battery charge, 0 to 1",
    "gpu_busy_before": "macOS: utilisation of the GPU before the run started, so by other programs, 0 to 1",
    "gpu_busy_share": "utilisation of the busiest GPU by all programs, 0 to 1",
    "gpu_temperature_c": "temperature of the hottest NVIDIA GPU, degrees Celsius",
    "job_cpu_share": "the run's processes, share of all processors",
    "load1": "load average over a minute",
    "low_power": "low power mode is on",
    "memory_available_bytes": "memory available without swapping",
    "on_battery": "running on battery",
    "others_cpu_share": "other processes, share of all processors",
    "priority": "macOS: scheduler priority of the trainer, 31 to 37 unless throttled",
    "steal_share": "Linux: taken by the hypervisor, share of all processors",
    "swap_in_bytes_per_s": "read back from swap",
    "swap_out_bytes_per_s": "written to swap",
    "thermal_level": "macOS: pressure 0 to 4, 0 proves nothing; Linux: 1 after a processor throttled",
}
"""All keys that a sample may have, and their meaning."""


class Sampler:
    """A source of samples. Rates are over the time since the previous sample."""

    def __init__(
        self, *, platform: str = sys.platform, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic
    ):
        self._clock = clock
        self._tools = _MacTools() if platform == "darwin" else _LinuxTools(root)
        linux = platform.startswith("linux")
        self._shares = Shares(LinuxSource(root) if linux else MacSource())
        self._memory: Callable[[], tuple[int | None, int | None, int | None]]
        self._memory = (lambda: linux_memory(root)) if linux else psutil_memory
        self._at = clock()
        self._swap = self._memory()[1:]
        self._rates: dict[str, float] = {}

    def sample(self, pids: Iterable[Named] = ()) -> dict[str, Any]:
        """Sample the conditions. `pids` are the run's processes, the trainer first; their use is not "others"."""
        named = list(pids)
        now = self._clock()
        available, *swap = self._memory()
        if now - self._at >= MIN_INTERVAL_S or not self._rates:
            self._rates = self._shares.since_last(named)
            if now - self._at >= MIN_INTERVAL_S:
                self._rates |= swap_rates(self._swap, swap, now - self._at)
                self._at, self._swap = now, (swap[0], swap[1])
            else:
                self._rates = {}  # this sample is the processes' baseline; shares come with the next
        trainer = named[0] if named else None
        found = {
            "load1": _load1(),
            "memory_available_bytes": available,
            **self._rates,
            **self._tools.sample(trainer[0] if isinstance(trainer, tuple) else trainer, now),
        }
        return {name: value for name, value in sorted(found.items()) if value is not None}

    def close(self) -> None:
        """End the tools that are still running."""
        self._tools.close()


class _LinuxTools:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._throttle = ThrottleCounters(root)
        self._power, self._power_due = Power(), 0.0
        query = "--query-gpu=utilization.gpu,temperature.gpu"
        self._gpus = Asked(["nvidia-smi", query, "--format=csv,noheader,nounits"], _SLOW_S)

    def sample(self, trainer: int | None, now: float) -> dict[str, Any]:
        if now >= self._power_due:
            self._power, self._power_due = linux_power(self._root), now + _SLOW_S
        return {
            "thermal_level": self._throttle.level(),
            **vars(self._power),
            **parse_nvidia_smi(self._gpus.latest(now)),
        }

    def close(self) -> None:
        self._gpus.close()


class _MacTools:
    def __init__(self) -> None:
        self._battery = Asked(["/usr/bin/pmset", "-g", "batt"], _SLOW_S)
        self._settings = Asked(["/usr/bin/pmset", "-g"], 3 * _SLOW_S)
        self._pressure = Asked(["/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel"], 0.0)
        self._gpu = Asked(_IOREG, _SLOW_S)
        self._vm = Asked(["/usr/bin/vm_stat"], 0.0)
        self._swapped: tuple[float, tuple[int, int]] | None = None
        self._priority: tuple[int, Asked] | None = None

    def sample(self, trainer: int | None, now: float) -> dict[str, Any]:
        if trainer is not None and (self._priority is None or self._priority[0] != trainer):
            if self._priority is not None:
                self._priority[1].close()
            self._priority = trainer, Asked(["/bin/ps", "-o", "pri=", "-p", str(trainer)], _SLOW_S)
        battery = parse_battery(self._battery.latest(now))
        return {
            "on_battery": battery.on_battery,
            "battery_share": battery.battery_share,
            "low_power": parse_low_power(self._settings.latest(now)),
            "thermal_level": parse_pressure(self._pressure.latest(now)),
            "gpu_busy_share": parse_accelerators(self._gpu.latest(now)),
            "priority": parse_priority(self._priority[1].latest(now)) if self._priority else None,
            **self._swap(now),
        }

    def _swap(self, now: float) -> dict[str, float]:
        """Return the rates between the last two answers, each dated by the time of its query."""
        counts = parse_vm_stat(self._vm.latest(now))
        at, before = self._vm.answered_s, self._swapped
        if counts is None or at is None:
            return {}
        if before is None:
            self._swapped = at, counts
            return {}
        if at - before[0] < MIN_INTERVAL_S:
            return {}
        self._swapped = at, counts
        return swap_rates(before[1], counts, at - before[0])

    def close(self) -> None:
        tools = (self._battery, self._settings, self._pressure, self._gpu, self._vm, *(self._priority or ())[1:])
        for asked in tools:
            if isinstance(asked, Asked):
                asked.close()


def gpu_use_before(
    busy_share: float,
    *,
    ask: Ask = _BRIEFLY,
    platform: str = sys.platform,
    sleep: Callable[[float], None] = time.sleep,
) -> float | None:
    """Return the utilisation of an Apple GPU while no run uses it; None if unknown, and on other systems.

    The tool reports a short average, in which the end of the run before may still be: an answer above `busy_share` is
    asked for again, a second apart, and the lowest counts.
    """
    if platform != "darwin":
        return None
    found: list[float] = []
    while not found or (found[-1] > busy_share and len(found) < _GPU_LOOKS):
        if found:
            sleep(1.0)
        if (share := parse_accelerators(ask(_IOREG))) is None:
            break
        found.append(share)
    return min(found, default=None)


# -- tool output ----------------------------------------------------------------------------------------------------


def parse_accelerators(text: str | None) -> float | None:
    """Parse `ioreg -r -d 1 -w 0 -c IOAccelerator`: the busiest one's short average, of 1, WindowServer included."""
    found = [int(percent) for percent in re.findall(r'"Device Utilization %"=(\d{1,3})\b', text or "")]
    return max(found) / 100 if found else None


def parse_priority(text: str | None) -> int | None:
    """Parse `ps -o pri= -p PID`: 31 to 37 are normal, 20 and 4 are launchd's limits, which children inherit."""
    match = re.fullmatch(r"\s*(\d{1,3})[A-Z]?\s*", text or "")
    return int(match[1]) if match else None


def parse_vm_stat(text: str | None) -> tuple[int, int] | None:
    """Parse `vm_stat`: bytes swapped in and out since boot.

    Not its Pageins and Pageouts, which count mapped files (and which psutil reports as swap): reading a memory-mapped
    dataset would look like swapping, and the compressor's writes to swap would not.
    """
    size = re.search(r"page size of (\d+) bytes", text or "")
    pages = [re.search(rf"^Swap{way}s:\s+(\d+)\.?\s*$", text or "", re.MULTILINE) for way in ("in", "out")]
    if size is None or not all(pages):
        return None
    swapped_in, swapped_out = (int(page[1]) * int(size[1]) for page in pages if page)
    return swapped_in, swapped_out


def parse_nvidia_smi(text: str | None) -> Mapping[str, float | None]:
    """Parse lines of `utilisation, temperature`; an unavailable part reads [N/A]."""
    busy, heat = [], []
    for line in (text or "").splitlines():
        match = re.fullmatch(r"\s*(\d+|\[.*\])\s*,\s*(\d+|\[.*\])\s*", line)
        if match:
            busy += [int(match[1]) / 100] if match[1].isdecimal() else []
            heat += [float(match[2])] if match[2].isdecimal() else []
    return {"gpu_busy_share": max(busy, default=None), "gpu_temperature_c": max(heat, default=None)}


# -- memory ---------------------------------------------------------------------------------------------------------


def linux_memory(root: Path = Path("/")) -> tuple[int | None, int | None, int | None]:
    """Return (available bytes, bytes swapped in, bytes swapped out since boot)."""
    meminfo, vmstat = read_text(root / "proc/meminfo"), read_text(root / "proc/vmstat")
    available = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE)
    pages = [re.search(rf"^{name} (\d+)$", vmstat, re.MULTILINE) for name in ("pswpin", "pswpout")]
    swapped = [int(match[1]) * _PAGE_BYTES if match else None for match in pages]
    return int(available[1]) * 1024 if available else None, swapped[0], swapped[1]


def psutil_memory() -> tuple[int | None, int | None, int | None]:
    """Return the same through psutil, whose swap counts are unusable on macOS: see parse_vm_stat."""
    import psutil

    return psutil.virtual_memory().available, None, None


def swap_rates(before: Iterable[int | None], now: Iterable[int | None], interval_s: float) -> dict[str, float]:
    """Return bytes per second; {} where not counted."""
    names = ("swap_in_bytes_per_s", "swap_out_bytes_per_s")
    return {
        name: round(max(0, new - old) / interval_s, 1)
        for name, old, new in zip(names, before, now, strict=True)
        if old is not None and new is not None
    }


def _load1() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
