"""A row of bars of the newest iterations' times, scaled so that one slow iteration does not flatten the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.:-=+*#"
_LEAST_SPAN = 0.05
"""Smallest span of the scale, relative to the fastest iteration: the noise of a steady run is drawn as a flat line, not
blown up to the full height."""
_FENCES = 3.0
"""Multiple of the interquartile range above the upper quartile: values beyond are far out (Tukey 1977) and cut off."""


@dataclass(frozen=True)
class Sparkline:
    """A sparkline. `bars` has a character per iteration. The lowest bar is `low_s`, the full height `high_s`; `beyond`
    iterations are slower than that, the slowest `max_s`. Seconds."""

    bars: str
    low_s: float
    high_s: float
    beyond: int
    max_s: float


def sparkline(times_s: Sequence[float], *, ascii: bool = False) -> Sparkline | None:
    """Return the bars of `times_s`, the oldest first; None if there is nothing to draw."""
    times = [t for t in times_s if t == t and t >= 0]
    if not times:
        return None
    ordered = sorted(times)
    low = ordered[0]
    q1, q3 = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    high = max(t for t in ordered if t <= q3 + _FENCES * (q3 - q1))
    span = max(high - low, _LEAST_SPAN * low) or 1.0
    letters = ASCII_BARS if ascii else BARS
    last = len(letters) - 1
    drawn = "".join(letters[min(last, int(min((t - low) / span, 1.0) * len(letters)))] for t in times)
    return Sparkline(drawn, low, high, sum(t > high for t in times), ordered[-1])
