"""The table of docs/simulations.md on contests: nights of proposals, each judged by e-LOND at a level of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from queue_runner.referee import contest
from queue_runner.referee.decision import LEAST_GAIN, Choice, Gain, Way, decide
from queue_runner.store.added_rounds import MOST_ROUNDS
from tests.simulate.judging import SPREAD
from tests.simulate.look_tables import table
from tests.simulate.looks import running_intervals
from tests.simulate.machines import Array, rng_of

N_NIGHTS = 1_000
PLANNED = 50
GAIN = 0.03
NULL_SHARES = (0.8, 1.0)


@dataclass(frozen=True)
class Night:
    """The numbers of kept changes that gain something and that gain nothing, of gains that were proposed, the rounds of
    each kept gain, and the rounds of all proposals."""

    gains_kept: int
    nulls_kept: int
    gains: int
    rounds_kept: tuple[int, ...]
    rounds: int

    @property
    def false_share(self) -> float:
        return self.nulls_kept / max(1, self.gains_kept + self.nulls_kept)


def nights(null_share: float, n: int) -> list[Night]:
    """Simulate nights of PLANNED proposals, judged by their time."""
    rng = rng_of("contest", null_share)
    return [_night(rng, null_share) for _ in range(n)]


def _night(rng: np.random.Generator, null_share: float) -> Night:
    gain = np.where(rng.random(PLANNED) < null_share, 0.0, math.log1p(GAIN))
    noise = SPREAD * math.sqrt(2) * rng.standard_normal((PLANNED, MOST_ROUNDS))
    n_kept = {True: 0, False: 0}
    rounds_kept = []
    total = 0
    for number, differences in enumerate(noise + gain[:, None], start=1):
        choice, rounds = _judged(differences, contest.n_words(PLANNED, sum(n_kept.values()), number))
        total += rounds
        if choice is Choice.KEEP:
            is_gain = bool(gain[number - 1])
            n_kept[is_gain] += 1
            rounds_kept += [rounds] if is_gain else []
    return Night(n_kept[True], n_kept[False], int(np.count_nonzero(gain)), tuple(rounds_kept), total)


def _judged(differences: Array, n_words: float) -> tuple[Choice, int]:
    means, half_widths = (x[0, :, 0] for x in running_intervals(differences[None, :, None], n_words))
    lows, highs = np.maximum.accumulate(means - half_widths), np.minimum.accumulate(means + half_widths)
    choice, rounds = Choice.UNDECIDED, 0
    for rounds, (mean, low, high) in enumerate(zip(means, lows, highs, strict=True), start=1):
        gain = Gain(gain=float(mean), low=float(low), high=float(high), margin=0.0, least=math.log1p(LEAST_GAIN))
        choice = decide(rounds, (Way.FASTER,), gain, None).choice
        if choice is not Choice.UNDECIDED:
            break
    return choice, rounds


def nights_table(n: int = N_NIGHTS) -> str:
    """Return what a night keeps, by the share of proposals that gain nothing."""
    lines = []
    for null_share in NULL_SHARES:
        all_nights = nights(null_share, n)
        gains = sum(night.gains for night in all_nights)
        share_found = f"{100 * sum(night.gains_kept for night in all_nights) / gains:.1f}" if gains else "-"
        rounds = [rounds for night in all_nights for rounds in night.rounds_kept]
        lines.append(
            [
                f"{100 * null_share:.0f} %",
                share_found,
                f"{median(rounds):.0f}" if rounds else "-",
                f"{100 * fmean(night.false_share for night in all_nights):.1f}",
                f"{100 * fmean(night.nulls_kept > 0 for night in all_nights):.1f}",
                f"{fmean(night.rounds for night in all_nights) / PLANNED:.1f}",
            ]
        )
    heads = ["gain nothing", "gains kept, %", "after rounds, median", "of the kept gain nothing, %"]
    return table([*heads, "nights that keep such, %", "rounds a proposal"], lines)


TABLES: Mapping[str, Callable[[], str]] = {"contest": nights_table}
