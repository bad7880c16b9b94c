"""Power and heat: battery or mains, low power mode, throttling. Unknown values are None.

Sources: pmset(1) and notifyutil(1) on macOS (samples in docs/macos.md), files in /sys on Linux.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from queue_runner.host.filesystem import read_text

_SUPPLIES = "sys/class/power_supply"
_CPUS = "sys/devices/system/cpu"
_MAX_CORES_WATCHED = 32
"""Limit of cores read: they share heat, and reading every core of a large machine would take milliseconds."""


class Power(Struct, frozen=True):
    """The power source. `battery_share` is a fraction of 1."""

    on_battery: bool | None = None
    battery_share: float | None = None
    low_power: bool | None = None


# -- macOS ----------------------------------------------------------------------------------------------------------


def parse_battery(text: str | None) -> Power:
    """Parse `pmset -g batt`. A desktop prints the first line only."""
    text = text or ""
    source = re.search(r"Now drawing from '([^']+)'", text)
    charge = re.search(r"-InternalBattery-\d+.*?(\d{1,3})%;", text)
    known = {"AC Power": False, "Battery Power": True, "UPS Power": True}
    return Power(
        on_battery=known.get(source[1]) if source else None,
        battery_share=int(charge[1]) / 100 if charge else None,
    )


def parse_low_power(text: str | None) -> bool | None:
    """Parse `pmset -g`: `lowpowermode 0|1` on older Macs, `powermode 0|1|2` (1 is low) on newer; both, or neither."""
    modes = re.findall(r"^\s*(lowpowermode|powermode)\s+(\d+)\b", text or "", re.MULTILINE)
    return any(value == "1" for _, value in modes) if modes else None


def parse_pressure(text: str | None) -> int | None:
    """Parse `notifyutil -g com.apple.system.thermalpressurelevel`: 0 nominal, 1 moderate, 2 heavy, 3 trapping,
    4 sleeping."""
    match = re.search(r"thermalpressurelevel\s+(\d)\s*$", text or "")
    return int(match[1]) if match else None


# -- Linux ----------------------------------------------------------------------------------------------------------


def linux_power(root: Path = Path("/")) -> Power:
    """Read /sys/class/power_supply, ignoring batteries of peripherals such as a mouse (scope Device)."""
    profile = _read(root / "sys/firmware/acpi/platform_profile")
    low = profile == "low-power" if profile else None
    mains: list[bool] = []
    batteries: list[tuple[str, str]] = []
    try:
        supplies = sorted((root / _SUPPLIES).iterdir())
    except OSError:
        return Power(low_power=low)
    for supply in supplies:
        kind = _read(supply / "type")
        if kind in ("Mains", "USB"):
            mains.append(_read(supply / "online") == "1")
        elif kind == "Battery" and _read(supply / "scope") != "Device":
            batteries.append((_read(supply / "status"), _read(supply / "capacity")))
    shares = [int(capacity) / 100 for _, capacity in batteries if capacity.isdecimal()]
    on_battery = False if mains else None  # only a mains supply that reports "off" does not prove a battery
    if batteries and not any(mains):
        on_battery = any(status == "Discharging" for status, _ in batteries)
    return Power(on_battery, sum(shares) / len(shares) if shares else None, low)


class ThrottleCounters:
    """Linux's thermal throttling counters (Intel only). `level` is 1 when one has risen."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = _throttle_files(root)
        self._last = self._read()

    def level(self) -> int | None:
        """Return 0 or 1 since the last call; None without counters."""
        if not self._files:
            return None
        before, self._last = self._last, self._read()
        return int(any(now > then for now, then in zip(self._last, before, strict=True)))

    def _read(self) -> list[int]:
        texts = (_read(path) for path in self._files)
        return [int(text) if text.isdecimal() else 0 for text in texts]


def _throttle_files(root: Path) -> list[Path]:
    """Return one counter per package, and one for each of the first cores."""
    packages: dict[str, Path] = {}
    cores = []
    folders = (root / _CPUS).glob("cpu[0-9]*/thermal_throttle")
    for folder in sorted(folders, key=lambda path: int(path.parent.name.removeprefix("cpu"))):
        package = _read(folder.parent / "topology" / "physical_package_id")
        if (count := folder / "package_throttle_count").exists():
            packages.setdefault(package, count)
        cores.append(folder / "core_throttle_count")
    return [*packages.values(), *(path for path in cores[:_MAX_CORES_WATCHED] if path.exists())]


def _read(path: Path) -> str:
    return read_text(path).strip()
