"""Joules of a phase and of an iteration, from counters. Pure.

A counter of joules is read every few seconds; a phase begins and ends between two readings. Its value there is
interpolated, and as it never falls, the true one lies between the two readings: that distance is the error stated. It
does not contain the counter's own (NVIDIA states about 5 % for the power that it sums; RAPL and IOReport are models).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from queue_runner.analysis import stats
from queue_runner.analysis.phases import Span
from queue_runner.machine_records import SensorSample

Points = Sequence[tuple[float, float]]
"""(seconds since the start of the run, joules counted), in order of time."""


class Energy(Struct, frozen=True):
    """Joules over a phase. `error_j`: of the interpolation at its borders."""

    joules: float
    error_j: float


class IterationEnergy(NamedTuple):
    """Joules of an iteration: the median over runs, the largest error at the borders of the phase, the MAD."""

    j: float | None = None
    j_error: float | None = None
    j_mad: float | None = None
    j_per_token: float | None = None


def of_iteration(runs: Iterable[tuple[Sequence[Energy], int, float | None]]) -> IterationEnergy:
    """Return the energy of an iteration over runs, given the energies of each, its iterations and their tokens."""
    joules, errors, per_token = [], [], []
    for energies, n, tokens in runs:
        joules.append(math.fsum(energy.joules for energy in energies) / n)
        errors.append(math.fsum(energy.error_j for energy in energies) / n)
        if tokens:
            per_token.append(joules[-1] / tokens)
    if not joules:
        return IterationEnergy()
    mad = stats.mad(joules) if len(joules) > 1 else None
    return IterationEnergy(stats.median(joules), max(errors), mad, stats.median(per_token) if per_token else None)


def readings(samples: Sequence[SensorSample], zero: float) -> dict[str, Points]:
    """Return the readings of each counter, at their own times where these were not the samples'."""
    courses: dict[str, dict[float, float]] = {}
    for sample in samples:
        at = sample.at if sample.energy_at is None else sample.energy_at
        for meter, joules in (sample.energy_j or {}).items():
            courses.setdefault(meter, {})[at - zero] = joules
    return {meter: sorted(course.items()) for meter, course in courses.items()}


def counted(points: Points, spans: Iterable[Span]) -> Energy | None:
    """Return what a counter of joules counted over the spans; None where it does not cover them, or was reset."""
    if any(b[1] < a[1] for a, b in pairwise(points)):
        return None
    borders = [(_interpolated(points, span.from_s), _interpolated(points, span.to_s)) for span in spans]
    known = [(begin, end) for begin, end in borders if begin is not None and end is not None]
    if not borders or len(known) < len(borders):
        return None
    return Energy(
        math.fsum(end[0] - begin[0] for begin, end in known), math.fsum(begin[1] + end[1] for begin, end in known)
    )


def _interpolated(points: Points, t_s: float) -> tuple[float, float] | None:
    """Return the joules at a time, and their largest error; None outside of the readings."""
    if not points or not points[0][0] <= t_s <= points[-1][0]:
        return None
    after = bisect_left(points, t_s, key=lambda point: point[0])
    t_b, b = points[after]
    if t_b == t_s:
        return b, 0.0
    t_a, a = points[after - 1]
    joules = a + (b - a) * (t_s - t_a) / (t_b - t_a)
    return joules, max(b - joules, joules - a)
