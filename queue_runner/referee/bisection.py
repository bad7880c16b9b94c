"""The search for the version from which on a command differs, by rounds of pairs of versions. Pure.

A noisy binary search: each gap between two versions has a probability to hold the step, and each round changes all of
them. The version in the middle of the rest is measured next. So no answer is final: later rounds correct a wrong one.

Burnashev & Zigangirov 1974, "An interval estimation problem for controlled observations", Problems of Information
Transmission 10, 223-231. Karp & Kleinberg 2007, "Noisy binary search and its applications", SODA, 881-890.

The probabilities are those of one step of unknown size in normal noise of unknown spread, equal for all gaps before the
first round (Smith 1975, "A Bayesian approach to inference about a change-point", Biometrika 62, 407-416). They only
lead the search. Whether the ends differ, and whether the named step is one, is shown by rounds of these two versions,
with the intervals of analysis/intervals.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate, pairwise

from msgspec import Struct
from msgspec.structs import replace

from queue_runner.analysis import intervals
from queue_runner.analysis.intervals import Decision, Judgement

SURE = 0.95
"""The probability at which a version counts as like the good or the bad end, and from which a step is confirmed."""
DOUBTFUL = 0.5
"""The probability below which the confirmation of a step is given up."""
MOST_OF_ENDS = 40
"""Rounds of the ends, after which it is not known that they differ."""
ROUNDS_A_HALVING = 20
"""All rounds together are at most so many for each halving, for the ends, and for the confirmation."""
_LEAST_SPREAD = 1e-3
"""The spread of a round is at least this share of the step: equal values do not make a version certain."""


class Measured(Struct, frozen=True):
    """Rounds of two versions, by number, in one metric: newer minus older of each round, in the order of the rounds.

    `step`, `levels` and `obstacle` are those of analysis/intervals.Contrast, `unit` is that of the times. An infinite
    `levels` is None: JSON has no infinity.
    """

    older: int
    newer: int
    differences: tuple[float, ...] = ()
    step: float = 0.0
    levels: float | None = 0.0
    unit: str = ""
    obstacle: str = ""


class VersionPair(Struct, frozen=True):
    """Two versions to measure next."""

    older: int
    newer: int


class NamedStep(Struct, frozen=True):
    """The step is between these versions; `judgement` is on rounds of them, and `ends` on those of the ends."""

    older: int
    newer: int
    judgement: Judgement
    ends: Judgement

    @property
    def is_part(self) -> bool:
        """Whether the step is shown to be smaller than the difference of the ends: there are others."""
        size, ends = self.judgement, self.ends
        return size.high < ends.low if ends.mean > 0 else size.low > ends.high


class CannotTell(Struct, frozen=True):
    """No step can be named, and why; `ends` if their difference is known."""

    why: str
    ends: Judgement | None = None


class Bisection(Struct, frozen=True):
    """The rounds so far of versions 0, the good end, to `last`, the bad one, without those that are `skipped`."""

    last: int
    measured: tuple[Measured, ...] = ()
    skipped: frozenset[int] = frozenset()
    margin: float | None = None

    @property
    def versions(self) -> list[int]:
        """The versions that can be measured."""
        return [version for version in range(self.last + 1) if version not in self.skipped]

    @property
    def n_rounds(self) -> int:
        return sum(len(each.differences) for each in self.measured)

    @property
    def most_rounds(self) -> int:
        return ROUNDS_A_HALVING * (2 + max(1, self.last - 1).bit_length())

    def without(self, skipped: Iterable[int]) -> Bisection:
        """Return it with further versions that cannot be measured."""
        return replace(self, skipped=self.skipped.union(skipped))

    def judged(self, older: int, newer: int) -> Judgement:
        """Return the judgement on all rounds of two versions."""
        rounds = [each for each in self.measured if (each.older, each.newer) == (older, newer)]
        contrast = intervals.Contrast(
            [difference for each in rounds for difference in each.differences],
            margin=self.margin,
            step=max((each.step for each in rounds), default=0.0),
            levels=max((math.inf if each.levels is None else each.levels for each in rounds), default=0.0),
        )
        return intervals.judge([contrast])[0]

    def probabilities(self) -> list[float]:
        """Return for each gap between neighbours of `versions` the probability that it holds the step.

        A round of two versions differs by the size of the step if these are on its two sides, else by nothing. Size and
        spread have the usual flat priors, and are integrated out. A gap of skipped versions counts once for each.
        """
        versions = self.versions
        index = {version: at for at, version in enumerate(versions)}
        rounds = [each for each in self.measured if each.older in index and each.newer in index and each.differences]
        n = sum(len(each.differences) for each in rounds)
        sums = [(index[each.older], index[each.newer], len(each.differences), sum(each.differences)) for each in rounds]
        squares = sum(x * x for each in rounds for x in each.differences)
        size = max((abs(total) / count for *_, count, total in sums), default=1.0) or 1.0
        least = n * ((_LEAST_SPREAD * size) ** 2 + max((each.step for each in rounds), default=0.0) ** 2 / 6)
        logs = []
        for gap, (before, after) in enumerate(pairwise(versions)):
            across = [(count, total) for older, newer, count, total in sums if older <= gap < newer]
            count = sum(count for count, _ in across)
            total = sum(total for _, total in across)
            rest = squares - (total**2 / count if count else 0.0)
            logs.append(math.log(after - before))
            if count:
                logs[-1] -= math.log(count) / 2 + (n - 1) / 2 * math.log(max(rest, 0.0) + least)
        most = max(logs)
        weights = [math.exp(x - most) for x in logs]
        total_weight = sum(weights)
        return [weight / total_weight for weight in weights]

    def next(self, current: VersionPair | None = None) -> VersionPair | NamedStep | CannotTell:
        """Return which two versions to measure next, or the answer. Those that are `current` come first while their
        rounds leave their question open."""
        ends = self.judged(0, self.last)
        why = self._why_not(ends)
        if why:
            return CannotTell(why, ends if ends.decision in (Decision.ABOVE, Decision.BELOW) else None)
        if ends.decision is Decision.UNDECIDED:
            return VersionPair(0, self.last)
        versions, chances = self.versions, self.probabilities()
        gap = max(range(len(chances)), key=chances.__getitem__)
        pair = VersionPair(versions[gap], versions[gap + 1])
        if pair == VersionPair(0, self.last):
            return NamedStep(0, self.last, ends, ends)
        if chances[gap] >= (DOUBTFUL if pair == current else SURE):
            step = self.judged(pair.older, pair.newer)
            if step.decision is ends.decision:
                return NamedStep(pair.older, pair.newer, step, ends)
            if step.n < MOST_OF_ENDS:
                return pair if self.n_rounds < self.most_rounds else self._too_many(ends)
            return CannotTell("the rounds of the likeliest step do not show it", ends)
        if self.n_rounds >= self.most_rounds:
            return self._too_many(ends)
        is_bad = dict(zip(versions[1:-1], accumulate(chances), strict=False))
        if current is not None and current.older == 0 and 1 - SURE < is_bad.get(current.newer, 0.0) < SURE:
            return current
        return VersionPair(0, min(is_bad, key=lambda version: abs(is_bad[version] - 0.5)))

    def likeliest(self) -> list[int]:
        """Return the fewest versions of which one is the first of the step, with the probability SURE."""
        ranked = sorted(zip(self.probabilities(), self.versions[1:], strict=True), reverse=True)
        total, likeliest = 0.0, []
        while ranked and total < SURE:
            chance, version = ranked.pop(0)
            total += chance
            likeliest.append(version)
        return sorted(likeliest)

    def like_bad(self, version: int) -> float:
        """Return the probability that a version is like the bad end."""
        return sum(x for after, x in zip(self.versions[1:], self.probabilities(), strict=True) if after <= version)

    def _why_not(self, ends: Judgement) -> str:
        """Return why there is no answer; "" while something may."""
        if obstacle := next((each.obstacle for each in self.measured if each.obstacle), ""):
            return obstacle
        if len({each.unit for each in self.measured if each.differences}) > 1:
            return "some versions report iterations and others do not, so their times cannot be compared"
        if ends.decision is Decision.SAME:
            return "the ends are the same within the margin of --same-within"
        if ends.decision is Decision.UNDECIDED and ends.n >= MOST_OF_ENDS:
            return f"{ends.n} rounds do not show that the ends differ"
        return ""

    def _too_many(self, ends: Judgement) -> CannotTell:
        return CannotTell(f"{self.n_rounds} rounds do not show where the step is", ends)
