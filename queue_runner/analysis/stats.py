"""Statistics of one run: centre, spread and slope of a series of iteration times, each with its source.

Iterations of one run are not independent samples, so nothing here is a test: two configurations are compared in
`intervals`, over one number per run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, pairwise
from statistics import median as median
from statistics import quantiles
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T")

MAD_TO_SD = 1.4826022185056018
"""1 / Φ⁻¹(3/4): the raw MAD times this estimates the standard deviation of normal data
(Rousseeuw & Croux 1993, "Alternatives to the Median Absolute Deviation", JASA 88, eq. 1.2)."""
SLOPE_BLOCKS = 30
Z_95 = 1.959963984540054
"""Φ⁻¹(0.975)"""


def by_key(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Return the items by their key, both in order of first appearance."""
    by_value: dict[Any, list[T]] = {}
    for item in items:
        by_value.setdefault(key(item), []).append(item)
    return by_value


def geometric_mean(xs: Sequence[float]) -> float:
    """Return the geometric mean of positive values. Raises: ValueError when there are none, or one is not positive."""
    if not xs:
        raise ValueError("the geometric mean of no values is undefined")
    return xs[0] * math.exp(math.fsum(math.log(x / xs[0]) for x in xs) / len(xs))  # exact where all are equal


def mad(xs: Sequence[float], centre: float | None = None) -> float:
    """Return the median absolute deviation from the median, raw: times MAD_TO_SD it estimates a standard deviation.

    Source: Hampel 1974, "The Influence Curve and its Role in Robust Estimation", JASA 69, 383-393.
    """
    middle = median(xs) if centre is None else centre
    return median(abs(x - middle) for x in xs)


def quartiles(xs: Sequence[float]) -> tuple[float, float]:
    """Return the lower and upper quartile by linear interpolation, type 7 of Hyndman & Fan 1996, "Sample Quantiles in
    Statistical Packages", The American Statistician 50, 361-365 (the default of R and numpy)."""
    if len(xs) == 1:
        return xs[0], xs[0]
    lower, _, upper = quantiles(xs, n=4, method="inclusive")
    return lower, upper


def thirds(positions: Sequence[float], xs: Sequence[float]) -> tuple[float, float] | None:
    """Return the medians of the first and last third of the span of `positions`.

    Thirds divide the positions, not the count, so that a log with only the start and the end of a run compares these
    two. None with fewer than 5 points, an empty third or a first third of zero.
    """
    if len(xs) < 5:
        return None
    low, high = min(positions), max(positions)
    early, late = low + (high - low) / 3, high - (high - low) / 3
    first = [x for at, x in zip(positions, xs, strict=True) if at <= early]
    last = [x for at, x in zip(positions, xs, strict=True) if at >= late]
    if low == high or not first or not last:
        return None
    start, end = median(first), median(last)
    return (start, end) if start > 0 else None


class Slope(Struct, frozen=True):
    """A robust slope per unit of position, and the ends of its 95 % interval."""

    middle: float
    low: float
    high: float


def slope(positions: Sequence[float], xs: Sequence[float]) -> Slope | None:
    """Return the Theil-Sen slope with Sen's interval from the variance of Kendall's S, corrected for ties (Sen 1968,
    section 6; Hollander & Wolfe 1999, "Nonparametric Statistical Methods", section 9.3). None with fewer than 5 points.

    The formula ignores autocorrelation: it is applied to the medians of SLOPE_BLOCKS blocks, and the interval is still
    too narrow for a random walk.
    """
    if (n := len(xs)) > SLOPE_BLOCKS:
        blocks = list(pairwise(n * k // SLOPE_BLOCKS for k in range(SLOPE_BLOCKS + 1)))
        positions, xs = ([median(values[a:b]) for a, b in blocks] for values in (positions, xs))
        n = len(xs)
    points = zip(positions, xs, strict=True)
    slopes = sorted((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x1 != x2)
    if n < 5 or not slopes:
        return None
    ties = Counter(xs).values()
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    reach = Z_95 * math.sqrt(max(0.0, variance))
    low = max(0, math.floor((len(slopes) - reach) / 2) - 1)  # the M-th smallest and the M-th largest
    return Slope(median(slopes), slopes[low], slopes[len(slopes) - 1 - low])
