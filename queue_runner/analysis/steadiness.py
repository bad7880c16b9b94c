"""Whether a run's iterations have one speed: changes within the run, several levels, a share of far slower ones.

The median of a run describes it only if its iterations share one level. Each rule here is calibrated on simulated runs
of white, autocorrelated, skewed and heavy-tailed noise: docs/simulations.md prints how often it is wrong
(`tests/simulate/runs.py`). Times are compared as logarithms, so that a rule means the same at every speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from queue_runner import units
from queue_runner.analysis import stats

NOTABLE = 0.02
"""Smallest relative difference of two levels that is reported: a step of 4 % is, noise of the clock is not."""
FEWEST = 10
"""Fewer iterations have no course."""
MOST_BLOCKS = 300
"""A longer run is reduced to the medians of this many blocks before change points are sought."""
SHORTEST = 5
"""Fewest blocks in a segment."""
PENALTY = 3.0
"""Of one more segment, times the logarithm of the number of blocks."""
CLIP = 3.0
"""Deviations beyond this many standard deviations count as that many: one slow iteration is no change of speed."""
MOST_CORRELATED = 0.95
SLOW = 1.5
"""An iteration that takes this many times its level, and SLOW_SD robust standard deviations more, is far slower."""
SLOW_SD = 6.0
SLOW_SHARE = 0.01
"""Share of far slower iterations that noise with heavy tails may have."""
SLOW_P = 1e-3
MOST_SORTED = 2000
"""The dip is that of this many order statistics of a longer run."""
DIP_LIMIT = 0.65
"""Dip times the root of the sample's effective size above which it is not one level. Of uniform data 0.1 % exceed it
(Hartigan & Hartigan 1985, table 1); of any other unimodal ones fewer."""
MOST_LEVELS = 4


CORRELATED_N = 5000
"""The autocorrelation is that of this many iterations of a longer run."""
STEADY_SHARE = 0.25
"""Share of the iterations after the last change with which a steady state counts as reached: 500 of 2,000 in Barrett
et al. 2017, "Virtual Machine Warmup Blows Hot and Cold", PACMPL 1 (OOPSLA), 52."""


@dataclass(frozen=True, slots=True)
class LevelSegment:
    """Iterations of one speed: the number of the first, how many there are, their median in seconds."""

    first: int
    n: int
    median_s: float


@dataclass(frozen=True, slots=True)
class IterationProfile:
    """What the times of a run show. `segments` are in order of time, one if the speed never changed; `levels` are
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
    shown = tuple(LevelSegment(numbers[a], b - a, math.exp(c)) for (a, b), c in zip(segments, centres, strict=True))
    bulk = [y for y in rests if y <= limit] if slow else rests
    found = _levels(bulk, _serial_correlation(rests[:CORRELATED_N]))
    levels = tuple((share, middle * math.exp(y)) for share, y in found)
    return IterationProfile(shown, levels, slow, middle * math.exp(limit), math.fsum(times) / len(times) / middle)


def marks(found: IterationProfile) -> Iterable[tuple[str, str]]:
    """Return the caveats of a course, as kind and detail."""
    if len(found.segments) > 1:
        yield "drift", _changes(found)
    if found.levels:
        each = ", ".join(f"{units.percent(share, 2)} near {units.ms(level_s)} ms" for share, level_s in found.levels)
        yield "levels", f"iterations alternate between {len(found.levels)} speeds ({each}): the median is only one"
    if found.slow:
        share, mean = units.percent(found.slow / found.n, 2), units.percent(found.mean_over_median - 1, 2)
        yield (
            "stragglers",
            f"{share} of the iterations took more than {units.ms(found.slow_from_s)} ms: the mean is {mean} above the"
            " median, which hides them",
        )


