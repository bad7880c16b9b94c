"""Verdicts and intervals from rounds, valid at every look (docs/methodology.md).

A round is one run of every row. A contrast is one row against its baseline in one metric: one difference a round, or,
where the rounds ran on several machines of one kind, one a machine: the mean of its rounds. The evidence after n units
is the Bayes factor of the t statistic for an effect ~ N(0, c^2) in standard deviations.
For normal differences the chance that it ever reaches 1/alpha is at most alpha. So one may look after each round, stop,
and add rounds later. docs/simulations.md has the rates.

Gronau, Ly & Wagenmakers 2020, "Informed Bayesian t-Tests", The American Statistician 74, 137-143.
Perez-Ortiz, Lardy, de Heide & Grunwald 2024, "E-statistics, group invariance and anytime-valid testing", Annals of
Statistics 52, 1410-1432.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from enum import StrEnum
from operator import itemgetter
from statistics import fmean, variance
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

ALPHA = 0.05
EFFECT_SD = 5.0
"""c: 5 is as safe as 3 in each simulated cell, and decides a difference of ten standard deviations a round earlier. A
question about differences of another size, known before its first round, has another c."""
PRIOR_ROUNDS = 1.0
"""d0: the weight of the other contrasts' variance, in rounds. With 2, verdicts on normal noise are wrong too often."""
FIRST_LOOK = 3
FIRST_LOOK_WITH_LEVELS = 8
"""The same for a row that is known to have several levels: its first rounds may fall on one level by chance."""
MOST_ROUNDS = 200
"""A number of rounds above this is not suggested."""
LOPSIDED_RUNS = 2
LOPSIDED_SHARE = 0.1
"""Runs left out of one row beyond those of the other, and their share of the rounds, from which no verdict is given."""


class Decision(StrEnum):
    """Of the difference: above zero, below zero, within the margin on both sides, or none of these so far."""

    ABOVE = "above"
    BELOW = "below"
    SAME = "the same"
    UNDECIDED = "undecided"


class Contrast(Struct, frozen=True):
    """A row minus its baseline in one metric, by round; None where one of the two runs is missing.

    A time enters as its logarithm, negated: the difference is the logarithm of the speedup. `step` is the rounding step
    and `margin` the half width of "the same", both in the unit of the difference. A difference of at most `levels` may
    come from rows that have several levels; inf where their distance is unknown. With an `obstacle` there is no
    verdict. `machines` has that of each round, if there are several: they are the unit, as rounds of one are alike.
    """

    differences: Sequence[float | None]
    margin: float | None = None
    step: float = 0.0
    levels: float = 0.0
    obstacle: str = ""
    machines: Sequence[Hashable] = ()


class Estimate(Struct, frozen=True):
    """The difference after n units: its mean, the shrunk variance of one unit, and that variance's degrees of freedom.

    Where machines are the units, `of_rounds` has the same for rounds, and the wider of both intervals counts: the
    variance between few machines may be small by chance."""

    n: int
    mean: float
    variance: float
    freedom: float
    step: float = 0.0
    of_rounds: Estimate | None = None

    @property
    def n_rounds(self) -> int:
        """Number of complete rounds."""
        return self.of_rounds.n if self.of_rounds else self.n

    def half_width(self, n_words: int, effect_sd: float = EFFECT_SD) -> float:
        """Return the half width of the interval: all mu with E_n(mu) < n_words / alpha, where
        E_n(mu) = g^(-1/2) [(1 + t^2 / (nu g)) / (1 + t^2 / nu)]^(-(nu + 1) / 2) and t^2 = n (mean - mu)^2 / variance.

        Never less than a rounding step, because equal roundings of both rows do not average out."""
        g = 1 + self.n * effect_sd**2
        a = (n_words / ALPHA * math.sqrt(g)) ** (2 / (self.freedom + 1))
        if a >= g:
            return math.inf
        t2 = self.freedom * (a - 1) / (1 - a / g)
        least = self.of_rounds.half_width(n_words, effect_sd) if self.of_rounds else self.step
        return max(least, math.sqrt(t2 * self.variance / self.n))


