"""Whether a run's iterations have one speed: changes within the run, several levels, a share of far slower ones.

The median of a run describes it only if its iterations share one level. Each rule here is calibrated on simulated runs
of white, autocorrelated, skewed and heavy-tailed noise: docs/simulations.md prints how often it is wrong
(`tests/simulate/runs.py`). Times are compared as logarithms, so that a rule means the same at every speed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis import stats

NOTABLE = 0.02
"""Smallest relative difference of two levels that is reported: a step of 4 % is, noise of the clock is not."""
FEWEST = 10
"""Runs with fewer iterations get no profile."""
MOST_BLOCKS = 300
"""A longer run is reduced to the medians of this many blocks before change points are sought."""
SHORTEST = 5
"""Fewest blocks in a segment."""
PENALTY = 3.0
"""Of one more segment, times the logarithm of the number of blocks."""
CLIP = 3.0
"""Deviations beyond this many standard deviations count as that many: one slow iteration does not change the speed."""
MOST_CORRELATED = 0.95
SLOW = 1.5
"""An iteration that takes this many times its level, and SLOW_SD robust standard deviations more, is far slower."""
SLOW_SD = 6.0
SLOW_SHARE = 0.01
"""Share of far slower iterations that noise with heavy tails may have."""
SLOW_P = 1e-3
MOST_SORTED = 2000
"""Levels are sought in this many order statistics of a longer run."""
VALLEY_Z = 2.5
"""Standard normal deviate of the sign test for a valley; docs/simulations.md has its errors."""
MOST_LEVELS = 4
CORRELATED_N = 5000
"""The autocorrelation is that of this many iterations of a longer run."""
STEADY_SHARE = 0.25
"""Share of the iterations after the last change with which a steady state counts as reached: 500 of 2,000 in Barrett
et al. 2017, "Virtual Machine Warmup Blows Hot and Cold", PACMPL 1 (OOPSLA), 52."""


class LevelSegment(Struct, frozen=True):
    """Iterations of one speed: the number of the first, how many there are, their median in seconds."""

    first: int
    n: int
    median_s: float


class IterationProfile(Struct, frozen=True):
    """The speeds of a run. `segments` are in order of time, one if the speed never changed; `levels` are
    (share, seconds) of iterations that alternate between speeds; `slow` is the number of far slower iterations."""

    segments: tuple[LevelSegment, ...] = ()
    levels: tuple[tuple[float, float], ...] = ()
    slow: int = 0
    slow_from_s: float = 0.0
    mean_over_median: float = 1.0

    @property
    def n(self) -> int:
        """Return the number of iterations."""
        return sum(segment.n for segment in self.segments)

    @property
    def steady(self) -> bool:
        """Return whether the last change left STEADY_SHARE of the iterations at one speed."""
        return bool(self.segments) and self.segments[-1].n >= STEADY_SHARE * self.n


def course(numbers: Sequence[int], times: Sequence[float]) -> IterationProfile:
    """Return the course of a run's measured times in seconds, in their order; empty with fewer than FEWEST.

    `numbers` are those of the iterations, by which changes are named.
    """
    if len(times) < FEWEST or (middle := stats.median(times)) <= 0:
        return IterationProfile()
    logs = [math.log(max(x, middle * 1e-6)) for x in times]
    segments = _segments(logs)
    centres = [stats.median(logs[a:b]) for a, b in segments]
    rests = [y - centre for (a, b), centre in zip(segments, centres, strict=True) for y in logs[a:b]]
    limit = max(math.log(SLOW), SLOW_SD * stats.MAD_TO_SD * stats.mad(rests))
    slow = _far_slower(rests, limit)
    parts = tuple(LevelSegment(numbers[a], b - a, math.exp(c)) for (a, b), c in zip(segments, centres, strict=True))
    bulk = [y for y in rests if y <= limit] if slow else rests
    centred = _levels(bulk, _serial_correlation(rests[:CORRELATED_N]))
    levels = tuple((share, middle * math.exp(y)) for share, y in centred)
    return IterationProfile(parts, levels, slow, middle * math.exp(limit), math.fsum(times) / len(times) / middle)


def marks(profile: IterationProfile) -> Iterable[tuple[str, str]]:
    """Return the caveats of a course, as kind and detail."""
    if len(profile.segments) > 1:
        yield "drift", _changes(profile)
    if profile.levels:
        speeds = ", ".join(
            f"{units.percent(share, 2)} near {units.ms(level_s)} ms" for share, level_s in profile.levels
        )
        n = len(profile.levels)
        yield "levels", f"iterations alternate between {n} speeds ({speeds}): the median shows only one"
    if profile.slow:
        share, mean = units.percent(profile.slow / profile.n, 2), units.percent(profile.mean_over_median - 1, 2)
        yield (
            "stragglers",
            f"{share} of the iterations took more than {units.ms(profile.slow_from_s)} ms: the mean is {mean} above the"
            " median, which hides them",
        )


def _changes(profile: IterationProfile) -> str:
    before, last = profile.segments[-2:]
    levels = [segment.median_s for segment in profile.segments]
    n = len(levels) - 1
    if n == 1:
        ratio = last.median_s / before.median_s
        change = f"{units.percent(abs(ratio - 1), 2)} {'longer' if ratio > 1 else 'less'}"
        text = f"iterations took {change} from number {units.count(last.first)} on"
        text += f", {units.ms(last.median_s)} vs {units.ms(before.median_s)} ms"
    else:
        text = (
            f"the speed changed {n} times, between {units.ms(min(levels))} and {units.ms(max(levels))} ms an iteration"
        )
        text += f", first at iteration {units.count(profile.segments[1].first)}"
        if profile.steady:
            text += f"; steady from iteration {units.count(last.first)} on"
    return text if profile.steady else f"{text}; no steady state was reached"


def _segments(logs: Sequence[float]) -> list[tuple[int, int]]:
    """Return the segments of equal speed, as half-open ranges of positions.

    PELT (Killick, Fearnhead & Eckley 2012, JASA 107, 1590-1598) on medians of blocks, for changes of the mean. The cost
    is scaled by the long-run variance of an AR(1): for autocorrelated times, independent noise would find false changes
    (Shi, Gallagher, Lund & Killick 2022, CSDA 170, 107433). Deviations are clipped against outliers (Fearnhead &
    Rigaill 2019, JASA 114, 169-183). Neighbours less than NOTABLE apart are joined.
    """
    n = len(logs)
    m = min(n, MOST_BLOCKS)
    cuts = [n * k // m for k in range(m + 1)]
    blocks = [stats.median(logs[a:b]) for a, b in pairwise(cuts)]
    ends = _pelt(*_clipped(blocks))
    segments = list(pairwise([0, *(cuts[end] for end in ends)]))
    while len(segments) > 1:
        centres = [stats.median(logs[a:b]) for a, b in segments]
        gaps = [abs(b - a) for a, b in pairwise(centres)]
        least = min(range(len(gaps)), key=gaps.__getitem__)
        if gaps[least] >= math.log1p(NOTABLE):
            break
        segments[least : least + 2] = [(segments[least][0], segments[least + 1][1])]
    return segments


def _clipped(xs: Sequence[float]) -> tuple[list[float], float]:
    """Return the centred values with clipped deviations, and their long-run variance under an AR(1)."""
    middle, rho = stats.median(xs), _autocorrelation(xs)
    step = stats.MAD_TO_SD * stats.median(abs(b - a) for a, b in pairwise(xs))
    step = max(step, 1e-9)
    sd = step / math.sqrt(2 * (1 - rho))
    return [min(max(x - middle, -CLIP * sd), CLIP * sd) for x in xs], sd * sd * (1 + rho) / (1 - rho)


def _autocorrelation(xs: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation from differences, which changes of the mean hardly touch (Chakar, Lebarbier,
    Levy-Leduc & Robin 2017, Bernoulli 23, 1408-1447), 0 to MOST_CORRELATED."""
    step = stats.median(abs(b - a) for a, b in pairwise(xs))
    double_step = stats.median(abs(b - a) for a, b in zip(xs, xs[2:], strict=False))
    rho = (double_step / step) ** 2 - 1 if step > 0 else 0.0
    return min(max(rho, 0.0), MOST_CORRELATED)


