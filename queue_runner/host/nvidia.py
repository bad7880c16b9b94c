"""NVIDIA GPUs through NVML (nvidia-ml-py, the extra `nvidia`): use, by whom, heat, clocks, power and energy.

NVML API reference: https://docs.nvidia.com/deploy/nvml-api/. Every value is optional: a GPU, a driver or a sandbox that
does not answer a question leaves its key out. Nothing here changes a setting of the GPU.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from queue_runner.host import processes

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


def library(root: Path = Path("/")) -> Any:
    """Return the module pynvml, None where there is no NVIDIA driver or no nvidia-ml-py."""
    if not any((root / name).exists() for name in _DEVICES):
        return None
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def is_missing(root: Path = Path("/")) -> bool:
    """Return whether there is an NVIDIA driver, and no nvidia-ml-py to ask it."""
    return any((root / name).exists() for name in _DEVICES) and library(root) is None


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

    def read(self) -> dict[str, Any]:
        """Return the values of a sample that NVML knows; {} where it answers nothing.

        It takes milliseconds. The first call takes up to a second where the driver was not loaded."""
        gpus = [self._gpu(n, handle) for n, handle in enumerate(self._open()) if self._is_watched(handle)]
        if not gpus:
            return {}
        used = [gpu for gpu in gpus if gpu["index"] in self._used]
        watched = used or gpus
        readings: dict[str, Any] = {
            "gpu_busy_share": _highest(watched, "busy"),
            "gpu_temperature_c": _highest(watched, "heat_c"),
            "gpu_clock_share": _lowest(watched, "clock_share"),
            "gpu_thermal_margin_c": _lowest(watched, "margin_c"),
            "gpu_slowed_by": sorted({reason for gpu in watched for reason in gpu.get("reasons", ())}) or None,
            "gpus_used": sorted(self._used) or None,
            "gpu_pids_hidden": True if any(gpu.get("hidden") for gpu in gpus) else None,
            "energy_j": {f"gpu{gpu['index']}": gpu["energy_j"] for gpu in gpus if "energy_j" in gpu} or None,
            "power_w": {f"gpu{gpu['index']}": gpu["power_w"] for gpu in gpus if "power_w" in gpu} or None,
        }
        if used:
            readings["gpu_others_busy_share"] = _highest(used, "others_share")
            readings["gpu_others"] = max(gpu.get("others", 0) for gpu in used) or None
            readings["gpu_others_bytes"] = max(gpu.get("others_bytes", 0) for gpu in used) or None
        return {name: value for name, value in readings.items() if value is not None}

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

    def _gpu(self, index: int, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        reading: dict[str, Any] = {"index": index}
        with suppress(nvml.NVMLError):
            reading["busy"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        with suppress(nvml.NVMLError):
            reading["energy_j"] = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3  # mJ since the driver's load
        with suppress(nvml.NVMLError):
            reading["power_w"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        with suppress(nvml.NVMLError):
            reading["heat_c"] = float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        with suppress(nvml.NVMLError):
            limit = nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
            if "heat_c" in reading and limit > 0:
                reading["margin_c"] = float(limit) - reading["heat_c"]
        with suppress(nvml.NVMLError):
            most = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
            reading["clock_share"] = round(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) / most, 4)
        with suppress(nvml.NVMLError):
            bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
            reading["reasons"] = [word for bit, word in REASONS.items() if bits & bit]
        return reading | self._users(index, handle, reading.get("busy", 0.0))

    def _users(self, index: int, handle: Any, busy: float) -> dict[str, Any]:
        """Return who uses the GPU. `hidden`: its processes have no names here, as in a container without the host's
        pids, so that the run's use cannot be distinguished from others'."""
        held = self._held(handle)
        shares = self._shares(index, handle)
        pids = set(held or ()) | set(shares or ())
        run_pids = {pid for pid in pids if pid in self._ours or processes.descends(pid, self._own, self._parent)}
        self._ours |= run_pids  # one that has ended cannot be looked up any more, and the window may still have its use
        there = {pid for pid in pids - run_pids if self._parent(pid) is not None}
        if run_pids:
            self._used.add(index)
        elif (held is not None and not pids and busy > 0.1) or (pids and not there):
            return {"hidden": True}
        others: dict[str, Any] = {
            "others": len(there),
            "others_bytes": sum(size for pid, size in (held or {}).items() if pid in there),
        }
        if shares is not None:
            others["others_share"] = min(1.0, sum(share for pid, share in shares.items() if pid in there))
        return others

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


def _highest(gpus: Iterable[dict[str, Any]], key: str) -> float | None:
    return max((gpu[key] for gpu in gpus if key in gpu), default=None)


def _lowest(gpus: Iterable[dict[str, Any]], key: str) -> float | None:
    return min((gpu[key] for gpu in gpus if key in gpu), default=None)


def busy_share(root: Path = Path("/")) -> float | None:
    """Return the use of the only GPU of this machine by all programs; None if unknown, or where there are several:
    which of them a run will use is not known before."""
    if (library_ := library(root)) is None:
        return None
    gpus = Nvml(library_)
    readings = gpus.read() if gpus.count() == 1 else {}
    gpus.close()
    return readings.get("gpu_busy_share")