def _changes(found: IterationProfile) -> str:
    before, last = found.segments[-2:]
    levels = [segment.median_s for segment in found.segments]
    n = len(levels) - 1
    if n == 1:
        ratio = last.median_s / before.median_s
        change = f"{units.percent(abs(ratio - 1), 2)} {'longer' if ratio > 1 else 'less'}"
        text = f"from iteration {units.count(last.first)} on an iteration took {change}"
        text += f", {units.ms(last.median_s)} vs {units.ms(before.median_s)} ms"
    else:
        text = (
            f"the speed changed {n} times, between {units.ms(min(levels))} and {units.ms(max(levels))} ms an iteration"
        )
        text += f", first at iteration {units.count(found.segments[1].first)}"
        if found.steady:
            text += f"; steady from iteration {units.count(last.first)} on"
    return text if found.steady else f"{text}; no steady state was reached"


def _segments(logs: Sequence[float]) -> list[tuple[int, int]]:
    """Return the segments of equal speed, as half-open ranges of positions.

    PELT (Killick, Fearnhead & Eckley 2012, JASA 107, 1590-1598) on medians of blocks, for changes of the mean. The cost
    is scaled by the long-run variance of an AR(1), because independent noise assumed of autocorrelated times finds
    changes that are not there (Shi, Gallagher, Lund & Killick 2022, CSDA 170, 107433); deviations are clipped against
    outliers (Fearnhead & Rigaill 2019, JASA 114, 169-183). Neighbours less than NOTABLE apart are joined.
    """
    n = len(logs)
    m = min(n, MOST_BLOCKS)
    cuts = [n * k // m for k in range(m + 1)]
    blocks = [stats.median(logs[a:b]) for a, b in pairwise(cuts)]
    ends = _pelt(*_clipped(blocks))
    found = list(pairwise([0, *(cuts[end] for end in ends)]))
    while len(found) > 1:
        centres = [stats.median(logs[a:b]) for a, b in found]
        gaps = [abs(b - a) for a, b in pairwise(centres)]
        least = min(range(len(gaps)), key=gaps.__getitem__)
        if gaps[least] >= math.log1p(NOTABLE):
            break
        found[least : least + 2] = [(found[least][0], found[least + 1][1])]
    return found


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
    one = stats.median(abs(b - a) for a, b in pairwise(xs))
    two = stats.median(abs(b - a) for a, b in zip(xs, xs[2:], strict=False))
    rho = (two / one) ** 2 - 1 if one > 0 else 0.0
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
    open_: list[int] = [0]
    for t in range(SHORTEST, m + 1):
        if t >= 2 * SHORTEST:
            open_.append(t - SHORTEST)
        costs = [best[s] + squares[t] - squares[s] - (sums[t] - sums[s]) ** 2 / (t - s) for s in open_]
        least = min(range(len(open_)), key=costs.__getitem__)
        best[t], before[t] = costs[least] + penalty, open_[least]
        open_ = [s for s, cost in zip(open_, costs, strict=True) if cost <= best[t]]
    ends = [m]
    while before[ends[-1]]:
        ends.append(before[ends[-1]])
    return ends[::-1]


def _far_slower(rests: Sequence[float], limit: float) -> int:
    """Return how many exceed the limit, 0 if no more than SLOW_SHARE explains (binomial test, one-sided)."""
    k = sum(y > limit for y in rests)
    return k if k > 1 and _binomial_tail(k, len(rests), SLOW_SHARE) < SLOW_P else 0


def _binomial_tail(k: int, n: int, p: float) -> float:
    """Return the probability of at least k of n."""
    if k > n * p * 3 + 30:
        return 0.0
    return max(0.0, 1 - math.fsum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k)))


def _levels(rests: Sequence[float], rho: float) -> list[tuple[float, float]]:
    """Return (share, centre) of each level of the logarithms, fastest first; none if they have one level."""
    ordered = _thinned(_spread(sorted(rests)))
    parts = _split(ordered, rho, MOST_LEVELS)
    if len(parts) < 2:
        return []
    return [(len(part) / len(ordered), stats.median(part)) for part in parts]


def _split(ordered: list[float], rho: float, most: int) -> list[list[float]]:
    n = len(ordered)
    if n < 2 * SHORTEST or most < 2:
        return [ordered]
    if dip(ordered) * math.sqrt(n * (1 - rho) / (1 + rho)) < DIP_LIMIT:
        return [ordered]
    at = _otsu(ordered)
    low, high = ordered[:at], ordered[at:]
    if math.fsum(high) / len(high) - math.fsum(low) / len(low) < math.log1p(NOTABLE):
        return [ordered]
    left = _split(low, rho, most - 1)
    return [*left, *_split(high, rho, most - len(left))]


