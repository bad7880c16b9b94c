"""NVIDIA GPUs through NVML (nvidia-ml-py, the extra `nvidia`): use, by whom, heat, clocks, power and energy.

NVML API reference: https://docs.nvidia.com/deploy/nvml-api/. Every value is optional: a GPU, a driver or a sandbox that
does not answer a question leaves its key out. Nothing here changes a setting of the GPU.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from queue_runner.host import processes
from queue_runner.machine_records import SensorSample

_DEVICES = ("dev/nvidiactl", "dev/dxg")
"""Device files of the driver: without one, the library is not even imported."""
REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}
"""Reasons for a lower clock, as bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReason*). Left
out: an idle GPU, and clocks that somebody has set."""
_LOOK_BACK_US = 1_000_000


def has_driver(root: Path = Path("/")) -> bool:
    """Return whether there is an NVIDIA driver."""
    return any((root / name).exists() for name in _DEVICES)


def library(root: Path = Path("/")) -> Any:
    """Return the module pynvml, None where there is no NVIDIA driver or no nvidia-ml-py."""
    if not has_driver(root):
        return None
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def is_missing(root: Path = Path("/")) -> bool:
    """Return whether there is an NVIDIA driver, and no nvidia-ml-py to ask it."""
    return has_driver(root) and library(root) is None


class _GpuReading(Struct):
    """The answers of one GPU; None where it does not answer. `hides_pids`: its processes have no names here, as in a
    container without the host's pids, so that the run's use cannot be distinguished from others'."""

    index: int
    busy_share: float | None = None
    energy_j: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    margin_c: float | None = None
    clock_share: float | None = None
    reasons: Collection[str] = ()
    hides_pids: bool = False
    others: int = 0
    others_bytes: int = 0
    others_share: float | None = None


