"""The memory of one run over its iterations, and whether it grows: what `memory` is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from queue_runner.analysis import stats
from queue_runner.analysis.grouping import Cell

FEWEST = 20
"""Measured iterations below which nothing is said of growth."""
MATERIAL_SHARE = 0.01
MATERIAL_BYTES = 2**20
"""Growth over what was measured must exceed this share of the level, and this many bytes, to be called a leak."""


class Point(NamedTuple):
    """After one iteration. Bytes are None where they are not told."""

    i: int
    phase: str
    allocated: int | None
    reserved: int | None


@dataclass(frozen=True, eq=False)
class Series:
    """The memory of one run by iteration."""

    cell: Cell
    run: Mapping[str, Any]
    points: Sequence[Point]

    @property
    def resident(self) -> bool:
        """Whether what is called reserved is the process's RSS."""
        return str(self.run["device"]) == "cpu"

    @property
    def peak_allocated(self) -> int | None:
        return max((point.allocated for point in self.points if point.allocated is not None), default=None)

    @property
    def peak_reserved(self) -> int | None:
        return max((point.reserved for point in self.points if point.reserved is not None), default=None)

    @cached_property
    def ratio(self) -> float | None:
        """Reserved over allocated where most is reserved; None on the CPU, whose process holds more than tensors."""
        both = [(a, r) for _, _, a, r in self.points if a and r is not None]
        if not both or self.resident:
            return None
        allocated, reserved = max(both, key=lambda pair: pair[1])
        return reserved / allocated

    @cached_property
    def _measured(self) -> tuple[str, list[int], list[float]]:
        """What growth is taken of: bytes in tensors where they are told, else those that are reserved."""
        tensors = any(point.allocated is not None for point in self.points)
        measured = [point for point in self.points if point.phase in ("measure", "eval_iter")]
        some = [(point.i, point.allocated if tensors else point.reserved) for point in measured]
        known = [(i, float(x)) for i, x in some if x is not None]
        name = "allocated" if tensors else "RSS" if self.resident else "reserved"
        return name, [i for i, _ in known], [x for _, x in known]

    @property
    def grows(self) -> str:
        """allocated, reserved or RSS."""
        return self._measured[0]

    @cached_property
    def slope(self) -> stats.Slope | None:
        """Bytes an iteration; None for fewer than FEWEST."""
        _, at, xs = self._measured
        return stats.slope(at, xs) if len(xs) >= FEWEST else None

    @cached_property
    def leak(self) -> bool | None:
        """Whether it grows beyond doubt and materially: over all that was measured, and over its second half alone.

        What settles after a while is no leak. None where there are too few iterations to say.
        """
        if self.slope is None:
            return None
        _, at, xs = self._measured
        half = len(xs) // 2
        later = stats.slope(at[half:], xs[half:])
        grown = self.slope.middle * (at[-1] - at[0])
        material = grown > max(MATERIAL_BYTES, MATERIAL_SHARE * stats.median(xs))
        return bool(material and self.slope.low > 0 and later is not None and later.low > 0)
