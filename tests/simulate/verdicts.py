"""How often a verdict on equal arms is wrong, how often its interval holds the truth, and what it can show.

Thousands of families a cell: too many for `analysis.evidence` itself, which weighs one pair. What is here decides as
it does, in numpy, and tests/analysis/test_verdicts.py holds the two against each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from queue_runner.analysis import confidence_interval, pairing, significance
from queue_runner.analysis.student import quantile

ALPHA = pairing.ALPHA
SEED = 20_261_122
N_TRIALS = 4_000
FAMILIES = (1, 4, 12, 16)
"""Pairs of a family: so many rows against one baseline."""
SIZES = ((4, 4), (5, 5), (6, 6), (4, 6), (4, 12), (6, 30))
"""Runs of each row, and of the baseline."""
SPREADS = ((0.003, 0.003), (0.1, 0.1), (0.01, 0.003), (0.003, 0.01), (0.03, 0.003), (0.003, 0.03), (0.1, 0.003))
"""Standard deviations of the run medians relative to their mean: of the rows, and of the baseline."""
Array = Any
"""numpy's arrays of floats; numpy has no types that mypy --strict would accept without a plugin."""
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def _two_levels(share: float, within: float) -> Draw:
    def draw(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
        high = rng.random(size) < share
        spread = math.sqrt(share * (1 - share) + within**2)
        return (high - share + within * rng.standard_normal(size)) / spread

    return draw


def _outliers(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    """5 % of the runs take ten times as long; the others vary by 0.01 of that distance."""
    far = rng.random(size) < 0.05
    return (far - 0.05 + 0.01 * rng.standard_normal(size)) / math.sqrt(0.05 * 0.95 + 0.01**2)


def _gamma(rng: np.random.Generator, size: tuple[int, ...]) -> Array:
    return (rng.gamma(0.5, 1, size) - 0.5) / math.sqrt(0.5)


SYMMETRIC: Mapping[str, Draw] = {
    "lognormal": lambda rng, size: rng.standard_normal(size),
    "heavy-tailed (t, 3 df)": lambda rng, size: rng.standard_t(3, size) / math.sqrt(3),
}
"""Deviations of the log of a run's median, with mean 0 and standard deviation 1: the null is of mean logarithms."""
SKEWED: Mapping[str, Draw] = {
    "exponential tail": lambda rng, size: rng.exponential(1, size) - 1,
    "bimodal, 50:50": _two_levels(0.5, 0.05),
    "bimodal, 80:20": _two_levels(0.2, 0.05),
}
UNTUNED: Mapping[str, Draw] = {
    "logistic": lambda rng, size: rng.logistic(0, math.sqrt(3) / math.pi, size),
    "uniform": lambda rng, size: rng.uniform(-math.sqrt(3), math.sqrt(3), size),
    "gamma 1/2 tail": _gamma,
    "5 % outliers x 10": _outliers,
}
"""Shapes that nothing was chosen by."""


def normal(rng: np.random.Generator, size: tuple[int, ...], spread: float) -> Array:
    """Return logs of normal times with mean log 0, to second order in the spread."""
    times = np.maximum(1 + spread * rng.standard_normal(size), 0.05)
    return np.log(times) - _mean_log(spread)


@lru_cache(maxsize=16)
def _mean_log(spread: float) -> float:
    """Return E log(1 + spread Z) by quadrature."""
    z = np.linspace(-8, 8, 4001)
    weights = np.exp(-z * z / 2)
    return float(np.sum(np.log(np.maximum(1 + spread * z, 0.05)) * weights) / np.sum(weights))


@dataclass(frozen=True)
class Cell:
    """What was counted of `n` families of one kind."""

    n: int
    alarms: int
    covered: int
    intervals: int

    @property
    def rate(self) -> float:
        return self.alarms / self.n

    @property
    def upper(self) -> float:
        """99 % upper Monte Carlo limit of the rate: Wilson's score (Wilson 1927, JASA 22, 209-212)."""
        z, n, p = 2.326, self.n, self.rate
        return float((p + z * z / (2 * n) + z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n))

    @property
    def coverage(self) -> float:
        return self.covered / self.intervals if self.intervals else 1.0


@dataclass
class Pairs:
    """The evidence on each pair of families, arrays of (family, pair), as `confidence_interval.Evidence` has it of one.
    Intervals are of each family's first `n_ends` pairs."""

    p: Array
    p_equal: Array
    widening: Array
    shift: Array
    ends: Callable[[float], tuple[Array, Array]] = field(repr=False)


def unpaired(arms: Array, baseline: Array, n_ends: int = 1, exact: bool = False) -> Pairs:
    """Weigh logs of shape (families, pairs, n) against (families, m), as confidence_interval.unpaired does. Where the
    t test alone does not reject, p is that of the t test, a lower limit, unless `exact`."""
    n, m = arms.shape[-1], baseline.shape[-1]
    base = baseline[:, None, :]
    shift = base.mean(-1) - arms.mean(-1)
    va, vb = arms.var(-1, ddof=1), np.broadcast_to(base.var(-1, ddof=1), shift.shape)
    se = np.sqrt(va / n + vb / m)
    unequal = np.maximum(va, vb) > confidence_interval.UNEQUAL**2 * np.minimum(va, vb)
    factors = [confidence_interval.widened(n), confidence_interval.widened(m)]
    widening = np.where(unequal, np.where(va > vb, *factors), 1.0)
    df = min(n, m) - 1
    t = np.abs(shift) / se
    p_t, p_equal = _two_sided(t / widening, df), _two_sided(t, df)
    p = p_t
    permuted = min(n, m) <= confidence_interval.ENOUGH or max(n, m) >= 2 * min(n, m)
    if permuted:
        trial, arm = np.nonzero(p_t <= (2 if exact else ALPHA))
        p_equal = p_equal.copy()
        if len(trial):
            parts = _chunks(arms[trial, arm][:, None], base[trial], shift[trial, arm][:, None])
            p_equal[trial, arm] = np.concatenate([_permuted(*part)[0] for part in parts])[:, 0]
        p = np.maximum(p_equal, p_t)

    def ends(alpha: float) -> tuple[Array, Array]:
        reach = (widening * quantile(alpha, df) * se)[:, :n_ends]
        low, high = shift[:, :n_ends] - reach, shift[:, :n_ends] + reach
        if permuted:
            parts = [_ends(*part, alpha) for part in _chunks(arms[:, :n_ends], base, shift[:, :n_ends])]
            low = np.minimum(low, np.concatenate([one for one, _ in parts]))
            high = np.maximum(high, np.concatenate([one for _, one in parts]))
        return low, high

    return Pairs(p, p_equal, widening, shift, ends)


def _chunks(arms: Array, base: Array, shift: Array) -> Iterable[tuple[Array, Array, Array]]:
    """Yield families so few at a time that their splits fit the processor's cache."""
    step = max(1, 2_000 // (arms.shape[1] * 4))
    for k in range(0, len(arms), step):
        yield arms[k : k + step], base[k : k + step], shift[k : k + step]


@lru_cache(maxsize=8)
def _chosen(n: int, m: int) -> tuple[Array, Array]:
    """Return the splits as rows of 0 and 1, and c of each (confidence_interval._permuted)."""
    every = np.array(confidence_interval.splits(n + m, n))
    chosen = np.zeros((len(every), n + m))
    np.put_along_axis(chosen, every, 1.0, axis=1)
    swapped = (every >= n).sum(1)
    return chosen, 1 - swapped / n - swapped / m


def _permuted(arms: Array, base: Array, shift: Array) -> tuple[Array, Array]:
    """Return p and the difference of each split."""
    n, m = arms.shape[-1], base.shape[-1]
    assert n <= m, "a row has no more runs than the baseline here"
    chosen, _ = _chosen(n, m)
    sums = arms @ chosen[:, :n].T
    sums += base @ chosen[:, n:].T
    d = sums * -(1 / m + 1 / n)
    d += ((arms.sum(-1) + base.sum(-1)) / m)[..., None]
    return (np.abs(d) >= np.abs(shift[..., None]) - 1e-12).mean(-1), d


def _ends(arms: Array, base: Array, shift: Array, alpha: float) -> tuple[Array, Array]:
    _, d = _permuted(arms, base, shift)
    _, c = _chosen(arms.shape[-1], base.shape[-1])
    observed = shift[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        low_side, other = (observed - d) / (1 - c), (observed + d) / (1 + c)
    fixed = np.abs(c) > 1 - 1e-9
    at = math.floor(alpha * len(c) + 1e-9)
    lows = np.where(fixed, -np.inf, np.minimum(low_side, other))
    highs = np.where(fixed, np.inf, np.maximum(low_side, other))
    return np.partition(lows, at, -1)[..., at], -np.partition(-highs, at, -1)[..., at]


def by_rounds(arms: Array, baseline: Array) -> Pairs:
    """Weigh logs of shape (families, pairs, rounds) against (families, rounds), as confidence_interval.by_rounds."""
    ds = baseline[:, None, :] - arms
    n = ds.shape[-1]
    assert 2 ** (n - 1) <= confidence_interval.MAX_SPLITS, "beyond that, splits are drawn"
    members = np.array([[k >> at & 1 for at in range(n - 1)] for k in range(1, 2 ** (n - 1))], dtype=np.float64)
    count = members.sum(1)
    part = ds[..., 1:] @ members.T
    total = ds.sum(-1, keepdims=True)
    mean, others = part / count, (total - part) / (n - count)
    lows, highs = np.minimum(mean, others), np.maximum(mean, others)
    p = (1 + ((lows <= 1e-12) & (highs >= -1e-12)).sum(-1)) / 2 ** (n - 1)

    def ends(alpha: float) -> tuple[Array, Array]:
        at = math.floor(alpha * 2 ** (n - 1) + 1e-9) - 1  # the first of the sorted ends is infinite
        if at < 0:
            return np.full(p.shape, -np.inf), np.full(p.shape, np.inf)
        return np.partition(lows, at, -1)[..., at], -np.partition(-highs, at, -1)[..., at]

    return Pairs(p, p, np.ones(p.shape), ds.mean(-1), ends)


def _two_sided(t: Array, df: int) -> Array:
    """Return student.two_sided of an array."""
    angle = np.arctan(t / math.sqrt(df))
    sine, cosine = np.sin(angle), np.cos(angle)
    odd = df % 2
    term = cosine if odd else np.ones_like(angle)
    total = np.zeros_like(angle)
    for k in range(2 + odd, df + 1, 2):
        total = total + term
        term = term * cosine * cosine * (k - 1) / k
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return np.maximum(1e-12, 1 - within)


def holm_rejects(p: Array) -> Array:
    """Return which hypotheses of each family (last axis) Holm's procedure rejects at ALPHA."""
    n = p.shape[-1]
    order = np.argsort(p, axis=-1)
    ranked = np.take_along_axis(p, order, -1) * np.arange(n, 0, -1)
    passed = np.maximum.accumulate(ranked, axis=-1) <= ALPHA
    rejected = np.zeros_like(passed)
    np.put_along_axis(rejected, order, passed, -1)
    return rejected


def same(pairs: Pairs, n_pairs: int, margin: float = significance.SAME_WITHIN) -> Array:
    """Return which pairs are shown to be the same within the margin, if `n_pairs` are judged together."""
    low, high = pairs.ends(2 * ALPHA / n_pairs)
    return np.expm1(np.maximum(np.abs(low), np.abs(high))) <= margin


def counted(pairs: Pairs, n_pairs: int, ends: tuple[Array, Array]) -> Cell:
    """Count families with a wrong "faster" or "slower" (a difference within the margin, too, which the report calls
    practically the same), and intervals that hold the truth, 0."""
    p = pairs.p[:, :n_pairs]
    rejected = holm_rejects(p)
    low, high = ends
    inside = (low <= 1e-12) & (high >= -1e-12)
    return Cell(len(rejected), int(rejected.any(1).sum()), int(inside.sum()), inside.size)


def independent(draw: Draw | None, spreads: tuple[float, float], size: tuple[int, int], rng: Any, n: int) -> Pairs:
    """Return `n` families of the most rows that run in no order; `draw` None: normal times."""
    mine, theirs = (n, max(FAMILIES), size[0]), (n, size[1])
    if draw is None:
        return unpaired(normal(rng, mine, spreads[0]), normal(rng, theirs, spreads[1]))
    return unpaired(spreads[0] * draw(rng, mine), spreads[1] * draw(rng, theirs))


def in_rounds(kind: str, spreads: tuple[float, float], rounds: int, n_pairs: int, rng: Any, n: int) -> Pairs:
    """Return `n` families of arms that ran in interleaved rounds, weighed as pairing.weigh would."""
    arms, baseline = logs_in_rounds(kind, spreads, rounds, n_pairs, rng, n)
    return (by_rounds if 2.0 ** (1 - rounds) <= ALPHA / n_pairs else unpaired)(arms, baseline)


def logs_in_rounds(
    kind: str, spreads: tuple[float, float], rounds: int, n_pairs: int, rng: Any, n: int
) -> tuple[Array, Array]:
    """Return logs of rows and baseline in shuffled rounds on a machine that changes as `machine_course` says."""
    n_arms = n_pairs + 1
    order = np.argsort(rng.random((n, rounds, n_arms)), axis=-1)  # the place of each arm in its round
    place = np.argsort(order, axis=-1) + n_arms * np.arange(rounds)[None, :, None]
    length = rounds * n_arms
    machine = machine_course(kind, rng, n, length)
    felt = np.take_along_axis(machine, place.reshape(n, -1), 1).reshape(place.shape)
    noise = rng.standard_normal(felt.shape)
    spread = np.array([spreads[1]] + [spreads[0]] * n_pairs)
    if kind == "heteroscedastic drift":
        spread = spread * np.linspace(0.5, 2, rounds)[None, :, None]
    logs = max(spreads) * felt + spread * noise
    return np.moveaxis(logs[..., 1:], 1, 2), logs[..., 0]


def machine_course(kind: str, rng: Any, n: int, length: int) -> Array:
    """Return how a machine's log of time changes from run to run, in units of the larger spread."""
    if kind.startswith("AR(1)"):
        phi = float(kind.split()[1])
        xs = np.empty((n, length))
        xs[:, 0] = rng.standard_normal(n)
        for k in range(1, length):
            xs[:, k] = phi * xs[:, k - 1] + math.sqrt(1 - phi * phi) * rng.standard_normal(n)
        return xs
    if kind.endswith("drift") or kind == "drifting":
        return np.broadcast_to(np.linspace(0, 4, length), (n, length))
    return np.zeros((n, length))


def limit(cells: Iterable[Cell]) -> Cell:
    """Return the cell with the highest upper limit."""
    return max(cells, key=lambda cell: cell.upper)


def rng_of(*names: object) -> np.random.Generator:
    """Return a generator of its own for each cell, so that one can be repeated alone."""
    return np.random.default_rng(
        [SEED, *[sum(ord(c) * 31**at for at, c in enumerate(str(name))) % 2**32 for name in names]]
    )


def shapes() -> Mapping[str, Draw | None]:
    return {"normal": None, **SYMMETRIC, **SKEWED}


def percent(x: float) -> str:
    return f"{100 * x:.1f}"


def words(sizes: Sequence[int]) -> str:
    return "/".join(map(str, sizes))
