"""The decision on a candidate, from the evidence of the rounds so far: keep it, discard it, or neither yet. Pure.

A candidate has two ways to be kept: it is faster and not worse, or better at no more time. It is discarded once both
are closed: excluded by the intervals, or futile. Where noise hides even large gains, it is undecided, and no further
round follows. The intervals are those of analysis/intervals.py, so one may decide after each round. A wrong keep needs
an end of an interval on the wrong side, by one of two ways: each end has half of intervals.ALPHA, so the intervals need
no correction. docs/simulations.md has the rates.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

FIRST_FUTILE = 4
"""The round from which an estimate that is too small closes a way."""
MOST_LEASTS = 10.0
"""An estimate closes a way only if the interval excludes gains of this many times the least one: a noisy machine says
little about a candidate."""
FIRST_LOST = 8
"""The round from which such a candidate is given up."""
MARGIN_SPREADS = 2.0
"""The default margin, in standard deviations of the champion's own rounds. Within one of them, "not worse" is seldom
shown in 12 rounds."""
NO_LOSS_SD = 2.0
"""The c of the interval that shows that nothing is lost: its margin is 1.4 standard deviations of a difference."""
MOST_SLOWER = 0.1
"""The default margin of the time is at most this share, however much the rounds spread."""
LEAST_GAIN = 0.01
"""The default of --gain, a share of the time."""


class Choice(StrEnum):
    KEEP = "keep"
    DISCARD = "discard"
    UNDECIDED = "undecided"


class Way(StrEnum):
    """What a candidate is kept for."""

    FASTER = "faster"
    BETTER = "better"


class Gain(Struct, frozen=True, kw_only=True):
    """By how much the candidate beats the champion in the time or in the metric, positive if it does, and the ends of
    the interval. A loss below `margin` counts as none. A gain below `least` is not worth having. In a contest the
    interval is corrected for the other candidates, so that few of the gains are false; that of `low_alone` and
    `high_alone` is not.

    The rest says it in words: "its loss" is "lower" or "higher", by `size`.
    """

    gain: float
    low: float
    high: float
    margin: float
    least: float
    low_alone: float = -math.inf
    high_alone: float = math.inf
    subject: str = "it"
    better: str = "better"
    worse: str = "worse"
    size: str = ""
    margin_text: str = "the margin"
    least_text: str = "the least gain"

    @property
    def is_gain(self) -> bool:
        return self.low > 0

    @property
    def is_no_loss(self) -> bool:
        return max(self.low, self.low_alone) > -self.margin

    def against_gain(self, n: int) -> str:
        """Return why no gain will be shown, seen after `n` rounds; "" while it may be."""
        if self.high <= 0:
            return f"{self.subject} is not {self.better}: {self.size}"
        if n >= FIRST_FUTILE and self.seems_small and min(self.high, self.high_alone) <= MOST_LEASTS * self.least:
            return f"{self._small()} after {n} rounds: {self.size}"
        return ""

    @property
    def seems_small(self) -> bool:
        return self.gain < self.least / 2

    def _small(self) -> str:
        return f"{self.subject} seems {self.better} by less than half of {self.least_text}"

    def on_noise(self, n: int) -> str:
        """Return why no gain can be shown or excluded, seen after `n` rounds; "" while further ones may help."""
        if n < FIRST_LOST or not self.seems_small:
            return ""
        return (
            f"{self._small()}, but {n} rounds of this noise do not exclude {MOST_LEASTS:g} times as much: {self.size}"
        )

    def against_no_loss(self, n: int) -> str:
        """Return why it will not be shown that nothing is lost, seen after `n` rounds; "" while it may be."""
        if self.high < -self.margin:
            return f"{self.subject} is {self.worse} by more than {self.margin_text}: {self.size}"
        if n >= FIRST_FUTILE and self.gain < -self.margin and min(self.high, self.high_alone) <= self.margin:
            return f"{self.subject} seems {self.worse} by more than {self.margin_text} after {n} rounds: {self.size}"
        return ""

    def on_gain(self) -> str:
        """Return what the rounds say of a gain that is not excluded."""
        return f"{'' if self.is_gain else 'it is open whether '}{self.subject} is {self.better}: {self.size}"

    def on_no_loss(self) -> str:
        """Return what the rounds say of a loss that is not shown."""
        if self.is_no_loss:
            return f"{self.subject} is not {self.worse} by {self.margin_text} or more: {self.size}"
        return f"it is open whether {self.subject} is {self.worse} by less than {self.margin_text}: {self.size}"


class Ruling(Struct, frozen=True):
    """The answer and its reasons, a sentence each. `is_final`: no further round can change that it is undecided."""

    choice: Choice
    reasons: tuple[str, ...]
    is_final: bool = False


def decide(n: int, ways: Collection[Way], time: Gain | None, quality: Gain | None) -> Ruling:
    """Decide after `n` rounds. Without `quality` there is no metric; without `time` the time does not count."""
    needs = {Way.FASTER: (time, quality), Way.BETTER: (quality, time)}
    against: dict[str, None] = {}
    still_open: dict[str, None] = {}
    lost: dict[str, None] = {}
    for way in Way:
        gained, spared = needs[way]
        if way not in ways or gained is None:
            continue
        reasons = [gained.on_gain(), *([spared.on_no_loss()] if spared is not None else [])]
        if gained.is_gain and (spared is None or spared.is_no_loss):
            return Ruling(Choice.KEEP, tuple(reasons))
        closed = [gained.against_gain(n), spared.against_no_loss(n) if spared is not None else ""]
        if any(closed):
            against |= dict.fromkeys(filter(None, closed))
        elif noise := gained.on_noise(n):
            lost[noise] = None
        else:
            still_open |= dict.fromkeys(reasons)
    if still_open or lost:
        return Ruling(Choice.UNDECIDED, tuple(still_open or lost), is_final=not still_open)
    return Ruling(Choice.DISCARD, tuple(against))
