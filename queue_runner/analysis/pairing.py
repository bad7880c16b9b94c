"""Which test two arms allow: by rounds, unpaired or none. Decided by when their runs were planned and started alone."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product

from queue_runner.analysis.confidence_interval import Evidence, by_rounds, unpaired

ALPHA = 0.05
APART = 2 / 3
"""Share of all pairs of runs in which those of one arm started first, from which the arms ran one after the other.
Interleaved ones have 0.5 ± 1/(2 rounds), at most 0.625 of 4 rounds; with AR(1) 0.9 and 0.75 a test is wrong in 5 to
22 % (docs/decisions/verdicts.md)."""


class Order(Enum):
    ROUNDS = "by rounds"
    UNPAIRED = "unpaired"
    ONE_AFTER_THE_OTHER = "one after the other"
    TOO_FEW = "too few"


@dataclass(frozen=True)
class Runs:
    """The runs of one arm: the median time of each in seconds; the round in which it was planned, None if unknown; when
    it started, Unix seconds or None. `planned` holds all rounds of the arm, those of failed runs too."""

    times: Sequence[float]
    rounds: Sequence[Hashable | None] = ()
    started: Sequence[float | None] = ()
    planned: frozenset[Hashable] = frozenset()

    @classmethod
    def of(cls, times: Runs | Sequence[float]) -> Runs:
        """Return runs of unknown order with these times. Raises: ValueError for times that are not."""
        made = times if isinstance(times, Runs) else cls(times)
        if not made.times or not all(0 < x < math.inf for x in made.times):
            raise ValueError("run medians of an arm must be positive and finite, and there must be one")
        return made

    def of_rounds(self, rounds: frozenset[Hashable]) -> Runs:
        """Return the runs of these rounds alone."""
        inside = [at for at, key in enumerate(self.rounds) if key in rounds]
        started = [self.started[at] for at in inside] if self.started else ()
        return Runs([self.times[at] for at in inside], [self.rounds[at] for at in inside], started, rounds)


@dataclass(frozen=True)
class Weighed:
    """The times that are compared and what they say; no evidence where their order or number forbids a test. `need` is
    the number of runs of each arm with which the test could decide."""

    order: Order
    arm: Sequence[float]
    baseline: Sequence[float]
    need: int
    evidence: Evidence | None = None


def needed_repeats(n_pairs: int = 1) -> int:
    """Return the minimum number of runs per arm with which `n_pairs` simultaneous comparisons can be significant.

    With n runs each the smallest two-sided p-value is 2 / C(2n, n): 0.1 for 3, 0.029 for 4. Holm's first step requires
    ALPHA / n_pairs: 4 for one pair, 5 for up to 6, 6 for up to 23.
    """
    n = 2
    while 2 / math.comb(2 * n, n) > ALPHA / max(1, n_pairs):
        n += 1
    return n


def needed_rounds(n_pairs: int = 1) -> int:
    """Return the minimum number of rounds with which `n_pairs` comparisons by rounds can be significant.

    With n rounds the smallest two-sided p-value is 2 / 2^n, and it is ALPHA / n_pairs at most: 6 for one pair.
    """
    return math.ceil(math.log2(2 * max(1, n_pairs) / ALPHA))


def weigh(arm: Runs, baseline: Runs, n_pairs: int, n_planned: int = 0) -> Weighed:
    """Compare two arms by the test that their plan allows.

    Arms that were planned together in enough rounds for flips of signs to decide, 2 / 2^rounds <= ALPHA / n_pairs, are
    compared round by round, over the rounds in which both have a run. Others are compared unpaired, without the runs of
    submissions that only one of them was in, if that leaves enough. Those that ran one after the other are not
    compared: the time of day would be a second cause. Of arms that were planned in turn and lost runs, the order of the
    remaining ones says nothing.

    `n_planned` is the number of pairs that were planned, if it is more than `n_pairs`: it helps to choose the test.
    """
    need = needed_repeats(n_pairs)
    common = arm.planned & baseline.planned
    mine, theirs = arm.of_rounds(common), baseline.of_rounds(common)
    if min(len(mine.times), len(theirs.times)) < needed_repeats():
        mine, theirs = arm, baseline
    few = Weighed(Order.TOO_FEW, arm.times, baseline.times, need)
    too_few = min(len(mine.times), len(theirs.times)) < needed_repeats()
    if common and too_few:
        return few
    if _apart(mine.started, theirs.started):
        return Weighed(Order.ONE_AFTER_THE_OTHER, arm.times, baseline.times, need)
    if len(common) >= needed_rounds(max(n_pairs, n_planned)):
        need = needed_rounds(n_pairs)
        by_round = [dict(zip(runs.rounds, runs.times, strict=True)) for runs in (mine, theirs)]
        complete = [key for key in by_round[0] if key in by_round[1] and key in common]
        if len(complete) < needed_repeats():
            return replace(few, need=need)
        first, second = ([of[key] for key in complete] for of in by_round)
        return Weighed(Order.ROUNDS, first, second, need, by_rounds(_logs(first), _logs(second)))
    if too_few:
        return few
    evidence = unpaired(_logs(mine.times), _logs(theirs.times))
    return Weighed(Order.UNPAIRED, mine.times, theirs.times, need, evidence)


def _logs(times: Sequence[float]) -> list[float]:
    return [math.log(x) for x in times]


def _apart(mine: Sequence[float | None], theirs: Sequence[float | None]) -> bool:
    """Return whether one arm's runs started before the other's; False for a single run each and unknown times."""
    known = [[x for x in of if x is not None] for of in (mine, theirs)]
    if min(map(len, known)) < 2:
        return False
    first = sum((a < b) + (a == b) / 2 for a, b in product(*known)) / (len(known[0]) * len(known[1]))
    return max(first, 1 - first) >= APART
