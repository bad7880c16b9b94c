"""Rules of the gate: what keeps a machine from being quiet enough for a measurement to start.

A reading is what is known of the machine now; a missing key is unknown and keeps nothing from starting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queue_runner import units
from queue_runner.config import Config


@dataclass(frozen=True)
class Disturbance:
    """One thing that disturbs. `lasting`: it goes away when a user acts, not by itself."""

    kind: str
    text: str
    lasting: bool = False


def disturbances(reading: Mapping[str, Any], limits: Config, *, gpu: bool) -> list[Disturbance]:
    """Return what disturbs a start by `reading` (keys of host.conditions); `gpu` if the run may use one."""
    return [
        Disturbance(kind, text, kind in ("battery", "low_power", "memory"))
        for kind, text in (*_machine(reading, limits), *(_gpu(reading, limits) if gpu else ()))
    ]


def _machine(reading: Mapping[str, Any], limits: Config) -> list[tuple[str, str]]:
    found = []
    if (share := reading.get("others_cpu_share")) is not None and share > limits.gate_cpu_share:
        at_most = f"at most {units.percent(limits.gate_cpu_share)}, gate_cpu_share"
        found.append(("cpu", f"other programs use {units.percent(share)} of the processors ({at_most})"))
    if (level := reading.get("thermal_level")) is not None and level > 0:
        found.append(("heat", f"thermal pressure is at level {level:.0f}"))
    if limits.gate_battery and reading.get("on_battery"):
        found.append(("battery", "the machine runs on battery (gate_battery)"))
    if limits.gate_battery and reading.get("low_power"):
        found.append(("low_power", "low power mode is on (gate_battery)"))
    if (free := reading.get("memory_available_bytes")) is not None and free < limits.gate_memory_bytes:
        at_least = f"at least {units.size(limits.gate_memory_bytes)}, gate_memory_bytes"
        found.append(("memory", f"only {units.size(free)} of memory are available ({at_least})"))
    return found


def _gpu(reading: Mapping[str, Any], limits: Config) -> list[tuple[str, str]]:
    found = []
    if (share := reading.get("gpu_busy_share")) is not None and share > limits.gate_gpu_share:
        at_most = f"at most {units.percent(limits.gate_gpu_share)}, gate_gpu_share"
        found.append(("gpu", f"other programs keep the GPU {units.percent(share)} busy ({at_most})"))
    heat, most = reading.get("gpu_temperature_c"), limits.gate_gpu_temperature_c
    if heat is not None and heat > most:
        found.append(("gpu_heat", f"the GPU has {heat:.0f} degrees C (at most {most:.0f}, gate_gpu_temperature_c)"))
    return found
