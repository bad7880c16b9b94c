"""What mpsq records about a machine: what it is, its system, and samples of its sensors.

Facts and samples are stored as JSON. A value of another type, as a bundle of another version may contain, is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, ValidationError, structs, to_builtins

from queue_runner.decoding import convert

S = TypeVar("S", bound=Struct)
Number = Annotated[int, Meta(ge=0, le=1 << 30)]


class AppleGpu(Struct, frozen=True, kw_only=True):
    """The GPU of an Apple chip. Chips of one name have different numbers of cores."""

    cores: Number | None = None
    name: str | None = None

    def __str__(self) -> str:
        cores = f"{self.cores} GPU cores" if self.cores else None
        return " with ".join(filter(None, (self.name, cores)))


class Machine(Struct, frozen=True, kw_only=True):
    """What must be equal for two runs to be comparable, and is unchanged by a reboot. None is unknown."""

    arch: str | None = None
    cores_by_tier: dict[str, int | None] | None = None
    """macOS: cores by the name of their kind, such as Performance"""
    cores_logical: Number | None = None
    cores_physical: Number | None = None
    cpu: str | None = None
    cpu_quota: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    """Linux: the container's limit in cores; None without one"""
    gpus: list[AppleGpu | str] | None = None
    id: str | None = None
    """hash of the system's own id of the machine"""
    memory_gib: Number | None = None
    model: str | None = None
    system: str | None = None

    @property
    def gpu_cores(self) -> int | None:
        """The core count of the (only) GPU of an Apple chip, for its peak; None elsewhere."""
        return next((gpu.cores for gpu in self.gpus or () if isinstance(gpu, AppleGpu) and gpu.cores), None)

    @property
    def memory_bytes(self) -> float | None:
        return None if self.memory_gib is None else self.memory_gib * 2.0**30

    def facts(self) -> dict[str, Any]:
        """Return the values to store, which are hashed: None too, but for what only another system has."""
        return _without(self, "cpu_quota" if self.system == "macOS" else "cores_by_tier")


class System(Struct, frozen=True, kw_only=True):
    """What an update or a setting of the system changes: factors of a comparison. None is unknown."""

    gpu_driver: str | None = None
    """Linux: NVIDIA's"""
    gpu_wired_limit_mib: int | None = None
    """macOS"""
    kernel: str | None = None
    os: str | None = None
    os_version: str | None = None
    rosetta: bool | None = None
    """macOS: whether this Python is an Intel one on Apple silicon"""

    def facts(self) -> dict[str, Any]:
        """Return the values to store, which are hashed."""
        return _without(self, *(["gpu_driver"] if self.os == "macOS" else ["gpu_wired_limit_mib", "rosetta"]))


def _without(record: Struct, *names: str) -> dict[str, Any]:
    return {name: value for name, value in sorted(to_builtins(record).items()) if name not in names}


class SensorSample(Struct, frozen=True, kw_only=True):
    """A sample of the conditions of a run. None is unknown, never 0."""

    at: float = 0.0
    """Unix time"""
    battery_share: float | None = None
    """battery charge, 0 to 1"""
    energy_at: float | None = None
    """Unix time of the counters in energy_j, where it is not the sample's"""
    energy_j: dict[str, float] | None = None
    """joules counted so far, by meter: gpu0 (a board), package-0 (RAPL), cpu, gpu, ane, dram (Apple)"""
    gpu_busy_before: float | None = None
    """utilisation of the only GPU before the run started, so by other programs, 0 to 1"""
    gpu_busy_after: float | None = None
    """utilisation of the GPU right after the run, where processes on it have no names here, 0 to 1"""
    gpu_busy_share: float | None = None
    """utilisation of the busiest GPU by all programs, 0 to 1; of those that the run uses if known"""
    gpu_clock_hz: float | None = None
    gpu_clock_share: float | None = None
    """NVIDIA: clock of the SMs as a share of its highest, 0 to 1"""
    gpu_others: float | None = None
    """NVIDIA: number of foreign processes on the run's GPUs"""
    gpu_others_busy_share: float | None = None
    """NVIDIA, Apple: use of the run's GPUs by foreign processes, 0 to 1"""
    gpu_others_bytes: float | None = None
    """NVIDIA: memory of the run's GPUs held by foreign processes"""
    gpu_pids_hidden: bool | None = None
    """NVIDIA: the processes on a GPU have no names here, as in a container without the host's pids"""
    gpu_slowed_by: list[str] | None = None
    """NVIDIA: reasons for a lower clock (nvidia.REASONS)"""
    gpu_temperature_c: float | None = None
    """temperature of the hottest NVIDIA GPU, degrees Celsius"""
    gpu_thermal_margin_c: float | None = None
    """NVIDIA: degrees below the temperature at which the GPU slows down"""
    gpus_used: list[int] | None = None
    """NVIDIA: numbers of the GPUs on which the run's processes were seen"""
    job_cpu_share: float | None = None
    """the run's processes, share of all processors"""
    load1: float | None = None
    """load average over a minute"""
    low_power: bool | None = None
    memory_available_bytes: float | None = None
    """memory available without swapping"""
    on_battery: bool | None = None
    over_s: float | None = None
    """macOS: this sample has only the use of the GPU, over so many seconds until `at`"""
    others_cpu_share: float | None = None
    """other processes, share of all processors"""
    processors: float | None = None
    """number of logical processors, to which the shares of all processors refer"""
    power_w: dict[str, float] | None = None
    """watts by meter, as energy_j"""
    priority: float | None = None
    """macOS: scheduler priority of the trainer, 31 to 37 unless throttled"""
    source: str | None = None
    """the tool whose imported output this sample is; version 0.1 imported such"""
    steal_share: float | None = None
    """Linux: taken by the hypervisor, share of all processors"""
    swap_in_bytes_per_s: float | None = None
    swap_out_bytes_per_s: float | None = None
    thermal_level: float | None = None
    """macOS: pressure 0 to 4, 0 proves nothing; Linux: 1 after a processor throttled"""

    def __or__(self, other: SensorSample) -> SensorSample:
        """Return this sample with what `other` knows."""
        return structs.replace(self, **other.known())

    def known(self) -> dict[str, Any]:
        """Return the values to store, without the time."""
        values = structs.asdict(self).items()
        return {name: value for name, value in values if value is not None and name != "at"}


def read_machine(text: str | None) -> Machine:
    """Return the stored facts of a machine; all are unknown without a text. Raises: ValueError for no JSON."""
    return known_fields(json.loads(text or "{}"), Machine)


def read_system(text: str | None) -> System:
    """Return the system in the stored facts of a run's software. Raises: ValueError for no JSON."""
    system = json.loads(text or "{}").get("system")
    return known_fields(system if isinstance(system, dict) else {}, System)


def read_samples(rows: Iterable[tuple[float, str]]) -> list[SensorSample]:
    """Return stored samples, given as time and JSON, in the order of their times. Raises: ValueError for no JSON."""
    return [known_fields({**json.loads(text), "at": at}, SensorSample) for at, text in sorted(rows)]


def known_fields(values: Mapping[str, object], kind: type[S]) -> S:
    """Return the record of these values, without those that have another type."""
    try:
        return convert(values, kind)
    except ValidationError:  # rare, so each value is tried alone only then
        return convert({name: value for name, value in values.items() if _fits(name, value, kind)}, kind)


def _fits(name: str, value: object, kind: type[Struct]) -> bool:
    try:
        convert({name: value}, kind)
    except ValidationError:
        return False
    return True
