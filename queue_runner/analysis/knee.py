"""Where more of something stops paying: the smallest size that reaches most of the best throughput. Pure.

A knee has no agreed definition. Kneedle (Satopaa et al. 2011, "Finding a 'Kneedle' in a Haystack", ICDCSW) takes the
point of most curvature, which moves when one larger size is tried. Here it is what a user asks for: the smallest size
after which there are less than 5 % to be had. Noise up to that moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queue_runner.analysis import stats

ENOUGH = 0.95
"""Of the highest throughput: what a size must reach to be called enough."""
FEWEST = 3
"""Sizes below which nothing is said."""


@dataclass(frozen=True)
class Point:
    """A size, its throughput (anything a second) and by how much of it that may be off: a standard deviation, robustly
    estimated, as a share; None where it is not known."""

    size: float
    rate: float
    noise: float | None = None


@dataclass(frozen=True)
class Knee:
    """Where a curve bends. `at` is None where none was seen: `rising` says that the largest size is the first enough.

    `below` is the next smaller size, which is not enough: the bend lies between the two. None: `at` is the smallest
    size, and it may lie lower still. `noisy`: the throughputs are less sure than the 5 % that decide.
    """

    best: Point
    at: Point | None
    below: Point | None
    rising: bool
    noisy: bool

    def share(self, point: Point) -> float:
        """Of the best throughput."""
        return point.rate / self.best.rate


def find(points: Sequence[Point]) -> Knee | None:
    """The knee of points of different sizes, in any order; None with fewer than FEWEST of positive throughput."""
    ordered = sorted((point for point in points if point.rate > 0), key=lambda point: point.size)
    if len(ordered) < FEWEST:
        return None
    best = max(ordered, key=lambda point: point.rate)
    k = next(k for k, point in enumerate(ordered) if point.rate >= ENOUGH * best.rate)
    rising = k == len(ordered) - 1
    below = ordered[k - 1] if k else None
    deciding = [point for point in (best, ordered[k], below) if point is not None]
    noisy = any(point.noise is not None and point.noise > 1 - ENOUGH for point in deciding)
    return Knee(best, None if rising else ordered[k], below, rising, noisy)


def noise(rates: Sequence[float]) -> float | None:
    """What several throughputs of the same size say about how sure one is; None for fewer than two."""
    return stats.MAD_TO_SD * stats.mad(rates) / stats.median(rates) if len(rates) > 1 else None
