"""powermetrics and macmon as samples: outputs of the shape that their users have published, written here by hand."""

from __future__ import annotations

import json
import plistlib
from datetime import datetime
from typing import Any

import pytest

from queue_runner.errors import UsageError
from queue_runner.host import conditions
from queue_runner.ingest import timelines

pytestmark = pytest.mark.fast

TEXT = """Machine model: MacBookPro18,2
OS version: 23A344

*** Sampled system activity (Sat Nov 21 11:51:49 2020 +0100) (1006.81ms elapsed) ***

CPU Power: 3021 mW
GPU Power: 24121 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 27142 mW

**** GPU usage ****

GPU HW active frequency: 1296 MHz
GPU HW active residency:  99.52% (389 MHz: .50% 1296 MHz:  99%)
GPU idle residency:   0.48%
GPU Power: 24121 mW

*** Sampled system activity (Sat Nov 21 11:51:50 2020 +0100) (1003.00ms elapsed) ***

CPU Power: 40 mW
GPU Power: 9 mW
"""
AT = datetime.fromisoformat("2020-11-21T11:51:49+01:00").timestamp()


def plist(second: int, **changes: Any) -> bytes:
    told = {
        "is_delta": True,
        "elapsed_ns": 500_000_000,
        "timestamp": datetime(2020, 11, 21, 10, 51, second),
        "processor": {"cpu_power": 3021.0, "gpu_power": 24121.0, "ane_power": 0.0, "combined_power": 27142.0},
        "gpu": {"freq_hz": 1296.0, "idle_ratio": 0.01, "gpu_energy": 12060},
        **changes,
    }
    return plistlib.dumps(told)


def test_powermetrics_text() -> None:
    (at, first), (_, second) = timelines.read("powermetrics", TEXT.encode())
    assert at == AT
    assert first == {
        "source": "powermetrics",
        "gpu_busy_share": pytest.approx(0.9952),
        "gpu_clock_hz": 1.296e9,
        "power_w": {"cpu": 3.021, "gpu": 24.121, "ane": 0.0},
    }
    assert second == {"source": "powermetrics", "power_w": {"cpu": 0.04, "gpu": 0.009}}
    assert set(first) <= set(conditions.KEYS)


def test_powermetrics_property_lists() -> None:
    """Separated by NUL, two in the same second, and the last cut off, as ^C leaves it."""
    data = b"\0".join([plist(49), plist(49), plist(50), plist(51)[:300]])
    found = timelines.read("powermetrics", data)
    assert [at - AT for at, _ in found] == [0.0, 0.5, 1.0]
    assert found[0][1] == {
        "source": "powermetrics",
        "gpu_busy_share": pytest.approx(0.99),
        "gpu_clock_hz": 1.296e9,
        "power_w": {"gpu": 24.121, "cpu": 3.021, "ane": 0.0},
    }


def test_older_property_lists_have_energies() -> None:
    """As asitop reads them: millijoules of the sample."""
    (_, found), *_ = timelines.read("powermetrics", plist(49, processor={"cpu_energy": 1500, "ane_energy": 0}))
    assert found["power_w"] == {"gpu": 24.12, "cpu": 3.0, "ane": 0.0}


def test_macmon() -> None:
    line = {
        "timestamp": "2020-11-21T11:51:49.5+01:00",
        "temp": {"cpu_temp_avg": 61.0, "gpu_temp_avg": 57.5},
        "gpu_freq_mhz": 1296,
        "gpu_scaled_ratio": 0.97,
        "gpu_active_ratio": 0.99,
        "cpu_power": 3.0,
        "gpu_power": 24.0,
        "ane_power": 0.0,
        "all_power": 27.0,
    }
    older = {"timestamp": "2020-11-21T10:51:50.5+00:00", "gpu_usage": [1296, 0.98], "gpu_power": 23.0, "ane_power": 0.0}
    (at, new), (_, old) = timelines.read("macmon", f'{json.dumps(line)}\n{json.dumps(older)}\n{{"timest'.encode())
    assert at == AT + 0.5
    assert new == {
        "source": "macmon",
        "gpu_busy_share": 0.99,
        "gpu_clock_hz": 1.296e9,
        "gpu_temperature_c": 57.5,
        "power_w": {"gpu": 24.0, "cpu": 3.0, "ane": 0.0},
    }
    assert old["gpu_busy_share"] == 0.98 and old["power_w"] == {"gpu": 23.0, "ane": 0.0}


@pytest.mark.parametrize("tool", timelines.names())
@pytest.mark.parametrize(
    "data", [b"", b"iter 1: loss 2.0\n", b"<plist></plist>\0<plist>", b"\xff\xfe", b"[1]\n3\nnull\n"]
)
def test_what_is_not_of_the_tool_is_refused(tool: str, data: bytes) -> None:
    with pytest.raises(UsageError, match="no output"):
        timelines.read(tool, data)


LINE = {"timestamp": "2020-11-21T11:51:49.5+01:00", "gpu_freq_mhz": 1296, "gpu_active_ratio": 0.99, "gpu_power": 24.0}


@pytest.mark.parametrize(
    "broken",
    [
        TEXT.replace("(1006.81ms", "(1.0.0ms"),
        TEXT.replace("99.52%", "9.9.52%"),
        TEXT.replace("3021 mW", f"{'9' * 5000} mW"),
        TEXT.replace("1296 MHz", f"{'9' * 400} MHz"),
    ],
)
def test_a_broken_sample_of_text_is_left_out(broken: str) -> None:
    ((_, found),) = timelines.read("powermetrics", broken.encode())
    assert found["power_w"] == {"cpu": 0.04, "gpu": 0.009}


def test_broken_values_of_property_lists_are_left_out() -> None:
    strange = plist(50, processor={"gpu_power": float("nan"), "cpu_power": 1e3}, gpu={"idle_ratio": 7.0})
    ((_, found),) = timelines.read("powermetrics", plist(49, elapsed_ns="x") + b"\0" + strange)
    assert found == {"source": "powermetrics", "power_w": {"cpu": 1.0}}


@pytest.mark.parametrize("name", ["gpu_freq_mhz", "gpu_active_ratio", "gpu_power"])
@pytest.mark.parametrize("value", ["x", [1], {"a": 1}, True, float("nan"), -1, 1e999])
def test_broken_values_of_macmon_are_left_out(name: str, value: object) -> None:
    """Each alone, or with its line."""
    lines = [json.dumps({**LINE, name: value}), "[" * 100_000, json.dumps(LINE)]
    *rest, (_, whole) = timelines.read("macmon", "\n".join(lines).encode())
    expected = {"source": "macmon", "gpu_clock_hz": 1.296e9, "gpu_busy_share": 0.99, "power_w": {"gpu": 24.0}}
    assert whole == expected and all(found.items() <= expected.items() for _, found in rest)


def test_a_tool_that_nobody_knows() -> None:
    with pytest.raises(UsageError, match="unknown tool"):
        timelines.read("powermetric", b"")
