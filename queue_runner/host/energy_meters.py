"""Energy counters of processors: RAPL on Linux, on a Mac IOReport through zeus-apple-silicon (the extra `energy`).

Both are models of the manufacturer, not meters. RAPL counts whole packages, whoever computes there; since Linux 5.10
its files are root's alone (CVE-2020-8694), and unreadable is unknown.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from queue_runner.host.filesystem import read_text

_POWERCAP = "sys/class/powercap"


class Rapl:
    """The package domains below /sys/class/powercap (Linux: Documentation/power/powercap/powercap.rst).

    A counter that is lower than before has wrapped around at max_energy_range_uj, once: 262 kJ at 300 W take 15
    minutes, and samples are closer.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.folders = [
            folder
            for folder in sorted((root / _POWERCAP).glob("intel-rapl:*"))
            if re.fullmatch(r"intel-rapl:\d+", folder.name) and read_text(folder / "name").startswith("package")
        ]
        self._last: dict[str, int] = {}
        self._total_uj: dict[str, int] = {}

    def read(self) -> dict[str, float]:
        """Return joules by package (`package-0`) since the first reading; without those that cannot be read."""
        folders = {}
        for folder in self.folders:
            text = read_text(folder / "energy_uj").strip()
            if not text.isdecimal():
                continue
            name, now = read_text(folder / "name").strip(), int(text)
            before = self._last.get(name, now)
            span = read_text(folder / "max_energy_range_uj").strip()
            if now < before and not span.isdecimal():
                continue
            step = now - before if now >= before else now + int(span) - before
            self._last[name] = now
            self._total_uj[name] = self._total_uj.get(name, 0) + step
            folders[name] = self._total_uj[name] / 1e6
        return folders


class AppleEnergy:
    """The chip's energy model (IOReport), without sudo, by zeus-apple-silicon's cumulative counters."""

    FIELDS: ClassVar[dict[str, str]] = {"cpu_total_mj": "cpu", "gpu_mj": "gpu", "ane_mj": "ane", "dram_mj": "dram"}

    def __init__(self, monitor: Callable[[], Any]) -> None:
        self._make = monitor
        self._monitor: Any = None

    def read(self) -> dict[str, float]:
        """Return joules by part since some fixed moment; {} on a chip that does not tell."""
        try:
            if self._monitor is None:
                self._monitor = self._make()
            metrics = self._monitor.get_cumulative_energy()
        except RuntimeError:
            return {}
        joules = {name: getattr(metrics, field, None) for field, name in self.FIELDS.items()}
        return {name: millijoules / 1e3 for name, millijoules in joules.items() if millijoules is not None}


def apple_energy() -> AppleEnergy | None:
    """Return a reader of this Mac's counters; None without zeus-apple-silicon."""
    try:
        return AppleEnergy(importlib.import_module("zeus_apple_silicon").AppleEnergyMonitor)
    except ImportError:
        return None