class Judgement(Struct, frozen=True, kw_only=True):
    """The answer for one contrast after `n` complete rounds, on so many `machines`.

    `decision` was given after `given_after` of them and stays. `low` and `high` are the ends of the interval: what no
    look so far has excluded; infinite while too few rounds exclude anything. `more` is about how many further units
    would decide, None if too many. `contradicted`: later rounds contradicted what earlier ones had excluded.
    """

    decision: Decision
    given_after: int | None
    n: int
    mean: float
    low: float
    high: float
    within_margin: bool
    more: int | None
    contradicted: bool = False
    machines: int = 1
    waits_for_levels: bool = False


def all_pairs(n_rows: int) -> int:
    """Return the number of verdicts if any two rows may be compared: for another baseline, and for compare."""
    return n_rows * (n_rows - 1) // 2


def lopsided(left_out: int, of_baseline: int, rounds: int) -> bool:
    """Return whether the runs left out concentrate in one of two rows, whose slow rounds may have vanished."""
    excess = abs(left_out - of_baseline)
    return excess >= max(LOPSIDED_RUNS, LOPSIDED_SHARE * rounds)


def judge(contrasts: Sequence[Contrast], n_words: int | None = None, effect_sd: float = EFFECT_SD) -> list[Judgement]:
    """Judge the contrasts of one question in one metric; the differences of all stand in the order of the rounds.

    `n_words` is the number of contrasts that the question declares, times its metrics, whatever is shown of it. The
    chance that any of so many words is ever wrong is at most ALPHA.
    """
    n_words = n_words or len(contrasts)
    estimates = zip(contrasts, _estimates(contrasts), strict=True)
    return [_judge(contrast, looks, n_words, effect_sd) for contrast, looks in estimates]


def _estimates(contrasts: Sequence[Contrast]) -> list[list[Estimate]]:
    """Yield, for each contrast, the estimates after each of its complete rounds."""
    of_rounds = _shrunk_all(contrasts, [list(_moments(contrast.differences)) for contrast in contrasts])
    if not any(contrast.machines for contrast in contrasts):
        return of_rounds
    of_units = _shrunk_all(contrasts, [list(_moments_of_units(contrast)) for contrast in contrasts])
    for contrast, units, rounds in zip(contrasts, of_units, of_rounds, strict=True):
        if contrast.machines:
            rounds[:] = [replace(unit, of_rounds=round) for unit, round in zip(units, rounds, strict=True)]
    return of_rounds


def _shrunk_all(
    contrasts: Sequence[Contrast], moments: Sequence[Sequence[tuple[int, float, float]]]
) -> list[list[Estimate]]:
    """Return the estimates from the moments after each round. Variances are shrunk towards the mean of all
    contrasts."""
    means: list[float | None] = []
    for at in range(max(map(len, moments), default=0)):
        variances = [rows[at][2] for rows in moments if at < len(rows) and rows[at][0] > 1]
        means.append(fmean(variances) if len(variances) > 1 else None)
    return [
        [
            _shrunk(*row, mean, contrast.step)
            for difference, row, mean in zip(contrast.differences, rows, means, strict=False)
            if difference is not None
        ]
        for contrast, rows in zip(contrasts, moments, strict=True)
    ]


def _moments(differences: Sequence[float | None]) -> Iterator[tuple[int, float, float]]:
    """Yield the number, mean and variance of the differences up to each round (Welford 1962)."""
    n, mean, squares = 0, 0.0, 0.0
    for difference in differences:
        if difference is not None:
            n += 1
            distance = difference - mean
            mean += distance / n
            squares += distance * (difference - mean)
        yield n, mean, squares / (n - 1) if n > 1 else 0.0


def _moments_of_units(contrast: Contrast) -> Iterator[tuple[int, float, float]]:
    """Yield the same for machines, each with the mean of its differences, or for rounds without machines."""
    if not contrast.machines:
        yield from _moments(contrast.differences)
        return
    by_machine: dict[Hashable, list[float]] = {}
    for machine, difference in zip(contrast.machines, contrast.differences, strict=True):
        if difference is not None:
            by_machine.setdefault(machine, []).append(difference)
        means = [fmean(differences) for differences in by_machine.values()]
        yield len(means), fmean(means) if means else 0.0, variance(means) if len(means) > 1 else 0.0


def _shrunk(n: int, mean: float, variance: float, typical: float | None, step: float) -> Estimate:
    """Shrink the variance towards the `typical` one (Smyth 2004, "Linear Models and Empirical Bayes Methods",
    Statistical Applications in Genetics and Molecular Biology 3, 3), and add that of two roundings."""
    prior = 0.0 if typical is None else PRIOR_ROUNDS
    freedom = prior + n - 1
    shrunk = (prior * (typical or 0.0) + (n - 1) * variance) / freedom if freedom else 0.0
    return Estimate(n, mean, shrunk + step**2 / 6, freedom, step)


