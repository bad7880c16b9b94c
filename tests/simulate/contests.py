"""The table of docs/simulations.md on contests: nights of proposals, each judged by e-LOND at a level of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np
from msgspec import structs

from queue_runner.referee import contest
from queue_runner.referee.decision import Choice, Way, decide
from queue_runner.spec import MOST_ROUNDS
from tests.simulate.judging import SPREAD, GainAt, gains
from tests.simulate.look_tables import table
from tests.simulate.machines import rng_of

N_NIGHTS = 1_000
PLANNED = 50
GAIN = 0.03
NULL_SHARES = (0.8, 1.0)


@dataclass
class Night:
    """The numbers of kept changes that gain something and that gain nothing, of gains that were proposed, the rounds
    and the measured size of each kept gain, and the rounds of all proposals."""

    gains_kept: int = 0
    nulls_kept: int = 0
    gains: int = 0
    rounds_kept: list[int] = field(default_factory=list)
    sizes_kept: list[float] = field(default_factory=list)
    rounds: int = 0

    @property
    def n_kept(self) -> int:
        return self.gains_kept + self.nulls_kept

    @property
    def false_share(self) -> float:
        return self.nulls_kept / max(1, self.n_kept)


def nights(null_share: float, n: int, *, measured: bool = False) -> list[Night]:
    """Simulate nights of PLANNED proposals, judged by their time, and with `measured` by a metric that none changes."""
    rng = rng_of("contest", null_share, measured)
    simulated = [Night() for _ in range(n)]
    for number in range(1, PLANNED + 1):
        effects = np.where(rng.random(n) < null_share, 0.0, math.log1p(GAIN))
        words = np.array([contest.n_words(PLANNED, night.n_kept, number) for night in simulated])
        runs = rng.standard_normal((n, MOST_ROUNDS, 4))
        time = gains(SPREAD * runs[..., :2], effects[:, None, None], SPREAD, words[:, None, None])
        metric = gains(runs[..., 2:], 0.0, n_words=words[:, None, None]) if measured else None
        for at, night in enumerate(simulated):
            _judge(night, at, time, metric, bool(effects[at]))
    return simulated


def _judge(night: Night, at: int, time: GainAt, metric: GainAt | None, is_gain: bool) -> None:
    ways = tuple(Way) if metric else (Way.FASTER,)
    choice, rounds = Choice.UNDECIDED, 0
    is_final = False
    while choice is Choice.UNDECIDED and not is_final and rounds < MOST_ROUNDS:
        rounds += 1
        choice, _, is_final = structs.astuple(decide(rounds, ways, time(at, rounds), metric and metric(at, rounds)))
    night.rounds += rounds
    night.gains += is_gain
    if choice is Choice.KEEP and is_gain:
        night.gains_kept += 1
        night.rounds_kept.append(rounds)
        night.sizes_kept.append(math.expm1(time(at, rounds).gain))
    elif choice is Choice.KEEP:
        night.nulls_kept += 1


def nights_table(n: int = N_NIGHTS) -> str:
    """Return what a night keeps, by the share of proposals that gain nothing and by the values judged."""
    lines = []
    for measured, null_share in ((measured, share) for measured in (False, True) for share in NULL_SHARES):
        simulated = nights(null_share, n, measured=measured)
        proposed = sum(night.gains for night in simulated)
        share_kept = f"{100 * sum(night.gains_kept for night in simulated) / proposed:.1f}" if proposed else "-"
        rounds = [rounds for night in simulated for rounds in night.rounds_kept]
        sizes = [size for night in simulated for size in night.sizes_kept]
        lines.append(
            [
                "time and metric" if measured else "time",
                f"{100 * null_share:.0f} %",
                share_kept,
                f"{median(rounds):.0f}" if rounds else "-",
                f"{100 * fmean(sizes):.2f} %" if sizes else "-",
                f"{100 * fmean(night.false_share for night in simulated):.1f}",
                f"{100 * fmean(night.nulls_kept > 0 for night in simulated):.1f}",
                f"{fmean(night.rounds for night in simulated) / PLANNED:.1f}",
            ]
        )
    heads = ["judged by", "gain nothing", "gains kept, %", "after rounds, median", "a gain of 3 % looks like"]
    heads += ["of the kept gain nothing, %", "nights that keep such, %", "rounds a proposal"]
    return table(heads, lines)


TABLES: Mapping[str, Callable[[], str]] = {"contest": nights_table}
