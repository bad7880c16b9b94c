"""Energy over phases from cumulative counters, or from sampled power where nothing counts. Pure.

A counter is read every few seconds; a phase begins and ends between two readings. Its value there is interpolated, and
as it never falls, the true one lies between the two readings: that distance is the error stated. It does not contain
the counter's own (NVIDIA states about 5 % for the power that it sums; RAPL and IOReport are models).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from queue_runner.analysis.phases import Span

Points = Sequence[tuple[float, float]]
"""(seconds since the start of the run, value), in order of time."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules over a phase. `error_j`: of the interpolation at its borders; None for an integral of sampled power, whose
    error is unknown."""

    joules: float
    error_j: float | None
    method: str
    """counter or integral"""


def counted(points: Points, spans: Iterable[Span]) -> Energy | None:
    """Return what a counter of joules counted over the spans; None where it does not cover them, or was reset."""
    if len(points) < 2 or any(b[1] < a[1] for a, b in pairwise(points)):
        return None
    joules, error_j = [], []
    for span in spans:
        begin, end = _counter_at(points, span.from_s), _counter_at(points, span.to_s)
        if begin is None or end is None:
            return None
        joules.append(end[0] - begin[0])
        error_j += [begin[1], end[1]]
    return Energy(math.fsum(joules), math.fsum(error_j), "counter") if joules else None


def integrated(points: Points, spans: Iterable[Span]) -> Energy | None:
    """Return the integral of sampled watts over the spans, by the trapezoidal rule; None where the samples do not cover
    them."""
    joules = []
    times = [t_s for t_s, _ in points]
    for span in spans:
        inside = points[bisect_right(times, span.from_s) : bisect_left(times, span.to_s)]
        begin, end = _linear(points, span.from_s), _linear(points, span.to_s)
        if begin is None or end is None:
            return None
        course = [(span.from_s, begin), *inside, (span.to_s, end)]
        joules += [(b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(course)]
    return Energy(math.fsum(joules), None, "integral") if joules else None


def joules_per_iteration(parts: Sequence[Energy], n: int) -> tuple[float, float | None]:
    """Return the joules of one of `n` iterations over all meters, and their error; None where one is unknown."""
    errors = [part.error_j for part in parts if part.error_j is not None]
    error_j = math.fsum(errors) / n if len(errors) == len(parts) else None
    return math.fsum(part.joules for part in parts) / n, error_j


def _counter_at(points: Points, t_s: float) -> tuple[float, float] | None:
    """Return the interpolated joules and their largest error; None outside of the readings."""
    around = _around(points, t_s)
    value = _linear(points, t_s)
    if around is None or value is None:
        return None
    (_, low), (_, high) = around
    return value, max(high - value, value - low)


def _linear(points: Points, t_s: float) -> float | None:
    around = _around(points, t_s)
    if around is None:
        return None
    (t_a, a), (t_b, b) = around
    return a if t_b == t_a else a + (b - a) * (t_s - t_a) / (t_b - t_a)


def _around(points: Points, t_s: float) -> tuple[tuple[float, float], tuple[float, float]] | None:
    if not points or not points[0][0] <= t_s <= points[-1][0]:
        return None
    after = min(bisect_right(points, t_s, key=lambda point: point[0]), len(points) - 1)
    before = max(after - 1, 0) if points[after][0] > t_s else after
    return points[before], points[before] if points[before][0] == t_s else points[after]
