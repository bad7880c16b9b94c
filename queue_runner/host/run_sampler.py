"""The conditions of a measurement: a series of cheap samples, stored with the run, never hashed.

On Linux a sample reads files in /proc and /sys for well under 3 ms. NVML is read in a thread (host/background.py), and
macOS's commands run beside the worker: their answers are in the next sample. The use of a Mac's GPU is read once a
second, and each reading is a sample by itself, dated by the time at which ioreg was asked.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

from queue_runner.host import apple_gpu, nvidia
from queue_runner.host.background import BackgroundReader, PolledCommand
from queue_runner.host.command import Ask, ask
from queue_runner.host.cpu_time import CpuTimes, Named, Shares, own_time, pid_of
from queue_runner.host.energy_meters import apple_energy
from queue_runner.host.filesystem import read_text
from queue_runner.host.linux_sensors import LinuxSensors, lowest_share
from queue_runner.host.power import parse_battery, parse_low_power, parse_pressure
from queue_runner.machine_records import SensorSample

MIN_INTERVAL_S = 0.5
"""For samples closer than this, the kernel's clock tick of 10 ms is too coarse for a share."""
_SLOW_S = 10.0
_GPU_EVERY_S = 1.0
"""Least time between two queries of ioreg, so that a reading belongs to one phase of a run."""
_FIRST_LOOK_S = 2.0
"""Limit of a look before a run: NVML takes up to a second where the driver was not loaded."""
_BRIEFLY = partial(ask, timeout_s=2.0)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Sampler:
    """A source of samples. Rates are over the time since the previous sample.

    `fresh`: the run has not begun yet, so that the first sample already has shares. `queue` holds the processes of the
    queue itself, which are nobody's load; nor are its runs on other lanes, whose CPU time so far `beside` returns.
    `gpus` are the UUIDs of a lane's.
    """

    def __init__(
        self,
        *,
        platform: str = sys.platform,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        fresh: bool = False,
        beside: Callable[[], float] = lambda: 0.0,
        gpus: Collection[str] = (),
    ):
        self._clock = clock
        self._tools = _MacTools() if platform == "darwin" else LinuxSensors(root, gpus)
        self.queue: set[int] = {os.getpid()}
        linux = platform.startswith("linux")
        self._fresh = fresh
        self._shares = Shares(CpuTimes(), fresh=fresh, queue_s=lambda: own_time(self.queue) + beside())
        self._memory: Callable[[], tuple[int | None, int | None, int | None]]
        self._memory = (lambda: linux_memory(root)) if linux else psutil_memory
        self._at = clock()
        self._swap = self._memory()[1:]
        self._rates: SensorSample | None = None

    def sample(self, pids: Iterable[Named] = ()) -> SensorSample:
        """Sample the conditions. `pids` are the run's processes, the trainer first; their use is not "others"."""
        named = list(pids)
        now = self._clock()
        available, *swap = self._memory()
        if now - self._at >= MIN_INTERVAL_S:
            self._rates = self._shares.since_last(named) | self._since_last(now, swap)
        elif self._rates is None and not self._fresh:
            self._shares.since_last(named)  # the processes' baseline; shares come with the next sample
        sample = SensorSample(
            at=time.time(), load1=_load1(), processors=os.cpu_count(), memory_available_bytes=available
        )
        return sample | (self._rates or SensorSample()) | self._tools.sample(named, now)

    def at_end(self, cpu_s: float | None) -> SensorSample:
        """Return the energy counted until the end of a run, and the rates from its last sample on.

        `cpu_s` is what the run used altogether, in seconds of CPU; None if that, or when it ended, is not known.
        There are no rates then, nor over less than MIN_INTERVAL_S, nor where the beginning of the run was not seen.
        """
        sample, now = self._tools.counters(), self._clock()
        if cpu_s is not None and now - self._at >= MIN_INTERVAL_S and (shares := self._shares.at_end(cpu_s)).known():
            sample |= shares | self._since_last(now, self._memory()[1:])
        return structs.replace(sample, at=time.time())

    @property
    def reads_gpu(self) -> bool:
        """Whether the use of the GPUs can be known."""
        return self._tools.reads_gpu

    @property
    def reads_each_second(self) -> bool:
        """Whether `gpu_reading` has something new about once a second."""
        return isinstance(self._tools, _MacTools)

    def gpu_use(self) -> tuple[float, SensorSample]:
        """Return the age in seconds, and the utilisation and temperature of the GPUs, of the reading in the newest
        sample; of infinite age before there is one."""
        return self._tools.gpu_use(self._clock())

    def gpu_reading(self, pids: Callable[[], Iterable[Named]] = tuple) -> SensorSample | None:
        """On macOS return the use of the GPU if there is a new reading, at the time of its query; else None. Elsewhere
        `sample` returns it."""
        now = self._clock()
        if not isinstance(self._tools, _MacTools) or (reading := self._tools.gpu_reading(pids, now)) is None:
            return None
        return SensorSample(
            at=time.time() - (now - reading.at_s),
            gpu_busy_share=reading.busy_share,
            gpu_others_busy_share=reading.others_busy_share,
            over_s=reading.over_s,
        )

    def gpu_busy_after(self) -> float | None:
        """Return the use of the GPU after the run's end where that is the only sign of others; None elsewhere."""
        return self._tools.gpu_busy_after()

    def close(self) -> None:
        """Release the readers of sensors."""
        self._tools.close()

    def _since_last(self, now: float, swap: Sequence[int | None]) -> SensorSample:
        """Return the rates of swapping since the last call."""
        rates = swap_rates(self._swap, swap, now - self._at)
        self._at, self._swap = now, (swap[0], swap[1])
        return rates


