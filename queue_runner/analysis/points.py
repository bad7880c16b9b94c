"""The points of a run as they are stored: iterations, evaluations, borders of phases, samples of the machine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, ValidationError, convert


class IterationPoint(NamedTuple):
    """An iteration; `phase` is an index into model.PHASES, `synced` 0, 1 or model.SYNC_UNKNOWN."""

    i: int
    dur_s: float
    loss: float | None
    phase: int
    synced: int
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None


class EvalPoint(NamedTuple):
    i: int
    split: str
    metric: str
    value: float | None


class PhaseMark(NamedTuple):
    """A border of a phase, in seconds since the start of the run; `edge` is "begin" or "end"."""

    t_s: float
    name: str
    edge: str


class SensorSample(Struct, frozen=True, kw_only=True):
    """A sample of the conditions of a run. None is unknown, never 0."""

    at: float = 0.0
    """Unix time"""
    battery_share: float | None = None
    """battery charge, 0 to 1"""
    cpu_pressure_share: float | None = None
    """Linux: share of the time in which some task, the run's too, waited for a processor (PSI)"""
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


def read_samples(rows: Iterable[tuple[float, str]]) -> list[SensorSample]:
    """Return stored samples, given as time and JSON, in the order of their times.

    A value of another type, as a bundle of another version may contain, is unknown. Raises: ValueError for no JSON.
    """
    return [_sample({**json.loads(text), "at": at}) for at, text in sorted(rows)]


def _sample(values: dict[str, object]) -> SensorSample:
    try:
        return convert(values, SensorSample)
    except ValidationError:  # rare, so each value is tried alone only then
        return convert({name: value for name, value in values.items() if _fits(name, value)}, SensorSample)


def _fits(name: str, value: object) -> bool:
    try:
        convert({name: value}, SensorSample)
    except ValidationError:
        return False
    return True
