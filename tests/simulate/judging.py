"""The table of docs/simulations.md on `mpsq judge`: wrong keeps, gains that are kept, and what both cost. Seeded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from queue_runner.analysis.rounds import SAME_WITHIN
from queue_runner.referee.decision import LEAST_GAIN, MARGIN_SPREADS, Choice, Gain, Way, decide
from queue_runner.store.added_rounds import MOST_ROUNDS
from tests.simulate.look_tables import table
from tests.simulate.looks import looks, running_intervals
from tests.simulate.machines import Array, values

N_CANDIDATES = 2_000
SPREAD = 0.01
"""The spread of the time from run to run, as a share; that of the metric is the unit of its effects."""


@dataclass(frozen=True)
class Candidate:
    """The true speedup of a candidate as a share, and its true gain in the metric, in spreads. `timed` and `measured`
    say whether the time and the metric are judged."""

    faster: float = 0.0
    better: float = 0.0
    timed: bool = True
    measured: bool = True


CANDIDATES: Mapping[str, Candidate] = {
    "equal": Candidate(),
    "3 % faster": Candidate(faster=0.03),
    "better by 3 spreads": Candidate(better=3.0),
    "1 % faster": Candidate(faster=0.01),
    "10 % faster, worse by the margin": Candidate(faster=0.1, better=-MARGIN_SPREADS),
    "equal, no metric": Candidate(measured=False),
    "equal, `--time-budget`": Candidate(timed=False),
}


def judge(candidate: Candidate, n: int, noise: str = "normal") -> list[tuple[Choice, int]]:
    """Return the answer on each of `n` candidates, and the round after which it was given or no further one follows."""
    runs = values(noise, n, MOST_ROUNDS, 4)
    time = gains(SPREAD * runs[..., :2], candidate.faster, SPREAD) if candidate.timed else None
    metric = gains(runs[..., 2:], candidate.better) if candidate.measured else None
    ways = [way for way in Way if (candidate.timed if way is Way.FASTER else candidate.measured)]
    answers = []
    for at in range(n):
        for rounds in range(1, MOST_ROUNDS + 1):
            shown = (gain and gain(at, rounds) for gain in (time, metric))
            answer = decide(rounds, ways, *shown).choice
            if answer is not Choice.UNDECIDED:
                break
        answers.append((answer, rounds))
    return answers


GainAt = Callable[[int, int], Gain]
"""Returns the gain of a candidate after so many rounds."""


def gains(runs: Array, effect: float | Array, spread: float = 0.0, n_words: int | Array = 1) -> GainAt:
    """Return the gains of candidates from the runs of champion and candidate, corrected for `n_words`. Of a time with
    this `spread`, the margin is SAME_WITHIN or more, and the least gain LEAST_GAIN."""
    gained = runs[..., 1:] - runs[..., :1] + effect
    answers, alone, (means, _) = looks(gained, n_words), looks(gained, 1), running_intervals(gained, n_words)
    of_champion = [runs[:, :rounds, 0].std(1, ddof=1) for rounds in range(2, runs.shape[1] + 1)]

    def gain(at: int, rounds: int) -> Gain:
        margin = MARGIN_SPREADS * float(of_champion[rounds - 2][at]) if rounds > 1 else 0.0
        ends = (float(x[at, rounds - 1, 0]) for x in (means, answers.lows, answers.highs, alone.lows))
        mean, low, high, low_alone = ends
        margin = max(margin, math.log1p(SAME_WITHIN)) if spread else margin
        least = math.log1p(LEAST_GAIN) if spread else margin
        return Gain(gain=mean, low=low, high=high, low_alone=low_alone, margin=margin, least=least)

    return gain


@dataclass(frozen=True)
class Rates:
    """The share of candidates that were kept, the mean number of rounds, and the median of those that were kept."""

    share_kept: float
    rounds: float
    rounds_kept: float

    @classmethod
    def of(cls, answers: Sequence[tuple[Choice, int]]) -> Rates:
        until_kept = [rounds for choice, rounds in answers if choice is Choice.KEEP]
        mean = fmean(rounds for _, rounds in answers)
        return cls(len(until_kept) / len(answers), mean, median(until_kept) if until_kept else math.nan)


def answers_table(n: int = N_CANDIDATES) -> str:
    """Return what becomes of candidates of known gains."""
    lines = []
    for name, candidate in CANDIDATES.items():
        rates = Rates.of(judge(candidate, n))
        rounds_kept = "-" if math.isnan(rates.rounds_kept) else f"{rates.rounds_kept:.0f}"
        lines.append([name, f"{100 * rates.share_kept:.1f}", f"{rates.rounds:.1f}", rounds_kept])
    return table(["candidate", "kept, %", "rounds, mean", "until kept, median"], lines)


TABLES: Mapping[str, Callable[[], str]] = {"judge": answers_table}