def _thinned(ordered: list[float]) -> list[float]:
    n = len(ordered)
    return ordered if n <= MOST_SORTED else [ordered[n * k // MOST_SORTED] for k in range(MOST_SORTED)]


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


def dip(x: Sequence[float]) -> float:
    """Return Hartigan's dip of sorted values: the distance of their distribution from the nearest unimodal one.

    Source: Hartigan & Hartigan 1985, "The Dip Test of Unimodality", Annals of Statistics 13, 70-84; algorithm AS 217.
    """
    n = len(x)
    if n < 4 or x[0] == x[-1]:
        return 1 / (2 * n)
    minorant, majorant = _minorant(x), _majorant(x)
    low, high, found = 0, n - 1, 1.0
    while True:
        gcm, lcm = [high], [low]
        while gcm[-1] > low:
            gcm.append(minorant[gcm[-1]])
        while lcm[-1] < high:
            lcm.append(majorant[lcm[-1]])
        apart, ig, ih = _apart(x, gcm, lcm)
        if apart < found:
            break
        for chain, start, sign in ((gcm, ig, 1), (lcm, ih, -1)):
            for end, begin in pairwise(chain[start:]):
                found = max(found, _bulge(x, min(begin, end), max(begin, end), sign))
        if (low, high) == (gcm[ig], lcm[ih]):
            break
        low, high = gcm[ig], lcm[ih]
    return found / (2 * n)


def _minorant(x: Sequence[float]) -> list[int]:
    """Return for each value the one before it on the greatest convex minorant of the distribution up to it."""
    at = [0] * len(x)
    for j in range(1, len(x)):
        k = j - 1
        while k and (x[j] - x[k]) * (k - at[k]) >= (x[k] - x[at[k]]) * (j - k):
            k = at[k]
        at[j] = k
    return at


def _majorant(x: Sequence[float]) -> list[int]:
    """Return for each value the one after it on the least concave majorant from it on."""
    last = len(x) - 1
    at = [last] * len(x)
    for j in range(last - 1, -1, -1):
        k = j + 1
        while k < last and (x[j] - x[k]) * (k - at[k]) >= (x[k] - x[at[k]]) * (j - k):
            k = at[k]
        at[j] = k
    return at


def _apart(x: Sequence[float], gcm: Sequence[int], lcm: Sequence[int]) -> tuple[float, int, int]:
    """Return the greatest distance between minorant and majorant, and where in both it is."""
    ix, iv, ig, ih, apart = len(gcm) - 2, 1, len(gcm) - 1, len(lcm) - 1, 0.0
    if len(gcm) == 2 and len(lcm) == 2:
        return 1.0, ig, ih
    while True:
        low, high = gcm[ix], lcm[iv]
        if low > high:
            before = gcm[ix + 1]
            gap = (high - before + 1) - (x[high] - x[before]) * (low - before) / (x[low] - x[before])
            iv += 1
            if gap >= apart:
                apart, ig, ih = gap, ix + 1, iv - 1
        else:
            before = lcm[iv - 1]
            gap = (x[low] - x[before]) * (high - before) / (x[high] - x[before]) - (low - before - 1)
            ix -= 1
            if gap >= apart:
                apart, ig, ih = gap, ix + 1, iv
        ix, iv = max(ix, 0), min(iv, len(lcm) - 1)
        if gcm[ix] == lcm[iv]:
            return apart, ig, ih


def _bulge(x: Sequence[float], begin: int, end: int, sign: int) -> float:
    """Return how far the distribution leaves the straight line between two of its points, above (1) or below (-1)."""
    if end - begin <= 1 or x[end] == x[begin]:
        return 1.0
    slope = (end - begin) / (x[end] - x[begin])
    if sign > 0:
        return max(j - begin + 1 - (x[j] - x[begin]) * slope for j in range(begin, end + 1))
    return max((x[j] - x[begin]) * slope - (j - begin - 1) for j in range(begin, end + 1))
