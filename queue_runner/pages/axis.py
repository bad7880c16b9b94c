"""Axes of charts: from values to places in percent of the width, so that a chart fits a phone without a script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

EDGE = 3.0
"""Percent of the width left free on both sides, for the dots at the ends."""
LOG_FROM = 8.0
"""Ratio of the largest to the smallest value from which on an axis is logarithmic: below it, half of the width shows
half of the difference."""
MOST_TICKS = 5
MOST_LINEAR = 4
"""Their texts are longer, as 235 ms, and a phone has room for four."""


class Tick(Struct, frozen=True):
    """A mark of an axis: its place in percent of the width, and its text."""

    x: float
    text: str


class Axis(Struct, frozen=True):
    """An axis from `low` to `high`."""

    low: float
    high: float
    log: bool
    ticks: Sequence[Tick]

    def at(self, value: float) -> float:
        """Return the place of a value, in percent of the width; a value beyond an end is at the edge."""
        return place(value, self.low, self.high, self.log)

    @property
    def about(self) -> str:
        """What a reader must know of the axis."""
        if self.log:
            return "logarithmic axis"
        return "axis from 0" if self.low == 0 else "the axis does not begin at 0"


def place(value: float, low: float, high: float, log: bool = False, edge: float = EDGE) -> float:
    """Return the place of a value between `low` and `high`, in percent of the width."""
    if high <= low:
        return 50.0
    share = math.log(value / low) / math.log(high / low) if log and value > 0 else (value - low) / (high - low)
    return round(edge + (100 - 2 * edge) * min(1.0, max(0.0, share)), 3)


def axis(values: Iterable[float], show: Callable[[float], str]) -> Axis | None:
    """Return the axis of finite values; None without any. It is logarithmic where they are positive and far apart."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    log = low > 0 and high / low >= LOG_FROM
    if low == high:
        low, high = (low - abs(low) * 0.05, high + abs(high) * 0.05) if low else (0.0, 1.0)
    marks = _log_ticks(low, high) if log else linear_ticks(low, high)
    ticks = [Tick(place(mark, low, high, log), text) for mark, text in _told_apart(marks, show)]
    return Axis(low, high, log, ticks)


def ticked(text: str) -> str:
    """Return a number, with its unit or exponent, without the zeros that a table keeps: "2.5" of "2.500"."""
    end = next((at for at, letter in enumerate(text) if letter in " e"), len(text))
    value, rest = text[:end], text[end:]
    return (value.rstrip("0").rstrip(".") if "." in value else value) + rest


def linear_ticks(low: float, high: float, most: int = MOST_LINEAR) -> list[float]:
    """Return round numbers between `low` and `high`, multiples of 1, 2 or 5 times a power of ten: `most` at most."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    while True:
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [k * step for k in range(first, last + 1)]
        step *= 2.5 if f"{step:e}".startswith("2") else 2


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        marks = [digit * 10.0**power for power in powers for digit in digits]
        inside = [mark for mark in marks if low * (1 - 1e-9) <= mark <= high * (1 + 1e-9)]
        if len(inside) <= MOST_TICKS:
            return inside
    return inside[:: math.ceil(len(inside) / MOST_TICKS)]


def _told_apart(marks: Iterable[float], show: Callable[[float], str]) -> list[tuple[float, str]]:
    """Return the marks with their texts; the first of those that would have the same."""
    texts: dict[str, float] = {}
    for mark in marks:
        texts.setdefault(ticked(show(mark)), mark)
    return [(mark, text) for text, mark in texts.items()]
