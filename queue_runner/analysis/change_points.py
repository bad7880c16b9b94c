"""Steps in the history of one number: where it changed for good, by how much, and how surely. Pure.

The history is read as it came, one point at a time, and a step is stated as soon as the evidence is there: what a
nightly look has stated, later looks state too. At each look the newest stretch is split in two at each place. The split
that leaves the least variance is a step if its t statistic is large enough for all looks and all places. The noise may
depend on the night before (AR(1)): its correlation is estimated from the residuals of all stretches, and widens what a
mean of a few points can show.

Sources: binary segmentation of the newest stretch (Vostrikova 1981); variance of the mean of an AR(1) series (Anderson,
The Statistical Analysis of Time Series, 1971, 8.2); bias of an estimated autocorrelation (Marriott & Pope 1954).
docs/simulations.md has the rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import NormalDist, fmean

SIDE = 3
"""Points on each side of a step, at least: one or two odd nights are none."""
FIRST_LOOK = 8
"""Points from which on there can be a step: fewer say too little about the noise."""
LEVEL = 7e-6
"""Probability of a false step at one look and one place; all of them together: docs/simulations.md."""
CAUTION = 0.5
"""Standard errors that are added to the estimated correlation: a short history seldom shows it."""
MOST_CORRELATION = 0.9
INTERVAL_LEVEL = 0.05
PLACES = 8.0
"""How much less of the variance, in units of the noise, a place of a step may explain than the best one."""


@dataclass(frozen=True)
class Step:
    """A change of the mean: `at` is the index of the first point after it. The change and its 95 % interval are in the
    units of the values. The step is between the points `first` - 1 and `last`: other places fit almost as well.
    `stated` is the number of points after which it was."""

    at: int
    first: int
    last: int
    change: float
    low: float
    high: float
    stated: int


@dataclass(frozen=True)
class _Noise:
    """The noise of stretches with means of their own: standard deviation, AR(1) correlation, degrees of freedom."""

    deviation: float
    correlation: float
    freedom: float

    def error(self, *sizes: int) -> float:
        """Return the standard error of a difference between means of that many points."""
        return self.deviation * math.sqrt(sum(_inflation(n, self.correlation) / n for n in sizes))


def find_steps(values: Sequence[float], n_histories: int = 1) -> list[Step]:
    """Return the steps in order. `n_histories`: how many histories are read together, which share the risk."""
    starts = [0]
    stated: list[int] = []
    for n in range(FIRST_LOOK, len(values) + 1):
        at = _best_split(values[:n], starts[-1])
        if at is None:
            continue
        noise = _noise(values[:n], [*starts, at])
        size = abs(fmean(values[at:n]) - fmean(values[starts[-1] : at]))
        error = noise.error(at - starts[-1], n - at)
        if size > error * _t_quantile(LEVEL / n_histories, noise.freedom) and size > 0:
            starts.append(at)
            stated.append(n)
    return _described(values, _settled(values, starts), stated)


def _best_split(values: Sequence[float], start: int) -> int | None:
    """Return where the two parts of the newest stretch have the least variance about their means."""
    stretch = values[start:]
    total, n = sum(stretch), len(stretch)
    best, best_at, left = -1.0, None, sum(stretch[: SIDE - 1])
    for k in range(SIDE, n - SIDE + 1):
        left += stretch[k - 1]
        between = _explained(left, total, k, n)
        if between > best:
            best, best_at = between, start + k
    return best_at


def _explained(left: float, total: float, k: int, n: int) -> float:
    """Return the sum of squares that two means explain; `left` is the sum of the first `k` of `n` values."""
    return (left / k - (total - left) / (n - k)) ** 2 * k * (n - k) / n


def _noise(values: Sequence[float], starts: Sequence[int]) -> _Noise:
    ends = [*starts[1:], len(values)]
    residuals, pairs = 0.0, 0.0
    for start, end in zip(starts, ends, strict=True):
        mean = fmean(values[start:end])
        stretch = [value - mean for value in values[start:end]]
        residuals += sum(x * x for x in stretch)
        pairs += sum(x * y for x, y in pairwise(stretch))
    n, n_means = len(values), len(starts)
    raw = pairs / residuals if residuals > 0 else 0.0
    correlation = min(max(0.0, raw + n_means * (1 + 3 * raw) / n + CAUTION / math.sqrt(n)), MOST_CORRELATION)
    n_lost = sum(_inflation(end - start, correlation) for start, end in zip(starts, ends, strict=True))
    left = max(n - n_lost, 1.0)
    freedom = max(left * (1 - correlation**2) / (1 + correlation**2), 2.0)
    return _Noise(math.sqrt(residuals / left), correlation, freedom)


@cache
def _inflation(n: int, correlation: float) -> float:
    """Return how many times the variance of the mean of `n` points is that of independent ones."""
    return 1 + 2 * sum((1 - lag / n) * correlation**lag for lag in range(1, n))


def _t_quantile(level: float, freedom: float) -> float:
    """Return the two-sided quantile of Student's t (Wallace 1959, accurate in the tails)."""
    z = -NormalDist().inv_cdf(level / 2) * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(z * z / freedom))


def _settled(values: Sequence[float], starts: Sequence[int]) -> list[int]:
    """Return the starts of the stretches, each step at its best place now that more points are there."""
    settled = list(starts)
    for k in range(1, len(settled)):
        end = settled[k + 1] if k + 1 < len(settled) else len(values)
        settled[k] = _best_split(values[:end], settled[k - 1]) or settled[k]
    return settled


def _described(values: Sequence[float], starts: Sequence[int], stated: Sequence[int]) -> list[Step]:
    if len(starts) == 1:
        return []
    noise = _noise(values, starts)
    ends = [*starts[1:], len(values)]
    steps = []
    for k, n in enumerate(stated, start=1):
        before, at, end = starts[k - 1], starts[k], ends[k]
        change = fmean(values[at:end]) - fmean(values[before:at])
        half = noise.error(at - before, end - at) * _t_quantile(INTERVAL_LEVEL, noise.freedom)
        first, last = _places(values, before, at, end, noise)
        steps.append(Step(at, first, last, change, change - half, change + half, n))
    return steps


def _places(values: Sequence[float], before: int, at: int, end: int, noise: _Noise) -> tuple[int, int]:
    """Return the first and the last place whose likelihood is not much smaller than that of the best one."""
    stretch = values[before:end]
    total, n = sum(stretch), len(stretch)
    between = {}
    left = 0.0
    for k in range(1, n):
        left += stretch[k - 1]
        between[before + k] = _explained(left, total, k, n)
    unit = noise.deviation**2 * _inflation(n, noise.correlation)
    fitting = [k for k, value in between.items() if between[at] - value <= PLACES * unit]
    return min(at, *fitting), max(at, *fitting)
