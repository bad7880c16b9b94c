"""The knee of a throughput curve: the smallest size that reaches most of the best throughput. Pure.

There is no standard definition of a knee. Kneedle (Satopaa et al. 2011, "Finding a 'Kneedle' in a Haystack", ICDCSW)
takes the point of maximum curvature, which moves when a larger size is added. Here it is the smallest size beyond which
less than 5 % can be gained, so that smaller noise has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ENOUGH = 0.95
"""Share of the highest throughput that the knee reaches."""
FEWEST = 3
"""Minimum number of sizes."""


@dataclass(frozen=True)
class RatePoint:
    """A size, its throughput (units of work per second) and the relative noise of that: a robust estimate of the
    standard deviation as a share of the throughput; None if unknown."""

    size: float
    rate: float
    noise: float | None = None


@dataclass(frozen=True)
class Knee:
    """The knee of a curve. `at` is None if only the largest size reaches ENOUGH: throughput still rises.

    `below` is the next smaller size: the knee lies between it and `at`; None if `at` is the smallest size, so that the
    knee may be smaller still. `noisy`: the noise of the throughputs exceeds the deciding 5 %.
    """

    best: RatePoint
    at: RatePoint | None
    below: RatePoint | None
    noisy: bool

    def share(self, point: RatePoint) -> float:
        """Return the throughput of `point` as a share of the best."""
        return point.rate / self.best.rate


def find(points: Sequence[RatePoint]) -> Knee | None:
    """Return the knee of points of different sizes, in any order; None with fewer than FEWEST of positive
    throughput."""
    ordered = sorted((point for point in points if point.rate > 0), key=lambda point: point.size)
    if len(ordered) < FEWEST:
        return None
    best = max(ordered, key=lambda point: point.rate)
    k = next(k for k, point in enumerate(ordered) if point.rate >= ENOUGH * best.rate)
    below = ordered[k - 1] if k else None
    deciding = [point for point in (best, ordered[k], below) if point is not None]
    noisy = any(point.noise is not None and point.noise > 1 - ENOUGH for point in deciding)
    return Knee(best, ordered[k] if k < len(ordered) - 1 else None, below, noisy)
