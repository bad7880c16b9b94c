"""What the runs of two arms say about the ratio of their times: the tests of `significance`, on logarithms.

The null hypothesis is that both arms have the same mean logarithm of the run's median time, that is the same geometric
mean. It says nothing of their spreads, which may differ: a noisy CPU against a quiet accelerator is the usual pair.
How often each test is wrong is simulated in tests/simulate, and printed in docs/simulations.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from operator import itemgetter

from queue_runner.analysis.student import normal_quantile, quantile, two_sided

MAX_SPLITS = 1_000
"""Maximum number of splits to enumerate (6 + 6 runs have 924, 10 rounds 512)."""
DRAWN_SPLITS = 2_000
"""Number of splits drawn beyond MAX_SPLITS: a p-value of 5 % is then known to ±1 % (two standard errors)."""
ENOUGH = 8
"""With more runs than this in the smaller arm, and less than twice as many in the larger, the t test needs no help."""
UNEQUAL = 3.0
"""Ratio of standard deviations from which spreads count as unequal; equal ones of 5 runs each reach it in 6 %."""
POWER = 0.8
DISCRETE = 0.12
"""A test of few splits rejects less than alpha: with one that does, a difference must be so much larger to be seen in
80 % of cases, with k of them a k-th of that (simulated: docs/simulations.md)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A test of one pair. `shift` is the log of the speedup, `p` two-sided, `least_p` the smallest that so many runs
    can give, `p_equal` the p-value if the spreads were equal.

    The interval holds the shifts that the test would not reject. `lows` and `highs` are the sorted ends of the shifts
    at which each split is as extreme as the observed one. With `by_t` the shift ± t times `se` is added to them.
    """

    shift: float
    p: float
    p_equal: float
    least_p: float
    se: float
    df: int
    widening: float
    by_t: bool
    lows: Sequence[float]
    highs: Sequence[float]

    def ends(self, alpha: float) -> tuple[float, float]:
        """Return the ends of the interval of confidence 1 - alpha; infinite where so few runs exclude nothing."""
        low, high = self.shift, self.shift
        if self.by_t:
            reach = self.widening * quantile(alpha, self.df) * self.se
            low, high = self.shift - reach, self.shift + reach
        if self.lows:
            allowed = math.floor(alpha * len(self.lows) + 1e-9)  # shifts within more splits' intervals are kept
            low, high = min(low, self.lows[allowed]), max(high, self.highs[allowed])
        return low, high

    def seen(self, alpha: float) -> float:
        """Return the shift that a test at `alpha` would find in 80 % of cases with so many runs of this spread."""
        errors = reach(alpha, self.df, self.widening)
        if self.lows and self.widening == 1:
            allowed = max(1.0, alpha * len(self.lows) / 2)
            errors *= 1 + DISCRETE / allowed
            if not self.by_t and alpha * len(self.lows) < 2:  # all rounds must agree
                n = self.df + 1
                errors = max(errors, normal_quantile(POWER ** (1 / n)) * math.sqrt(n))
        return errors * self.se


def reach(alpha: float, df: int, widening: float = 1.0) -> float:
    """Return how many standard errors apart arms must be for t to exceed its quantile at `alpha` in 80 % of cases: the
    normal approximation of the noncentral t (Abramowitz & Stegun 1964, 26.7.10)."""
    t = widening * quantile(alpha, df)
    return t * (1 - 1 / (4 * df)) + normal_quantile(POWER) * math.sqrt(1 + t * t / (2 * df))


def unpaired(arm: Sequence[float], baseline: Sequence[float]) -> Evidence:
    """Compare two arms of at least 2 runs, whatever their spreads.

    Two tests must agree; p is the larger. The permutation test of the difference of means (Fisher 1935, The Design of
    Experiments, section 21) is exact for arms of any shape if they are alike, and calls equal arms of unequal spread
    different in up to 40 %. The t of Behrens and Fisher against Student's quantile with min(n, m) - 1 degrees of
    freedom is at most alpha for normal arms of any two spreads. (Mickey & Brown 1966, "Bounds on the Distribution
    Functions of the Behrens-Fisher Statistic", Annals of Mathematical Statistics 37, 639-642.) It is not for few runs
    of a skewed arm beside a quiet one. There, where one arm spreads UNEQUAL times as much, t is divided by `widened`.
    """
    n, m = len(arm), len(baseline)
    variances = [_variance(xs) for xs in (arm, baseline)]
    se = math.sqrt(variances[0] / n + variances[1] / m)
    shift = math.fsum(baseline) / m - math.fsum(arm) / n
    noisier = n if variances[0] > variances[1] else m
    widening = widened(noisier) if max(variances) > UNEQUAL**2 * min(variances) else 1.0
    df = min(n, m) - 1
    t = abs(shift) / se if se > 0 else math.inf if shift else 0.0
    p_t, p_narrow = two_sided(t / widening, df), two_sided(t, df)
    if min(n, m) > ENOUGH and max(n, m) < 2 * min(n, m):
        return Evidence(shift, p_t, p_narrow, 0.0, se, df, widening, True, (), ())
    p, lows, highs = _permuted(arm, baseline, shift)
    least = (2 if n == m else 1) / math.comb(n + m, n)  # of arms of equal size the mirrored split is as extreme
    return Evidence(shift, max(p, p_t), p, least, se, df, widening, True, lows, highs)


def widened(n: int) -> float:
    """Return the factor by which an interval is widened if the arm of `n` runs spreads UNEQUAL times as much or more.

    Its runs alone decide then, and t of a skewed sample falls far beyond the quantile: with exponential tails and 4 to
    6 runs 12 % are wrong without the factor, 4 to 8 % with it (simulated: docs/simulations.md)."""
    return 1 + min(1.0, 10 / n)


def by_rounds(arm: Sequence[float], baseline: Sequence[float]) -> Evidence:
    """Compare two arms that ran once in each round, `arm[k]` and `baseline[k]` in round k.

    All signs of the differences within rounds are flipped (Fisher 1935, section 21): exact if the differences are
    symmetric, whatever the spreads of the arms and however the machine drifts from round to round. The interval
    holds the shifts that this does not reject. A flip of a set of rounds is as extreme as the observed while the shift
    lies between the mean of the set and that of the others. (Typical values: Hartigan 1969, JASA 64, 1303-1317.)
    """
    ds = [b - a for a, b in zip(arm, baseline, strict=True)]
    n = len(ds)
    total = math.fsum(ds)
    lows, highs = [-math.inf], [math.inf]  # no flip, and all flipped
    for count, part in _parts(ds):
        mean, others = part / count, (total - part) / (n - count)
        lows.append(min(mean, others))
        highs.append(max(mean, others))
    slack = 1e-12 * max(1.0, abs(total))
    p = sum(low <= slack and high >= -slack for low, high in zip(lows, highs, strict=True)) / len(lows)
    se = math.sqrt(_variance(ds) / n)
    return Evidence(total / n, p, p, 2.0 ** (1 - n), se, n - 1, 1.0, False, sorted(lows), sorted(highs, reverse=True))


def _parts(ds: Sequence[float]) -> list[tuple[int, float]]:
    """Return (size, sum) of one set of each pair of a set of `ds` and its complement, without the empty one; of drawn
    ones if there are too many."""
    n = len(ds)
    if 2 ** (n - 1) <= MAX_SPLITS:
        sets = [(0, 0.0)]
        for d in ds[1:]:
            sets += [(count + 1, part + d) for count, part in sets]
        return sets[1:]
    draw = random.Random(n)
    parts = []
    for _ in range(DRAWN_SPLITS):
        chosen = [d for d in ds[1:] if draw.random() < 0.5]
        if chosen:
            parts.append((len(chosen), math.fsum(chosen)))
    return parts


@lru_cache(maxsize=16)
def splits(total: int, n: int) -> tuple[tuple[int, ...], ...]:
    """Return all ways to choose n of `total`; if too many, the observed one and DRAWN_SPLITS random ones."""
    if math.comb(total, n) <= MAX_SPLITS:
        return tuple(combinations(range(total), n))
    draw = random.Random(total)
    return (tuple(range(n)), *(tuple(draw.sample(range(total), n)) for _ in range(DRAWN_SPLITS)))


def _permuted(
    arm: Sequence[float], baseline: Sequence[float], observed: float
) -> tuple[float, Sequence[float], Sequence[float]]:
    """Return p and the sorted ends of each split's shifts for d = mean(baseline) - mean(arm).

    p is the share of all splits of the pooled runs whose |d| is at least the observed (drawn splits count the observed
    one in: Phipson & Smyth 2010, SAGMB 9:39). Adding a shift s to the arm changes the observed d by -s. It
    changes that of a split which swaps k runs of each side by -c s, with c = 1 - k/n - k/m. So |d_split - c s| >=
    |d - s| holds on one interval around d (inversion: Lehmann 1963; Ernst 2004, Statistical Science 19, 676-685).
    """
    n, m = len(arm), len(baseline)
    if n > m:  # a split names the smaller side
        p, lows, highs = _permuted(baseline, arm, -observed)
        return p, [-x for x in highs], [-x for x in lows]
    pooled = [*arm, *baseline]
    total = math.fsum(pooled)
    slack = 1e-12 * max(1.0, abs(observed))
    chosen, slopes = _sums(pooled, n)
    ds = [total / m - part * (1 / m + 1 / n) for part in chosen]
    extreme = sum(abs(d) >= abs(observed) - slack for d in ds)
    shifts = [
        ((observed - d) / (1 - c), (observed + d) / (1 + c)) for d, c in zip(ds, slopes, strict=True) if c is not None
    ]
    fixed = len(ds) - len(shifts)
    lows = [-math.inf] * fixed + sorted(map(min, shifts))
    highs = [math.inf] * fixed + sorted(map(max, shifts), reverse=True)
    return extreme / len(ds), lows, highs


def _sums(pooled: Sequence[float], n: int) -> tuple[list[float], Sequence[float | None]]:
    """Return the sum of what each split chooses, and its c; None for the observed split and its mirror, which are never
    less extreme, whatever the shift."""
    every, slopes = _plan(len(pooled), n)
    return [math.fsum(pick(pooled)) for pick in every], slopes


@lru_cache(maxsize=16)
def _plan(total: int, n: int) -> tuple[list[Callable[[Sequence[float]], tuple[float, ...]]], list[float | None]]:
    every = splits(total, n)
    cs = [1 - sum(k >= n for k in split) * (1 / n + 1 / (total - n)) for split in every]
    return [itemgetter(*split) for split in every], [None if abs(c) > 1 - 1e-9 else c for c in cs]


def _variance(xs: Sequence[float]) -> float:
    mean = math.fsum(xs) / len(xs)
    return math.fsum((x - mean) ** 2 for x in xs) / (len(xs) - 1)