def _serial_correlation(rests: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation of values around their segments' medians, 0 to MOST_CORRELATED. Of speeds that
    take turns in a fixed order the estimate from differences would be far too high."""
    total = math.fsum(y * y for y in rests)
    rho = math.fsum(a * b for a, b in pairwise(rests)) / total if total > 0 else 0.0
    return min(max(rho, 0.0), MOST_CORRELATED)


def _pelt(xs: Sequence[float], variance: float) -> list[int]:
    """Return the ends of the segments that minimise the squared deviations over the variance plus the penalties."""
    m = len(xs)
    if m < 2 * SHORTEST:
        return [m]
    penalty = PENALTY * math.log(m) * variance
    sums, squares = [0.0], [0.0]
    for x in xs:
        sums.append(sums[-1] + x)
        squares.append(squares[-1] + x * x)
    best, before = [-penalty] + [math.inf] * m, [0] * (m + 1)
    open_ = [(0, -penalty, 0.0)]  # the start of the last segment, the cost up to it less its square, its sum
    for t in range(SHORTEST, m + 1):
        if t >= 2 * SHORTEST:
            s = t - SHORTEST
            open_.append((s, best[s] - squares[s], sums[s]))
        total = sums[t]
        costs = [cost - (x := total - sum_) * x / (t - s) for s, cost, sum_ in open_]
        least = min(costs)
        best[t], before[t] = least + squares[t] + penalty, open_[costs.index(least)][0]
        if max(costs) > least + penalty:
            open_ = [start for start, cost in zip(open_, costs, strict=True) if cost <= least + penalty]
    ends = [m]
    while before[ends[-1]]:
        ends.append(before[ends[-1]])
    return ends[::-1]


def _far_slower(rests: Sequence[float], limit: float) -> int:
    """Return how many exceed the limit, 0 if no more than SLOW_SHARE explains (binomial test, one-sided)."""
    k = sum(y > limit for y in rests)
    return k if k > 1 and _binomial_tail(k, len(rests), SLOW_SHARE) < SLOW_P else 0


def _binomial_tail(k: int, n: int, p: float) -> float:
    """Return the probability of at least k of n; 1 if that is no more than the mean."""
    if k <= n * p:
        return 1.0
    choices = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    term, tail = math.exp(choices + k * math.log(p) + (n - k) * math.log1p(-p)), 0.0
    while term > 1e-16 * tail:
        tail += term
        term *= (n - k) * p / ((k + 1) * (1 - p))
        k += 1
    return tail


def _levels(rests: Sequence[float], rho: float) -> list[tuple[float, float]]:
    """Return (share, centre) of each level of the logarithms, fastest first; none if they have one level."""
    ordered = _spread(sorted(rests))
    if (n := len(ordered)) > MOST_SORTED:
        ordered = [ordered[n * k // MOST_SORTED] for k in range(MOST_SORTED)]
    parts = _split(ordered, rho, MOST_LEVELS)
    if len(parts) < 2:
        return []
    return [(len(part) / len(ordered), stats.median(part)) for part in parts]


def _split(ordered: list[float], rho: float, most: int) -> list[list[float]]:
    if len(ordered) < 2 * SHORTEST or most < 2:
        return [ordered]
    at = _otsu(ordered)
    low, high = ordered[:at], ordered[at:]
    if not _has_valley(low, high, rho):
        return [ordered]
    parts = _split(low, rho, most - 1)
    return [*parts, *_split(high, rho, most - len(parts))]


def _has_valley(low: list[float], high: list[float], rho: float) -> bool:
    """Return whether two parts of sorted values are levels: values between them are rarer than near either middle.

    The counts are those of windows as wide as 0.4 of the distance. One level has no emptier window between, except
    by chance: a sign test, in which autocorrelated values count as fewer.
    """
    start, end = low[len(low) // 2], high[len(high) // 2]
    distance, ordered = end - start, low + high
    if distance < math.log1p(NOTABLE):
        return False

    def near(centre: float) -> int:
        return bisect_right(ordered, centre + distance / 5) - bisect_left(ordered, centre - distance / 5)

    sides = min(near(start), near(end))
    cut = (low[-1] + high[0]) / 2
    between = min(near(centre) for centre in (cut, *(start + distance * k / 12 for k in range(4, 9))))
    return (sides - between) * math.sqrt((1 - rho) / (1 + rho) / max(sides + between, 1)) > VALLEY_Z


def _spread(ordered: Sequence[float]) -> list[float]:
    """Return the sorted values with ties spread over the clock's resolution: rounded times are not levels."""
    values = [(value, len(list(same))) for value, same in groupby(ordered)]
    if len(values) == len(ordered) or len(values) < 2:
        return list(ordered)
    width = min(b[0] - a[0] for a, b in pairwise(values))
    return [value + width * ((j + 0.5) / n - 0.5) for value, n in values for j in range(n)]


def _otsu(ordered: Sequence[float]) -> int:
    """Return where to cut sorted values so that the variance within both parts is least (Otsu 1979, IEEE Trans. SMC 9,
    62-66)."""
    n, total, left = len(ordered), math.fsum(ordered), 0.0
    best_at, best = 1, -1.0
    middle = total / n
    for k, x in enumerate(ordered[:-1], start=1):
        left += x - middle
        if (between := left * left * (1 / k + 1 / (n - k))) > best:
            best_at, best = k, between
    return best_at
