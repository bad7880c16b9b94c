"""The goal of the rounds of two versions in a bisection, and the look after each round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis import run_metrics
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.rounds import contrast
from queue_runner.referee import evidence
from queue_runner.referee.bisection import SURE, Bisection, Measured, NamedStep, VersionPair
from queue_runner.referee.goal import Goal

NAME = "bisect"
MOST_SURE = 0.999
"""A probability above this is not shown: it would be one of the model, not of the machine."""
NOT_COMPARED = "the two versions cannot be compared: mpsq report --explain says why"


class Query(Goal, frozen=True):
    """The purpose of the rounds of a submission: two versions, by number and name, of the bisection of this `key` that
    began at `begun`, and the rounds before it. `metric` is "" for the time."""

    key: str
    begun: str
    older: int
    newer: int
    names: tuple[str, str]
    metric: str
    before: Bisection

    def failure(self, families: Sequence[Family]) -> tuple[int | None, str] | None:
        """Return the version that failed, None where it is nobody's fault, and a sentence; None if all is well."""
        broken = evidence.failure(families, self.metric, self.names)
        if broken is None:
            return None
        return dict(zip(self.names, (self.older, self.newer), strict=True)).get(broken[0]), broken[1]

    def measured(self, families: Sequence[Family]) -> Measured:
        """Return what the rounds show of the two versions."""
        value = partial(run_metrics.value, name=self.metric) if self.metric else None
        family = evidence.of_two(families, self.names)
        if family is None or not family.pairs:
            are_apart = family is None and any(each.arms for each in families)
            return Measured(self.older, self.newer, obstacle=NOT_COMPARED if are_apart else "")
        pair = family.pairs[0].arm, family.pairs[0].baseline
        shown = contrast(pair, family.per_work, value, family.metrics.get(self.metric, "") if value else "")
        return Measured(
            self.older,
            self.newer,
            tuple(difference for difference in shown.differences if difference is not None),
            shown.step,
            shown.levels if math.isfinite(shown.levels) else None,
            "" if value else family.unit,
            shown.obstacle,
        )


def look(families: Sequence[Family], goal: str) -> str:
    """Return what the rounds of two versions answered, "" while more of them are needed. They come in mirrored pairs,
    so an odd one is followed by another."""
    query = Query.from_goal(goal)
    if broken := query.failure(families):
        return f"skip: {broken[1]}"
    measured = query.measured(families)
    if measured.obstacle:
        return f"cannot tell: {measured.obstacle}"
    pair = VersionPair(query.older, query.newer)
    known = replace(query.before, measured=(*query.before.measured, measured))
    if len(measured.differences) % 2 or not measured.differences or known.next(pair) == pair:
        return ""
    return answer(known, pair)


def answer(known: Bisection, pair: VersionPair) -> str:
    """Return the state of two versions: how the newer one relates to the ends, or whether it differs."""
    if pair.older == 0 and pair.newer != known.last:
        chance = known.like_bad(pair.newer)
        word = "like bad" if chance >= SURE else "like good" if chance <= 1 - SURE else "more rounds"
        return f"{word} ({units.percent(min(max(chance, 1 - chance), MOST_SURE))})"
    judgement = known.judged(pair.older, pair.newer)
    is_step = isinstance(known.next(pair), NamedStep)
    return "a step" if is_step else "the ends differ" if pair.older == 0 and judgement.given_after else "no step"
