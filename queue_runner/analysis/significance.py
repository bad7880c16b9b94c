"""Verdicts on whether one arm is faster than another, from one number per run, never from iterations.

The iterations of a run share its thermal state, memory layout and drift: a test over them calls two equal
configurations different half of the time (docs/methodology.md). The sampling unit is the run, its value the median.
Which test applies is chosen by when the runs were planned and started (`pairing`), never by what they measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from queue_runner.analysis.confidence_interval import UNEQUAL, Evidence, reach, widened
from queue_runner.analysis.pairing import ALPHA, Order, Runs, Weighed, needed_repeats, weigh
from queue_runner.analysis.stats import geometric_mean

SAME_WITHIN = 0.01
"""Default margin of --same-within: ±1 %, the noise threshold of Criterion.rs."""
MOST_RUNS = 200
"""A number of runs above this is not suggested: another machine or a quieter one would be."""

AFTER_LOOKS = {1: 0.08, 2: 0.10, 4: 0.14, 9: 0.19}
"""Share of equal pairs that get "faster" or "slower" at some time if runs are added until there is a verdict, by how
often at most; simulated by tests/simulate, printed in docs/simulations.md."""


class Word(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference shown"
    SAME = "practically the same"
    TOO_FEW = "too few repeats"
    UNEQUAL = "cannot tell: unequal spread"
    NOT_IN_TURN = "not interleaved"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on an arm against its baseline. `speedup` above 1: the arm takes less time.

    `low` and `high` are the ends of the 95 % interval of the speedup, `p` the two-sided p-value, `p_corrected` the same
    corrected by Holm for all pairs judged together; None with too few runs, or where their order forbids a test. `need`
    is the number of runs per arm with which these pairs can get a verdict, None where no number would do.
    `same_within` is the smallest margin within which these runs show that both are the same, `visible` the difference
    that so many runs of this spread would find in 80 % of cases (0.02: 2 %), both corrected for all pairs. `arm_s` and
    `baseline_s` are the geometric means of the runs compared: `n` and `n_baseline`, or n rounds.
    """

    word: Word
    speedup: float
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None
    n: int
    n_baseline: int
    need: int | None
    arm_s: float
    baseline_s: float
    same_within: float | None = None
    visible: float | None = None
    n_rounds: int = 0

    @property
    def decided(self) -> bool:
        """Whether the runs allow a verdict."""
        return self.word not in (Word.TOO_FEW, Word.UNEQUAL, Word.NOT_IN_TURN)

    @property
    def short(self) -> str:
        """The word, or how many runs would give one."""
        if self.word is Word.TOO_FEW:
            return f"need {self.need} runs each"
        if self.word is Word.UNEQUAL:
            return f"unequal spread: {f'need {self.need} runs each' if self.need else 'cannot tell'}"
        return str(self.word)

    @property
    def brief(self) -> str:
        """The same in two or three words, for a table that has little room."""
        if self.word is Word.TOO_FEW:
            return f"need {self.need} each"
        if self.word is Word.UNEQUAL:
            return "unequal spread"
        return {Word.NO_DIFFERENCE: "no difference", Word.SAME: "same"}.get(self.word, str(self.word))

    def __str__(self) -> str:
        if self.word is Word.UNEQUAL and self.need:
            return f"{self.word}; {self.need} runs each would do"
        return f"{self.word} ({self.short})" if self.word is Word.TOO_FEW else str(self.word)

    def mirrored(self) -> Verdict:
        """Return the verdict on the baseline against the arm."""
        return replace(
            self,
            word={Word.FASTER: Word.SLOWER, Word.SLOWER: Word.FASTER}.get(self.word, self.word),
            speedup=1 / self.speedup,
            low=1 / self.high if self.high else None,
            high=1 / self.low if self.low else None,
            n=self.n_baseline,
            n_baseline=self.n,
            arm_s=self.baseline_s,
            baseline_s=self.arm_s,
        )


def compare_all(
    pairs: Sequence[tuple[Runs | Sequence[float], Runs | Sequence[float]]],
    same_within: float | None = None,
    n_planned: int = 0,
) -> list[Verdict]:
    """Judge many (arm, baseline) pairs together: the chance that any "faster" or "slower" is wrong is at most 5 %,
    whichever of the pairs differ. So is that of any "practically the same", within `same_within` (default SAME_WITHIN).
    docs/simulations.md has the exceptions. Intervals are not simultaneous.

    Each is judged by run medians of times (seconds, positive). `n_planned` is the number of pairs that were planned, if
    there are more: it helps to choose the test. Raises: ValueError when an arm is empty or holds a time that is not
    positive and finite.
    """
    margin = SAME_WITHIN if same_within is None else same_within
    both = [(Runs.of(arm), Runs.of(baseline)) for arm, baseline in pairs]
    weighed = [weigh(arm, baseline, len(pairs), n_planned) for arm, baseline in both]
    tested = [one.evidence for one in weighed if one.evidence is not None]
    corrected = iter(holm([one.p for one in tested]))
    return [
        _judged(one, one.evidence, next(corrected), len(tested), len(pairs), margin)
        if one.evidence is not None
        else _untested(one, len(pairs))
        for one in weighed
    ]


