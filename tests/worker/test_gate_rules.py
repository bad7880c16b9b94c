"""The reasons that keep a run waiting, by sample and threshold; an unknown value is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from queue_runner.config_file import Config
from queue_runner.machine_records import SensorSample
from queue_runner.worker.gate import disturbances

QUIET = SensorSample(
    others_cpu_share=0.1,
    gpu_busy_share=0.1,
    gpu_temperature_c=80.0,
    thermal_level=0,
    on_battery=False,
    low_power=False,
    memory_available_bytes=2**30,
)


@pytest.mark.parametrize(
    ("noise", "kind", "lasting"),
    [
        ({"others_cpu_share": 0.11}, "cpu", False),
        ({"gpu_busy_share": 0.11}, "gpu", False),
        ({"gpu_temperature_c": 81.0}, "gpu_heat", False),
        ({"thermal_level": 1}, "heat", False),
        ({"on_battery": True}, "battery", True),
        ({"low_power": True}, "low_power", True),
        ({"memory_available_bytes": 2**30 - 1}, "memory", True),
    ],
)
def test_each_threshold(noise: dict[str, Any], kind: str, lasting: bool) -> None:
    assert disturbances(QUIET, Config(), gpu=True) == []
    (reason,) = disturbances(changed(QUIET, **noise), Config(), gpu=True)
    assert (reason.kind, reason.lasting) == (kind, lasting)
    assert bool(disturbances(changed(QUIET, **noise), Config(), gpu=False)) == (not kind.startswith("gpu"))


def test_unknown_is_quiet() -> None:
    assert disturbances(SensorSample(), Config(), gpu=True) == []


def test_a_battery_can_be_allowed() -> None:
    on = SensorSample(on_battery=True, low_power=True)
    assert disturbances(on, replace(Config(), gate_battery=False), gpu=True) == []