class _MacTools:
    reads_gpu = True

    def __init__(self) -> None:
        self._battery = PolledCommand(["/usr/bin/pmset", "-g", "batt"], _SLOW_S)
        self._settings = PolledCommand(["/usr/bin/pmset", "-g"], 3 * _SLOW_S)
        self._pressure = PolledCommand(["/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel"], 0.0)
        self._clients = PolledCommand(apple_gpu.CLIENTS, _GPU_EVERY_S)
        self._hint = PolledCommand(apple_gpu.HINT, _GPU_EVERY_S)
        self._meter = apple_gpu.GpuMeter()
        self._newest: apple_gpu.GpuReading | None = None
        self._vm = PolledCommand(["/usr/bin/vm_stat"], 0.0)
        self._swapped: tuple[float, tuple[int, int]] | None = None
        self._priority: tuple[int, PolledCommand] | None = None
        energy = apple_energy()
        self._energy = BackgroundReader(energy.read) if energy else None

    def sample(self, named: Sequence[Named], now: float) -> SensorSample:
        trainer = pid_of(named[0]) if named else None
        if trainer is not None and (self._priority is None or self._priority[0] != trainer):
            self._priority = trainer, PolledCommand(["/bin/ps", "-o", "pri=", "-p", str(trainer)], _SLOW_S)
        battery = parse_battery(self._battery.latest(now))
        sample = SensorSample(
            on_battery=battery.on_battery,
            battery_share=battery.battery_share,
            low_power=parse_low_power(self._settings.latest(now)),
            thermal_level=parse_pressure(self._pressure.latest(now)),
            priority=parse_priority(self._priority[1].latest(now)) if self._priority else None,
        )
        return sample | self._swap(now) | self.counters()

    def counters(self) -> SensorSample:
        newest = self._energy.latest() if self._energy else None
        return SensorSample(energy_at=newest[0], energy_j=newest[1]) if newest and newest[1] else SensorSample()

    def gpu_reading(self, pids: Callable[[], Iterable[Named]], now: float) -> apple_gpu.GpuReading | None:
        text = self._clients.latest(now)
        if text is not None and not apple_gpu.clients(text):
            reading = self._hinted(now)
        else:
            reading = self._meter.read(text, self._clients.answered_s, map(pid_of, pids()))
        self._newest = reading or self._newest
        return reading

    def _hinted(self, now: float) -> apple_gpu.GpuReading | None:
        share, at_s = apple_gpu.hinted_share(self._hint.latest(now)), self._hint.answered_s
        if share is None or at_s is None or (self._newest is not None and at_s <= self._newest.at_s):
            return None
        return apple_gpu.GpuReading(at_s, apple_gpu.HINT_OVER_S, share)

    def gpu_use(self, now: float) -> tuple[float, SensorSample]:
        """Return the age of the beginning of the newest reading: only from then on it says who used the GPU."""
        self.gpu_reading(tuple, now)
        if (newest := self._newest) is None:
            return float("inf"), SensorSample()
        return now - newest.at_s + newest.over_s, SensorSample(gpu_busy_share=newest.busy_share)

    def gpu_busy_after(self) -> float | None:
        return None  # the gate looks before the next run

    def _swap(self, now: float) -> SensorSample:
        """Return the rates between the last two answers, each dated by the time of its query."""
        counts = parse_vm_stat(self._vm.latest(now))
        at, before = self._vm.answered_s, self._swapped
        if counts is None or at is None or (before is not None and at - before[0] < MIN_INTERVAL_S):
            return SensorSample()
        self._swapped = at, counts
        return swap_rates(before[1], counts, at - before[0]) if before is not None else SensorSample()

    def close(self) -> None:
        pass  # a query ends by itself


def gpu_use_before(
    busy_share: float,
    *,
    ask: Ask = _BRIEFLY,
    platform: str = sys.platform,
    root: Path = Path("/"),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """Return the utilisation of the GPU while no run uses it; None if unknown, or where there are several.

    A short average may still contain the end of the run before: an answer above `busy_share` is asked for again, a
    second apart, and the lowest counts.
    """

    def look() -> float | None:
        if platform == "darwin":
            return apple_gpu.use_now(ask, sleep=sleep, clock=clock)
        newest = (
            BackgroundReader(partial(nvidia.busy_share, root)).latest(_FIRST_LOOK_S) if nvidia.library(root) else None
        )
        return newest[1] if newest else None

    return lowest_share(look, busy_share, sleep)


# -- tool output ----------------------------------------------------------------------------------------------------


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


def swap_rates(before: Iterable[int | None], now: Iterable[int | None], interval_s: float) -> SensorSample:
    """Return bytes per second where they are counted."""
    swapped_in, swapped_out = (
        None if old is None or new is None else round(max(0, new - old) / interval_s, 1)
        for old, new in zip(before, now, strict=True)
    )
    return SensorSample(swap_in_bytes_per_s=swapped_in, swap_out_bytes_per_s=swapped_out)


def _load1() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