def _untested(weighed: Weighed, n_pairs: int) -> Verdict:
    arm, baseline, need = weighed.arm, weighed.baseline, weighed.need
    mine, theirs = geometric_mean(arm), geometric_mean(baseline)
    word = Word.NOT_IN_TURN if weighed.order is Order.ONE_AFTER_THE_OTHER else Word.TOO_FEW
    visible = _would_be_seen(arm, baseline, need, n_pairs) if word is Word.TOO_FEW else None
    n, m = len(arm), len(baseline)
    return Verdict(word, theirs / mine, None, None, None, None, n, m, need, mine, theirs, None, visible)


def _judged(
    weighed: Weighed,
    evidence: Evidence,
    p_corrected: float,
    n_tested: int,
    n_pairs: int,
    same_within: float,
) -> Verdict:
    """Choose the word. An equivalence is shown when the interval of confidence 1 - 2 alpha lies within the margin (two
    one-sided tests: Schuirmann 1987, J. Pharmacokinetics and Biopharmaceutics 15, 657-680), alpha divided by the
    number of pairs."""
    arm, baseline = weighed.arm, weighed.baseline
    n, m = len(arm), len(baseline)
    low, high = evidence.ends(ALPHA)
    margin = math.expm1(min(700.0, max(map(abs, evidence.ends(2 * ALPHA / n_tested)))))
    need: int | None = weighed.need
    if margin <= same_within:
        word = Word.SAME
    elif p_corrected <= ALPHA:
        word = Word.FASTER if evidence.shift > 0 else Word.SLOWER
    elif evidence.widening > 1 and evidence.p_equal * n_tested <= ALPHA:
        word, need = Word.UNEQUAL, _enough(evidence, arm, baseline, n_tested)
    else:
        word = Word.NO_DIFFERENCE if evidence.least_p * n_tested <= ALPHA else Word.TOO_FEW
    return Verdict(
        word=word,
        speedup=math.exp(evidence.shift),
        low=math.exp(low) if math.isfinite(low) else None,
        high=math.exp(high) if math.isfinite(high) else None,
        p=evidence.p,
        p_corrected=p_corrected,
        n=n,
        n_baseline=m,
        need=need,
        arm_s=geometric_mean(arm),
        baseline_s=geometric_mean(baseline),
        same_within=margin if margin < 1 else None,
        visible=_would_be_seen(arm, baseline, weighed.need, n_pairs)
        if word is Word.TOO_FEW
        else math.expm1(min(700.0, evidence.seen(ALPHA / n_tested))),
        n_rounds=n if weighed.order is Order.ROUNDS else 0,
    )


def _enough(evidence: Evidence, arm: Sequence[float], baseline: Sequence[float], n_pairs: int) -> int | None:
    """Return the number of runs each with which the observed difference would be evidence in 80 % of cases."""
    for n in range(max(needed_repeats(n_pairs), min(len(arm), len(baseline)) + 1), MOST_RUNS):
        if _reach(arm, baseline, n, n_pairs) <= abs(evidence.shift):
            return n
    return None


def _would_be_seen(arm: Sequence[float], baseline: Sequence[float], n: int, n_pairs: int) -> float | None:
    """Return the difference that `n` runs each of this spread would find in 80 % of cases; None if it is unknown."""
    if min(len(arm), len(baseline)) < 2:
        return None
    return math.expm1(min(700.0, _reach(arm, baseline, n, n_pairs)))


def _reach(arm: Sequence[float], baseline: Sequence[float], n: int, n_pairs: int) -> float:
    variances = [_log_variance(arm), _log_variance(baseline)]
    widening = widened(n) if max(variances) > UNEQUAL**2 * min(variances) else 1.0
    return reach(ALPHA / n_pairs, n - 1, widening) * math.sqrt(sum(variances) / n)


def _log_variance(times: Sequence[float]) -> float:
    logs = [math.log(x) for x in times]
    mean = math.fsum(logs) / len(logs)
    return math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1)


def after_looks(n: int) -> float:
    """Return how often a verdict on equal arms is wrong after `n` additions of runs, each because there was none."""
    return next((share for most, share in AFTER_LOOKS.items() if n <= most), max(AFTER_LOOKS.values()))


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure",
    Scandinavian Journal of Statistics 6, 65-70; in the order given, at most 1."""
    corrected = [0.0] * len(ps)
    floor = 0.0
    for rank, k in enumerate(sorted(range(len(ps)), key=lambda k: ps[k])):
        floor = max(floor, min(1.0, (len(ps) - rank) * ps[k]))
        corrected[k] = floor
    return corrected
