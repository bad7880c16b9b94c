"""Output of tools that watch a Mac's chip, as samples of the conditions: powermetrics (root's) and macmon.

asitop runs powermetrics and leaves its property lists in /tmp/asitop_powermetrics*: they are read as powermetrics'.
Power is the chip's model, not a meter (powermetrics(1): "estimated and may be inaccurate").
"""

from __future__ import annotations

import json
import plistlib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from xml.parsers.expat import ExpatError

from queue_runner.errors import UsageError, did_you_mean

Sample = tuple[float, dict[str, Any]]
"""Unix time, and values of host.conditions.KEYS."""
_PARTS = ("gpu", "cpu", "ane")
_TEXT_BEGIN = re.compile(r"^\*\*\* Sampled system activity \((.+?)\) \(([\d.]+)ms elapsed\) \*\*\*$", re.MULTILINE)
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
    found: list[Sample] = []
    for at, elapsed_s, values in _TOOLS[tool](data):
        if found and at <= found[-1][0]:
            at = found[-1][0] + max(elapsed_s, 1e-3)
        known = {name: value for name, value in values.items() if value not in (None, {})}
        found.append((at, {"source": tool, **known}))
    if not found:
        raise UsageError(f"there is no output of {tool} in it", "docs/macos.md has the commands that write it")
    return found


_Raw = tuple[float, float, dict[str, Any]]
"""Unix time, length in seconds, values."""


def _powermetrics(data: bytes) -> Iterator[_Raw]:
    if b"<plist" in data[:4096]:
        for part in data.split(b"\0"):
            if part.strip():
                try:
                    yield _of_plist(plistlib.loads(part.strip()))
                except (ExpatError, plistlib.InvalidFileException, ValueError, KeyError, TypeError, AttributeError):
                    continue  # the last one of an interrupted log, or none of ours
        return
    text = data.decode("utf-8", "replace").replace("\r", "")
    begins = [*_TEXT_BEGIN.finditer(text)]
    for n, begin in enumerate(begins):
        body = text[begin.end() : begins[n + 1].start() if n + 1 < len(begins) else len(text)]
        power = {name.lower(): int(milliwatts) / 1e3 for name, milliwatts in _TEXT_POWER.findall(body)}
        active, clock = _TEXT_ACTIVE.search(body), _TEXT_CLOCK.search(body)
        try:
            at = datetime.strptime(begin[1], "%a %b %d %H:%M:%S %Y %z").timestamp()
        except ValueError:
            continue
        values = {
            "gpu_busy_share": float(active[1]) / 100 if active else None,
            "gpu_clock_hz": int(clock[1]) * 1e6 if clock else None,
            "power_w": power,
        }
        yield at, float(begin[2]) / 1e3, values


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


def _macmon(data: bytes) -> Iterator[_Raw]:
    """Read lines of `macmon pipe`. Before its version 0.8 or so, gpu_usage was a pair: MHz and share."""
    for line in data.decode("utf-8", "replace").splitlines():
        try:
            told = json.loads(line)
            at = datetime.fromisoformat(told["timestamp"]).timestamp()
            clock, active = told.get("gpu_usage") or (told.get("gpu_freq_mhz"), told.get("gpu_active_ratio"))
            values = {
                "gpu_busy_share": active,
                "gpu_clock_hz": None if clock is None else clock * 1e6,
                "gpu_temperature_c": (told.get("temp") or {}).get("gpu_temp_avg"),
                "power_w": {part: told[f"{part}_power"] for part in _PARTS if f"{part}_power" in told},
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        yield at, 1e-3, values


_TOOLS: Mapping[str, Callable[[bytes], Iterator[_Raw]]] = {"macmon": _macmon, "powermetrics": _powermetrics}
