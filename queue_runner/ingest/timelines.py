"""Output of tools that watch a Mac's chip, as samples of the conditions: powermetrics (root's) and macmon.

asitop runs powermetrics and leaves its property lists in /tmp/asitop_powermetrics*: they are read as powermetrics'.
Power is the chip's model, not a meter (powermetrics(1): "estimated and may be inaccurate").
"""

from __future__ import annotations

import json
import math
import plistlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from xml.parsers.expat import ExpatError

from queue_runner.errors import UsageError, did_you_mean

Sample = tuple[float, dict[str, Any]]
"""Unix time, and values of host.conditions.KEYS."""
_PARTS = ("gpu", "cpu", "ane")
_TEXT_BEGIN = re.compile(rb"^\*\*\* Sampled system activity ", re.MULTILINE)
_TEXT_HEADING = re.compile(r"\*\*\* Sampled system activity \((.+?)\) \(([\d.]+)ms elapsed\) \*\*\*$", re.MULTILINE)
_TEXT_POWER = re.compile(r"^(CPU|GPU|ANE) Power: (\d+) mW", re.MULTILINE)
_TEXT_ACTIVE = re.compile(r"^GPU (?:HW )?active residency:\s*([\d.]+)%", re.MULTILINE)
_TEXT_CLOCK = re.compile(r"^GPU (?:HW )?active frequency:\s*(\d+) MHz", re.MULTILINE)


def names() -> list[str]:
    """Return the names of the tools."""
    return sorted(_TOOLS)


def read(tool: str, data: bytes) -> list[Sample]:
    """Return the samples of a tool's output, `source` included, in order of time; a truncated last one is left out.

    Times that repeat, as those of several samples within the second that powermetrics names, are moved on by the
    sample's length. Raises: UsageError (no such tool, or nothing of it in the data).
    """
    if tool not in _TOOLS:
        raise UsageError(f'unknown tool "{tool}"', did_you_mean(tool, names(), f"they are {', '.join(names())}"))
    parts, of_part = _TOOLS[tool]
    found: list[Sample] = []
    for part in parts(data):
        try:
            at, elapsed_s, values = of_part(part)
            power = _numbers(values.pop("power_w"))
            known = _numbers(values) | ({"power_w": power} if power else {})
        except _WRONG:
            continue  # the last one of an interrupted log, or none of the tool's
        if found and at <= found[-1][0]:
            at = found[-1][0] + max(elapsed_s, 1e-3)
        found.append((at, {"source": tool, **known}))
    if not found:
        raise UsageError(f"there is no output of {tool} in it", "docs/macos.md has the commands that write it")
    return found


_Raw = tuple[float, float, dict[str, Any]]
"""Unix time, length in seconds, values."""
_WRONG = (
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),
    *(ExpatError, plistlib.InvalidFileException),
)
"""Errors of a part that is not what the tool writes."""


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: number for name, one in values.items() if (number := _number(one)) is not None}


def _number(value: Any) -> float | None:
    """Return a finite number of 0 or more, None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < math.inf else None


def _parts_of_powermetrics(data: bytes) -> Iterator[bytes]:
    if b"<plist" in data[:4096]:
        return filter(None, map(bytes.strip, data.split(b"\0")))
    data = data.replace(b"\r", b"")
    begins = [begin.start() for begin in _TEXT_BEGIN.finditer(data)]
    return (data[begin:end] for begin, end in pairwise([*begins, len(data)]))


def _of_powermetrics(part: bytes) -> _Raw:
    if b"<plist" in part[:4096]:
        return _of_plist(plistlib.loads(part))
    text = part.decode("utf-8", "replace")
    heading = _TEXT_HEADING.match(text)
    if heading is None:
        raise ValueError("no sample of powermetrics")
    at = datetime.strptime(heading[1], "%a %b %d %H:%M:%S %Y %z").timestamp()
    active, clock = _TEXT_ACTIVE.search(text), _TEXT_CLOCK.search(text)
    values = {
        "gpu_busy_share": float(active[1]) / 100 if active else None,
        "gpu_clock_hz": int(clock[1]) * 1e6 if clock else None,
        "power_w": {name.lower(): int(milliwatts) / 1e3 for name, milliwatts in _TEXT_POWER.findall(text)},
    }
    return at, float(heading[2]) / 1e3, values


def _of_plist(told: Mapping[str, Any]) -> _Raw:
    """Read one property list. Its freq_hz of the GPU is in MHz; older ones have energies in mJ instead of powers."""
    elapsed_s = told["elapsed_ns"] / 1e9
    chip, gpu = told.get("processor", {}), told.get("gpu", {})
    power = {}
    for part in _PARTS:
        if f"{part}_power" in chip:
            power[part] = chip[f"{part}_power"] / 1e3
        elif (millijoules := chip.get(f"{part}_energy", gpu.get(f"{part}_energy"))) is not None and elapsed_s > 0:
            power[part] = millijoules / 1e3 / elapsed_s
    clock = gpu.get("freq_hz")
    values = {
        "gpu_busy_share": 1 - gpu["idle_ratio"] if "idle_ratio" in gpu else None,
        "gpu_clock_hz": None if clock is None else float(clock) * (1e6 if clock < 1e5 else 1),
        "power_w": power,
    }
    return told["timestamp"].replace(tzinfo=UTC).timestamp(), elapsed_s, values


def _of_macmon(line: bytes) -> _Raw:
    """Read a line of `macmon pipe`. Before its version 0.8 or so, gpu_usage was a pair: MHz and share."""
    told = json.loads(line.decode("utf-8", "replace"))
    clock, active = told.get("gpu_usage") or (told.get("gpu_freq_mhz"), told.get("gpu_active_ratio"))
    values = {
        "gpu_busy_share": active,
        "gpu_clock_hz": None if (mhz := _number(clock)) is None else mhz * 1e6,
        "gpu_temperature_c": (told.get("temp") or {}).get("gpu_temp_avg"),
        "power_w": {part: told[f"{part}_power"] for part in _PARTS if f"{part}_power" in told},
    }
    return datetime.fromisoformat(told["timestamp"]).timestamp(), 1e-3, values


_TOOLS: Mapping[str, tuple[Callable[[bytes], Iterable[bytes]], Callable[[bytes], _Raw]]] = {
    "macmon": (bytes.splitlines, _of_macmon),
    "powermetrics": (_parts_of_powermetrics, _of_powermetrics),
}
"""What splits the output of each tool into samples, and what reads one."""
