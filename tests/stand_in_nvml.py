"""A stand-in for the module pynvml and the GPU behind it: scripted answers, and errors as the library raises them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class Gpu:
    """Settings of one GPU. A value of None is not supported, as on some GPUs and in sandboxes."""

    busy_percent: int | None = 97
    energy_mj: int | None = 1_000_000
    power_mw: int | None = 500_000
    heat_c: int | None = 60
    slowdown_c: int | None = 90
    sm_mhz: int | None = 1980
    max_sm_mhz: int = 1980
    reasons: int | None = 0
    held: dict[int, int] | None = field(default_factory=dict)
    used_percent: dict[int, int] | None = field(default_factory=dict)
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    place: str = "00000000:01:00.0"
    slices: tuple[str, ...] = ()


class StandInNvml:
    """What nvidia.Nvml takes for the module pynvml."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND = 3, 6
    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus
        self.now_us = 10**15
        self.opened = 0

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self.gpus[index]

    def _given(self, value: Any) -> Any:
        if value is None:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return value

    def nvmlDeviceGetUUID(self, gpu: Gpu | str) -> str:
        return gpu if isinstance(gpu, str) else gpu.uuid

    def nvmlDeviceGetPciInfo(self, gpu: Gpu) -> SimpleNamespace:
        return SimpleNamespace(busId=gpu.place)

    def nvmlDeviceGetMigMode(self, gpu: Gpu) -> list[int]:
        return [int(bool(gpu.slices))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: Gpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, number: int) -> str:
        if number >= len(gpu.slices):
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return gpu.slices[number]

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._given(gpu.busy_percent))

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: Gpu) -> Any:
        return self._given(gpu.energy_mj)

    def nvmlDeviceGetPowerUsage(self, gpu: Gpu) -> Any:
        return self._given(gpu.power_mw)

    def nvmlDeviceGetTemperature(self, gpu: Gpu, sensor: int) -> Any:
        return self._given(gpu.heat_c)

    def nvmlDeviceGetTemperatureThreshold(self, gpu: Gpu, threshold: int) -> Any:
        return self._given(gpu.slowdown_c)

    def nvmlDeviceGetMaxClockInfo(self, gpu: Gpu, clock: int) -> int:
        return gpu.max_sm_mhz

    def nvmlDeviceGetClockInfo(self, gpu: Gpu, clock: int) -> Any:
        return self._given(gpu.sm_mhz)

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: Gpu) -> Any:
        return self._given(gpu.reasons)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self._given(gpu.held).items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: Gpu) -> list[SimpleNamespace]:
        self._given(gpu.held)
        return []

    def nvmlDeviceGetProcessUtilization(self, gpu: Gpu, since_us: int) -> list[SimpleNamespace]:
        used = self._given(gpu.used_percent)
        if not used:
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return [SimpleNamespace(pid=pid, smUtil=percent, timeStamp=self.now_us) for pid, percent in used.items()]
