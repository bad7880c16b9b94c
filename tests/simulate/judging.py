"""The table of docs/simulations.md on `mpsq judge`: wrong keeps, gains that are kept, and what both cost. Seeded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from queue_runner.analysis.rounds import SAME_WITHIN
from queue_runner.referee.decision import LEAST_GAIN, MARGIN_SPREADS, MOST_SLOWER, NO_LOSS_SD, Choice, Gain, Way, decide
from queue_runner.spec import MOST_ROUNDS
from tests.simulate.look_tables import table
from tests.simulate.looks import looks, running_intervals
from tests.simulate.machines import Array, values

N_CANDIDATES = 2_000
SPREAD = 0.01
"""The spread of the time from run to run, as a share; that of the metric is the unit of its effects."""


@dataclass(frozen=True)
class Candidate:
    """The true speedup of a candidate as a share, and its true gain in the metric, in spreads. `timed` and `measured`
    say whether the time and the metric are judged. `spread` is that of the time."""

    faster: float = 0.0
    better: float = 0.0
    timed: bool = True
    measured: bool = True
    spread: float = SPREAD


CANDIDATES: Mapping[str, Candidate] = {
    "equal": Candidate(),
    "3 % faster": Candidate(faster=0.03),
    "better by 3 spreads": Candidate(better=3.0),
    "1 % faster": Candidate(faster=0.01),
    "10 % faster, worse by the margin": Candidate(faster=0.1, better=-MARGIN_SPREADS),
    "equal, no metric": Candidate(measured=False),
    "equal, `--time-budget`": Candidate(timed=False),
    "equal, the time spreads by 3 %": Candidate(spread=0.03),
    "equal, 10 %": Candidate(spread=0.1),
    "3 % faster, 10 %": Candidate(faster=0.03, spread=0.1),
    "30 % faster, 10 %": Candidate(faster=0.3, spread=0.1),
    "better by 3 spreads, 10 %": Candidate(better=3.0, spread=0.1),
}


def judge(candidate: Candidate, n: int, noise: str = "normal") -> list[tuple[Choice, int]]:
    """Return the answer on each of `n` candidates, and the round after which it was given or no further one follows."""
    runs = values(noise, n, MOST_ROUNDS, 4)
    spread = candidate.spread
    time = gains(spread * runs[..., :2], math.log1p(candidate.faster), spread) if candidate.timed else None
    metric = gains(runs[..., 2:], candidate.better) if candidate.measured else None
    ways = [way for way in Way if (candidate.timed if way is Way.FASTER else candidate.measured)]
    answers = []
    for at in range(n):
        for rounds in range(1, MOST_ROUNDS + 1):
            shown = (gain and gain(at, rounds) for gain in (time, metric))
            ruling = decide(rounds, ways, *shown)
            if ruling.choice is not Choice.UNDECIDED or ruling.is_final:
                break
        answers.append((ruling.choice, rounds))
    return answers


GainAt = Callable[[int, int], Gain]
"""Returns the gain of a candidate after so many rounds."""


def gains(runs: Array, effect: float | Array, spread: float = 0.0, n_words: int | Array = 1) -> GainAt:
    """Return the gains of candidates from the runs of champion and candidate, corrected for `n_words`. Of a time with
    this `spread`, the margin is SAME_WITHIN to MOST_SLOWER, and the least gain LEAST_GAIN."""
    gained = runs[..., 1:] - runs[..., :1] + effect
    answers, (means, _) = looks(gained, n_words), running_intervals(gained, n_words)
    alone = looks(gained, 1, c=NO_LOSS_SD)
    of_champion = [runs[:, :rounds, 0].std(1, ddof=1) for rounds in range(2, runs.shape[1] + 1)]

    def gain(at: int, rounds: int) -> Gain:
        margin = MARGIN_SPREADS * float(of_champion[rounds - 2][at]) if rounds > 1 else 0.0
        names = ("gain", "low", "high", "low_alone", "high_alone")
        arrays = (means, answers.lows, answers.highs, alone.lows, alone.highs)
        ends = {name: float(x[at, rounds - 1, 0]) for name, x in zip(names, arrays, strict=True)}
        margin = max(math.log1p(SAME_WITHIN), min(margin, math.log1p(MOST_SLOWER))) if spread else margin
        return Gain(**ends, margin=margin, least=math.log1p(LEAST_GAIN) if spread else margin)

    return gain


@dataclass(frozen=True)
class Rates:
    """The shares of candidates that were kept and discarded, the mean number of rounds, and the median of those that
    were kept."""

    share_kept: float
    share_discarded: float
    rounds: float
    rounds_kept: float

    @classmethod
    def of(cls, answers: Sequence[tuple[Choice, int]]) -> Rates:
        until_kept = [rounds for choice, rounds in answers if choice is Choice.KEEP]
        mean = fmean(rounds for _, rounds in answers)
        discarded = fmean(choice is Choice.DISCARD for choice, _ in answers)
        return cls(len(until_kept) / len(answers), discarded, mean, median(until_kept) if until_kept else math.nan)


def answers_table(n: int = N_CANDIDATES) -> str:
    """Return what becomes of candidates of known gains."""
    lines = []
    for name, candidate in CANDIDATES.items():
        rates = Rates.of(judge(candidate, n))
        rounds_kept = "-" if math.isnan(rates.rounds_kept) else f"{rates.rounds_kept:.0f}"
        shares = (f"{100 * share:.1f}" for share in (rates.share_kept, rates.share_discarded))
        lines.append([name, *shares, f"{rates.rounds:.1f}", rounds_kept])
    return table(["candidate", "kept, %", "discarded, %", "rounds, mean", "until kept, median"], lines)


TABLES: Mapping[str, Callable[[], str]] = {"judge": answers_table}
