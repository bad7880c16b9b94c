"""The memory of one run over its iterations, and whether it grows: the data of `memory`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from queue_runner.analysis import stats
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.reported_run import ReportedRun

FEWEST = 20
"""Minimum number of measured iterations for an estimate of growth."""
MATERIAL_SHARE = 0.01
MATERIAL_BYTES = 2**20
"""A leak is a growth over the measured iterations of more than this share of the median, and more than these bytes."""


class MemoryPoint(NamedTuple):
    """Memory after one iteration. Bytes are None where not reported."""

    i: int
    phase: str
    allocated: int | None
    reserved: int | None


@dataclass(frozen=True, eq=False)
class MemorySeries:
    """The memory of one run by iteration."""

    arm: Arm
    run: ReportedRun
    points: Sequence[MemoryPoint]

    @property
    def resident(self) -> bool:
        """Whether the reserved bytes are the RSS of the process."""
        return str(self.run.device) == "cpu"

    @property
    def peak_allocated(self) -> int | None:
        return max((point.allocated for point in self.points if point.allocated is not None), default=None)

    @property
    def peak_reserved(self) -> int | None:
        return max((point.reserved for point in self.points if point.reserved is not None), default=None)

    @cached_property
    def ratio(self) -> float | None:
        """Reserved over allocated at the peak of reserved; None on the CPU, whose process holds more than tensors."""
        both = [(a, r) for _, _, a, r in self.points if a and r is not None]
        if not both or self.resident:
            return None
        allocated, reserved = max(both, key=lambda pair: pair[1])
        return reserved / allocated

    @cached_property
    def _measured(self) -> tuple[str, list[int], list[float]]:
        """The series for growth, with its name: bytes in tensors where reported, else reserved bytes."""
        tensors = any(point.allocated is not None for point in self.points)
        measured = [point for point in self.points if point.phase in ("measure", "eval_iter")]
        values = [(point.i, point.allocated if tensors else point.reserved) for point in measured]
        known = [(i, float(x)) for i, x in values if x is not None]
        name = "allocated" if tensors else "RSS" if self.resident else "reserved"
        return name, [i for i, _ in known], [x for _, x in known]

    @property
    def grows(self) -> str:
        """Quantity that growth refers to: allocated, reserved or RSS."""
        return self._measured[0]

    @cached_property
    def slope(self) -> stats.Slope | None:
        """Growth in bytes per iteration; None for fewer than FEWEST."""
        _, at, xs = self._measured
        return stats.slope(at, xs) if len(xs) >= FEWEST else None

    @cached_property
    def leak(self) -> bool | None:
        """Whether memory grows significantly and materially over the measured iterations, also in their second half.

        Memory that levels off is not a leak. None for fewer than FEWEST.
        """
        if self.slope is None:
            return None
        _, at, xs = self._measured
        half = len(xs) // 2
        later = stats.slope(at[half:], xs[half:])
        grown = self.slope.middle * (at[-1] - at[0])
        material = grown > max(MATERIAL_BYTES, MATERIAL_SHARE * stats.median(xs))
        return bool(material and self.slope.low > 0 and later is not None and later.low > 0)
