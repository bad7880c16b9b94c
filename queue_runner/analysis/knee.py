"""The knee of a throughput curve: the smallest size that reaches most of the best throughput. Pure.

A knee has no agreed definition. Kneedle (Satopaa et al. 2011, "Finding a 'Kneedle' in a Haystack", ICDCSW) takes the
point of maximum curvature, which moves when one larger size is tried. Here it is what users look for: the smallest size
after which less than 5 % can be gained. Noise below that changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ENOUGH = 0.95
"""The share of the highest throughput that a size must reach to be enough."""
FEWEST = 3
"""The fewest sizes for a result."""


@dataclass(frozen=True)
class Point:
    """A size, its throughput (anything per second) and the noise of that: a robustly estimated standard deviation, as a
    share; None where it is not known."""

    size: float
    rate: float
    noise: float | None = None


@dataclass(frozen=True)
class Knee:
    """The bend of a curve. `at` is None where none was found: the largest size is the first enough.

    `below` is the next smaller size, which is not enough: the bend lies between the two. None: `at` is the smallest
    size, and the bend may lie lower still. `noisy`: the noise of the throughputs exceeds the deciding 5 %.
    """

    best: Point
    at: Point | None
    below: Point | None
    noisy: bool

    def share(self, point: Point) -> float:
        """Return the share of the best throughput."""
        return point.rate / self.best.rate


def find(points: Sequence[Point]) -> Knee | None:
    """Return the knee of points of different sizes, in any order; None with under FEWEST of positive throughput."""
    ordered = sorted((point for point in points if point.rate > 0), key=lambda point: point.size)
    if len(ordered) < FEWEST:
        return None
    best = max(ordered, key=lambda point: point.rate)
    k = next(k for k, point in enumerate(ordered) if point.rate >= ENOUGH * best.rate)
    below = ordered[k - 1] if k else None
    deciding = [point for point in (best, ordered[k], below) if point is not None]
    noisy = any(point.noise is not None and point.noise > 1 - ENOUGH for point in deciding)
    return Knee(best, ordered[k] if k < len(ordered) - 1 else None, below, noisy)