class Nvml:
    """A reader of all GPUs. `use_pids` names the run's processes; their descendants and this process's are its own,
    too, and every other process is foreign."""

    def __init__(
        self,
        nvml: Any,
        *,
        parent: Callable[[int], int | None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nvml = nvml
        self._parent = parent or processes.parent
        self._clock = clock
        self._handles: list[Any] | None = None
        self._own: frozenset[int] = frozenset()
        self._ours: set[int] = set()
        self._used: set[int] = set()
        self._seen_us: dict[int, int] = {}
        self._watched: frozenset[str] = frozenset()

    def use_pids(self, pids: Iterable[int]) -> None:
        """Set the run's processes."""
        self._own = frozenset(pids) | {os.getpid()}

    def count(self) -> int:
        """Return how many GPUs there are."""
        return len(self._open())

    def places(self) -> dict[str, str]:
        """Return the PCI bus id of every GPU by UUID; of one that is divided, its MIG slices."""
        places: dict[str, str] = {}
        for handle in self._open():
            with suppress(self._nvml.NVMLError):
                place = _text(self._nvml.nvmlDeviceGetPciInfo(handle).busId)
                places |= dict.fromkeys(self._slices(handle) or [_text(self._nvml.nvmlDeviceGetUUID(handle))], place)
        return places

    def _slices(self, handle: Any) -> list[str]:
        nvml, handles = self._nvml, []
        with suppress(nvml.NVMLError):
            if nvml.nvmlDeviceGetMigMode(handle)[0]:
                for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                    with suppress(nvml.NVMLError):
                        slice_ = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                        handles.append(_text(nvml.nvmlDeviceGetUUID(slice_)))
        return handles

    def watch(self, uuids: Collection[str]) -> None:
        """Read only the GPUs of these UUIDs, or on which these are slices."""
        self._watched = frozenset(uuids)

    def read(self) -> SensorSample:
        """Return what NVML knows of a sample.

        It takes milliseconds. The first call takes up to a second where the driver was not loaded."""
        gpus = [self._gpu(n, handle) for n, handle in enumerate(self._open()) if self._is_watched(handle)]
        if not gpus:
            return SensorSample()
        used = [gpu for gpu in gpus if gpu.index in self._used]
        watched = used or gpus
        return SensorSample(
            gpu_busy_share=max(_known(gpu.busy_share for gpu in watched), default=None),
            gpu_temperature_c=max(_known(gpu.temperature_c for gpu in watched), default=None),
            gpu_clock_share=min(_known(gpu.clock_share for gpu in watched), default=None),
            gpu_thermal_margin_c=min(_known(gpu.margin_c for gpu in watched), default=None),
            gpu_slowed_by=sorted({reason for gpu in watched for reason in gpu.reasons}) or None,
            gpus_used=sorted(self._used) or None,
            gpu_pids_hidden=any(gpu.hides_pids for gpu in gpus) or None,
            energy_j={f"gpu{gpu.index}": gpu.energy_j for gpu in gpus if gpu.energy_j is not None} or None,
            power_w={f"gpu{gpu.index}": gpu.power_w for gpu in gpus if gpu.power_w is not None} or None,
            gpu_others_busy_share=max(_known(gpu.others_share for gpu in used), default=None),
            gpu_others=max((gpu.others for gpu in used), default=0) or None,
            gpu_others_bytes=max((gpu.others_bytes for gpu in used), default=0) or None,
        )

    def close(self) -> None:
        """Release the library."""
        if self._handles is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._handles = None

    def _open(self) -> list[Any]:
        if self._handles is None:
            try:
                self._nvml.nvmlInit()
                count = self._nvml.nvmlDeviceGetCount()
                self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(n) for n in range(count)]
            except self._nvml.NVMLError:
                return []
        return self._handles

    def _is_watched(self, handle: Any) -> bool:
        if not self._watched:
            return True
        with suppress(self._nvml.NVMLError):
            return bool(self._watched & {_text(self._nvml.nvmlDeviceGetUUID(handle)), *self._slices(handle)})
        return False

    def _gpu(self, index: int, handle: Any) -> _GpuReading:
        nvml, gpu = self._nvml, _GpuReading(index)
        with suppress(nvml.NVMLError):
            gpu.busy_share = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        with suppress(nvml.NVMLError):
            gpu.energy_j = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3  # mJ since the driver's load
        with suppress(nvml.NVMLError):
            gpu.power_w = nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        with suppress(nvml.NVMLError):
            gpu.temperature_c = float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        with suppress(nvml.NVMLError):
            limit = nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
            if gpu.temperature_c is not None and limit > 0:
                gpu.margin_c = float(limit) - gpu.temperature_c
        with suppress(nvml.NVMLError):
            most = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
            gpu.clock_share = round(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) / most, 4)
        with suppress(nvml.NVMLError):
            bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
            gpu.reasons = [word for bit, word in REASONS.items() if bits & bit]
        self._find_users(gpu, handle)
        return gpu

    def _find_users(self, gpu: _GpuReading, handle: Any) -> None:
        """Set who uses the GPU."""
        held = self._held(handle)
        shares = self._shares(gpu.index, handle)
        pids = set(held or ()) | set(shares or ())
        run_pids = {pid for pid in pids if pid in self._ours or processes.descends(pid, self._own, self._parent)}
        self._ours |= run_pids  # one that has ended cannot be looked up any more, and the window may still have its use
        there = {pid for pid in pids - run_pids if self._parent(pid) is not None}
        if run_pids:
            self._used.add(gpu.index)
        elif (held is not None and not pids and (gpu.busy_share or 0.0) > 0.1) or (pids and not there):
            gpu.hides_pids = True
            return
        gpu.others = len(there)
        gpu.others_bytes = sum(size for pid, size in (held or {}).items() if pid in there)
        if shares is not None:
            gpu.others_share = min(1.0, sum(share for pid, share in shares.items() if pid in there))

    def _held(self, handle: Any) -> dict[int, int] | None:
        """Return the bytes held by each process; None if the driver does not say."""
        nvml = self._nvml
        memory: dict[int, int] | None = None
        for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            with suppress(nvml.NVMLError):
                memory = memory or {}
                for process in ask(handle):
                    memory[process.pid] = max(memory.get(process.pid, 0), process.usedGpuMemory or 0)
        return memory

    def _shares(self, index: int, handle: Any) -> dict[int, float] | None:
        """Return the share of the time that each process kept the SMs busy since the last call, the mean of the
        driver's samples; None if unsupported.

        An empty window is reported as the error "not found".
        """
        nvml = self._nvml
        since = self._seen_us.get(index, int(self._clock() * 1e6) - _LOOK_BACK_US)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since)
        except nvml.NVMLError as error:
            return {} if getattr(error, "value", None) == nvml.NVML_ERROR_NOT_FOUND else None
        by_process: dict[int, list[float]] = {}
        for sample in samples:
            if sample.timeStamp > since and sample.smUtil <= 100:
                by_process.setdefault(sample.pid, []).append(sample.smUtil / 100)
                self._seen_us[index] = max(self._seen_us.get(index, 0), sample.timeStamp)
        return {pid: sum(shares) / len(shares) for pid, shares in by_process.items()}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _known(values: Iterable[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None)


def busy_share(root: Path = Path("/")) -> float | None:
    """Return the use of the only GPU of this machine by all programs; None if unknown, or where there are several:
    which of them a run will use is not known before."""
    if (library_ := library(root)) is None:
        return None
    gpus = Nvml(library_)
    share = gpus.read().gpu_busy_share if gpus.count() == 1 else None
    gpus.close()
    return share
