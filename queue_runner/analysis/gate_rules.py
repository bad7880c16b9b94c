"""Rules of the gate: when the machine is not quiet enough for a measurement to start."""

from __future__ import annotations

from dataclasses import dataclass

from queue_runner import units
from queue_runner.analysis.points import SensorSample
from queue_runner.config_file import Config


@dataclass(frozen=True)
class Disturbance:
    """One thing that disturbs. `lasting`: it goes away when a user acts, not by itself."""

    kind: str
    text: str
    lasting: bool = False


def disturbances(now: SensorSample, limits: Config, *, gpu: bool) -> list[Disturbance]:
    """Return the reasons not to start; an unknown value is none. `gpu` if the run may use one."""
    reasons = []
    if (share := now.others_cpu_share) is not None and share > limits.gate_cpu_share:
        at_most = f"at most {units.percent(limits.gate_cpu_share)}, gate_cpu_share"
        reasons.append(Disturbance("cpu", f"other programs use {units.percent(share)} of the processors ({at_most})"))
    if now.thermal_level is not None and now.thermal_level > 0:
        reasons.append(Disturbance("heat", f"thermal pressure is at level {now.thermal_level:.0f}"))
    if limits.gate_battery and now.on_battery:
        reasons.append(Disturbance("battery", "the machine runs on battery (gate_battery)", lasting=True))
    if limits.gate_battery and now.low_power:
        reasons.append(Disturbance("low_power", "low power mode is on (gate_battery)", lasting=True))
    if (free := now.memory_available_bytes) is not None and free < limits.gate_memory_bytes:
        at_least = f"at least {units.size(limits.gate_memory_bytes)}, gate_memory_bytes"
        text = f"only {units.size(free)} of memory are available ({at_least})"
        reasons.append(Disturbance("memory", text, lasting=True))
    if gpu and (share := now.gpu_busy_share) is not None and share > limits.gate_gpu_share:
        at_most = f"at most {units.percent(limits.gate_gpu_share)}, gate_gpu_share"
        reasons.append(Disturbance("gpu", f"other programs keep the GPU {units.percent(share)} busy ({at_most})"))
    heat, most = now.gpu_temperature_c, limits.gate_gpu_temperature_c
    if gpu and heat is not None and heat > most:
        text = f"the GPU has {heat:.0f} degrees C (at most {most:.0f}, gate_gpu_temperature_c)"
        reasons.append(Disturbance("gpu_heat", text))
    return reasons