def _judge(contrast: Contrast, looks: Sequence[Estimate], n_words: int, effect_sd: float) -> Judgement:
    """Look after each round. The interval only narrows, because what one look excludes stays excluded, until the mean
    of all rounds leaves it: then the rounds contradict each other, and it starts anew from all of them."""
    low, high = -math.inf, math.inf
    decision, given_after, contradicted = Decision.UNDECIDED, None, False
    for look in looks:
        if look.n < FIRST_LOOK or look.n_rounds < _first_look(contrast, look):
            continue
        half_width = look.half_width(n_words, effect_sd)
        low, high = max(low, look.mean - half_width), min(high, look.mean + half_width)
        if not low <= look.mean <= high:
            low, high = look.mean - half_width, look.mean + half_width
            decision, given_after, contradicted = Decision.UNDECIDED, None, True
        if decision is Decision.UNDECIDED and not contrast.obstacle:
            decision = decide(low, high, contrast.margin)
            given_after = None if decision is Decision.UNDECIDED else look.n_rounds
    last = looks[-1] if looks else Estimate(0, math.nan, math.nan, 0.0)
    first = _first_look(contrast, last)
    return Judgement(
        decision=decision,
        given_after=given_after,
        n=last.n_rounds,
        machines=last.n if contrast.machines else 1,
        mean=last.mean,
        low=low,
        high=high,
        within_margin=contrast.margin is not None and -contrast.margin < low and high < contrast.margin,
        more=None if given_after or contrast.obstacle else _more(last, n_words, contrast.margin, first),
        contradicted=contradicted,
        waits_for_levels=first > FIRST_LOOK and last.n_rounds < first,
    )


def _first_look(contrast: Contrast, look: Estimate) -> int:
    """Return the number of rounds from which there may be a word. A difference above that of the levels does not come
    from the choice of level in the first rounds."""
    return FIRST_LOOK_WITH_LEVELS if contrast.levels and not abs(look.mean) > contrast.levels else FIRST_LOOK


def decide(low: float, high: float, margin: float | None) -> Decision:
    """Return the decision for an interval of the difference."""
    if low > 0:
        return Decision.ABOVE
    if high < 0:
        return Decision.BELOW
    if margin is not None and -margin < low and high < margin:
        return Decision.SAME
    return Decision.UNDECIDED


def _more(last: Estimate, n_words: int, margin: float | None, first: int) -> int | None:
    """Return about how many more units decide, if the mean and the variance stay as they are."""
    if last.n < 2:
        return first - last.n
    reach = max(abs(last.mean), (margin or 0.0) - abs(last.mean))
    for n in range(max(first, last.n + 1), MOST_ROUNDS):
        if replace(last, n=n, freedom=last.freedom + n - last.n, of_rounds=None).half_width(n_words) < reach:
            return n - last.n
    return None


class ClosedRound(NamedTuple):
    """A round that was formed afterwards: when the run that completed it started, Unix seconds, the difference, and
    whether the row came first."""

    completed_at: float
    difference: float
    row_first: bool


def close_rounds(row: Sequence[tuple[float, float]], baseline: Sequence[tuple[float, float]]) -> list[ClosedRound]:
    """Form rounds of runs without planned ones, given as (start, value): a round closes at the first run that completes
    both rows, and no run belongs to two rounds. Where a row ran several times in a round, their mean counts."""
    runs = [*((*run, True) for run in row), *((*run, False) for run in baseline)]
    rounds: list[ClosedRound] = []
    values: dict[bool, list[float]] = {}
    for started_at, value, is_row in sorted(runs, key=itemgetter(0)):
        values.setdefault(is_row, []).append(value)
        if len(values) == 2:
            rounds.append(ClosedRound(started_at, fmean(values[True]) - fmean(values[False]), next(iter(values))))
            values = {}
    return rounds


def balanced(rounds: Sequence[ClosedRound]) -> bool:
    """Return whether each row came first in a third of the rounds or more: one always before the other looks like a
    machine that warms up."""
    firsts = sum(closed.row_first for closed in rounds)
    return bool(rounds) and len(rounds) <= 3 * firsts <= 2 * len(rounds)
