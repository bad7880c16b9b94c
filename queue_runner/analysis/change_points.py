"""Steps in the history of one number: where it changed for good, by how much, and how surely. Pure.

The history is read as it came, one point at a time, and a step is stated as soon as the evidence is there: what a
nightly look has stated, later looks state too. At each look the newest stretch is split in two where that leaves the
least variance. The split is a step if two means explain the history much better than one, by a likelihood ratio. The
noise may depend on the night before (AR(1)): each of the two explanations has the correlation that suits it best, so a
history that wanders is not taken for one that jumps.

Sources: binary segmentation of the newest stretch (Vostrikova 1981); likelihood and variance of the mean of an AR(1)
series (Anderson, The Statistical Analysis of Time Series, 1971, 6.2 and 8.2); bias of an estimated autocorrelation
(Marriott & Pope 1954). docs/simulations.md has the rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from statistics import NormalDist, fmean

from msgspec import Struct

SIDE = 3
"""Points on each side of a step, at least, and so many of them beyond its middle: one or two odd nights are none."""
FIRST_LOOK = 8
"""Points from which on there can be a step: fewer say too little about the noise."""
LEVEL = 0.05
"""Divided by the square of the number of points: the probability of a false step at one look and one place. So all
looks together have a bound. docs/simulations.md has what they add up to."""
CORRELATIONS = tuple(k / 10 for k in range(10))
"""Correlations of a night with the one before that are tried."""
SELDOM = 2.0
"""Their prior is proportional to (1 - correlation) to this power: large ones are seldom."""
CAUTION = 0.5
"""Standard errors that are added to the estimated correlation: a short history seldom shows it."""
MOST_CORRELATION = 0.9
INTERVAL_LEVEL = 0.05
PLACES = 8.0
"""How much less of the variance, in units of the noise, a place of a step may explain than the best one."""


class Step(Struct, frozen=True):
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


class _Noise(Struct, frozen=True):
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
        t, freedom = _evidence(values[:n], starts, at)
        if t > _t_quantile(LEVEL / n**2 / n_histories, freedom) and _is_broad(values[starts[-1] : at], values[at:n]):
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


def _is_broad(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether SIDE points or more of each part are on its side of the middle."""
    low, high = sorted((before, after), key=fmean)
    middle = (fmean(low) + fmean(high)) / 2
    return sum(x < middle for x in low) >= SIDE <= sum(x > middle for x in high)


def _evidence(values: Sequence[float], starts: Sequence[int], at: int) -> tuple[float, float]:
    """Return the likelihood ratio of a step at `at` in the newest stretch, as the t statistic that has it if nights do
    not depend on each other, and the degrees of freedom."""
    earlier = [_Sums.of(values[start:end]) for start, end in pairwise(starts)]
    newest = _Sums.of(values[starts[-1] :])
    after = sum(values[at:]) - values[starts[-1]] * (len(values) - at)
    n, n_after = len(values), len(values) - at
    before_step, step = (x - values[starts[-1]] for x in values[at - 1 : at + 1])
    log_likelihoods: tuple[list[float], list[float]] = [], []
    for rho in CORRELATIONS:
        rest = sum(sums.residual(rho) for sums in earlier) + newest.residual(rho)
        weight = newest.weight(rho)
        common = (n_after - rho * (2 * n_after - 1) + rho**2 * (n_after - 1)) / weight
        square = n_after - 2 * rho * (n_after - 1) + rho**2 * (n_after - 1) - common**2 * weight
        product = after - rho * (2 * after - newest.last + before_step - step) + rho**2 * (after - newest.last)
        split = rest - (product - common * newest.product(rho)) ** 2 / square
        if split <= _NO_NOISE * newest.squares:
            return (math.inf if rest > _NO_NOISE * newest.squares else 0.0), 1.0
        for residuals, likelihoods in zip((rest, split), log_likelihoods, strict=True):
            of_correlation = len(starts) / 2 * math.log(1 - rho**2) + SELDOM * math.log(1 - rho)
            likelihoods.append(of_correlation - n / 2 * math.log(residuals))
    single, double = map(max, log_likelihoods)
    freedom = n - len(starts) - 2
    return math.sqrt(max(0.0, math.expm1(2 * (double - single) / n)) * freedom), freedom


class _Sums(Struct, frozen=True):
    """Sums for the residuals of a stretch about its mean, for any AR(1) correlation. Values count from the first."""

    n: int
    total: float
    squares: float
    neighbours: float
    last: float

    @classmethod
    def of(cls, values: Sequence[float]) -> _Sums:
        moved = [value - values[0] for value in values]
        squares, neighbours = sum(x * x for x in moved), sum(x * y for x, y in pairwise(moved))
        return cls(len(moved), sum(moved), squares, neighbours, moved[-1])

    def weight(self, rho: float) -> float:
        """Return the sum of squares of a constant one, without its dependence on the night before."""
        return self.n - 2 * rho * (self.n - 1) + rho**2 * (self.n - 2)

    def product(self, rho: float) -> float:
        """Return the sum of products with that."""
        return self.total - rho * (2 * self.total - self.last) + rho**2 * (self.total - self.last)

    def residual(self, rho: float) -> float:
        """Return the sum of squares about the mean, without the dependence on the night before."""
        squares = self.squares - 2 * rho * self.neighbours + rho**2 * (self.squares - self.last**2)
        return squares - self.product(rho) ** 2 / self.weight(rho)


_NO_NOISE = 1e-12
"""Residuals below this share of the squares are those of floats."""


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
