"""Verdicts on whether one arm is faster than another, from one number per run, never from iterations.

The iterations of a run share its thermal state, memory layout and drift: a test over them calls two equal
configurations different half of the time (docs/methodology.md). The sampling unit is the run, its value the median.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations

from queue_runner.analysis.stats import median

ALPHA = 0.05
SAME_WITHIN = 0.01
"""An interval within ±1 % is practically the same: the noise threshold of Criterion.rs."""
MAX_SPLITS = 20_000
"""Maximum number of splits to enumerate (8 + 8 runs have 12,870)."""
DRAWN_SPLITS = 5_000
"""Number of splits drawn beyond MAX_SPLITS: a p-value of 5 % is then known to ±0.6 % (two standard errors)."""


class Word(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    NO_DIFFERENCE = "no difference shown"
    SAME = "practically the same"
    TOO_FEW = "too few repeats"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on an arm against its baseline. `speedup` above 1: the arm takes less time.

    `low` and `high` are the ends of the 95 % interval of the speedup, `p` the two-sided p-value, `p_corrected` the same
    corrected by Holm for all pairs judged together; all None with fewer than 4 runs. `need` is the number of runs
    per arm with which each of these pairs can get a verdict.
    """

    word: Word
    speedup: float
    low: float | None
    high: float | None
    p: float | None
    p_corrected: float | None
    n: int
    n_baseline: int
    need: int

    @property
    def decided(self) -> bool:
        """Whether there were enough runs for a verdict."""
        return self.word is not Word.TOO_FEW

    @property
    def short(self) -> str:
        """The word, or how many runs would give one."""
        return str(self.word) if self.decided else f"need {self.need} runs each"

    def __str__(self) -> str:
        return self.short if self.decided else f"{self.word} ({self.short})"

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
        )


def needed_repeats(n_pairs: int = 1) -> int:
    """Return the minimum number of runs per arm with which `n_pairs` simultaneous comparisons can be significant.

    With n runs each the smallest two-sided p-value is 2 / C(2n, n): 0.1 for 3, 0.029 for 4. Holm's first step requires
    ALPHA / n_pairs: 4 for one pair, 5 for up to 6, 6 for up to 23.
    """
    n = 2
    while 2 / math.comb(2 * n, n) > ALPHA / max(1, n_pairs):
        n += 1
    return n


def compare_all(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], seed: int = 0) -> list[Verdict]:
    """Judge many (arm, baseline) pairs together: the chance that any "faster" or "slower" is wrong is at most 5 %,
    whichever of the pairs differ. Each interval is of its own ratio, not simultaneous.

    Each is judged by run medians of times (seconds, positive). Raises: ValueError when an arm is empty or holds a time
    that is not positive and finite.
    """
    need = needed_repeats(len(pairs))
    verdicts = [_alone(arm, baseline, need, seed) for arm, baseline in pairs]
    tested = [k for k, verdict in enumerate(verdicts) if verdict.p is not None]
    corrected = holm([verdicts[k].p or 0.0 for k in tested])
    for k, p_corrected in zip(tested, corrected, strict=True):
        judged = replace(verdicts[k], p_corrected=p_corrected)
        verdicts[k] = replace(judged, word=_word(judged, len(tested)))
    return verdicts


def _alone(arm: Sequence[float], baseline: Sequence[float], need: int, seed: int) -> Verdict:
    """Return ratio, interval and p-value of one pair, not yet with a word."""
    for times in (arm, baseline):
        if not times or not all(0 < x < math.inf for x in times):
            raise ValueError("run medians of an arm must be positive and finite, and there must be one")
    n, m = len(arm), len(baseline)
    if min(n, m) < needed_repeats():
        # without an interval, the ratio of the two medians, which are shown beside it
        return Verdict(Word.TOO_FEW, median(baseline) / median(arm), None, None, None, None, n, m, need)
    logs, baseline_logs = [math.log(x) for x in arm], [math.log(x) for x in baseline]
    p, low, high = _permute(logs, baseline_logs, seed)
    speedup = math.exp(math.fsum(baseline_logs) / m - math.fsum(logs) / n)  # the ratio of the geometric means
    return Verdict(Word.TOO_FEW, speedup, math.exp(low), math.exp(high), p, None, n, m, need)


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure",
    Scandinavian Journal of Statistics 6, 65-70; in the order given, at most 1."""
    corrected = [0.0] * len(ps)
    floor = 0.0
    for rank, k in enumerate(sorted(range(len(ps)), key=lambda k: ps[k])):
        floor = max(floor, min(1.0, (len(ps) - rank) * ps[k]))
        corrected[k] = floor
    return corrected


def _word(verdict: Verdict, n_tested: int) -> Word:
    """Choose the word; too few: even the most extreme result of these runs would not be significant."""
    assert verdict.low is not None and verdict.high is not None and verdict.p_corrected is not None
    if verdict.low >= 1 - SAME_WITHIN and verdict.high <= 1 + SAME_WITHIN:
        return Word.SAME
    if verdict.p_corrected <= ALPHA:
        return Word.FASTER if verdict.speedup > 1 else Word.SLOWER
    within_reach = _smallest_p(verdict.n, verdict.n_baseline) * n_tested <= ALPHA
    return Word.NO_DIFFERENCE if within_reach else Word.TOO_FEW


def _smallest_p(n: int, m: int) -> float:
    """Return the smallest possible p: with arms of equal size the mirrored split is as extreme as the observed one."""
    return (2 if n == m else 1) / math.comb(n + m, n)


def _splits(total: int, n: int, seed: int) -> list[tuple[int, ...]]:
    """Return all ways to choose n of `total`; if too many, the observed one and DRAWN_SPLITS random ones."""
    if math.comb(total, n) <= MAX_SPLITS:
        return list(combinations(range(total), n))
    draw = random.Random(seed)
    return [tuple(range(n)), *(tuple(draw.sample(range(total), n)) for _ in range(DRAWN_SPLITS))]


def _permute(arm: Sequence[float], baseline: Sequence[float], seed: int) -> tuple[float, float, float]:
    """Return (p, low, high) for d = mean(baseline) - mean(arm), here of logarithms: the log of the speedup.

    p is the share of all splits of the pooled runs whose |d| is at least the observed (Fisher 1935, The Design of
    Experiments, section 21; drawn splits count the observed one in, Phipson & Smyth 2010, SAGMB 9:39). The interval
    holds the shifts that the same test would not reject at 5 % (inversion: Lehmann 1963; Ernst 2004, Statistical
    Science 19, 676-685), exactly: adding a shift s to the arm changes the observed d by -s, and that of a split which
    swaps k runs of each side by -c s with c = 1 - k/n - k/m, so |d_split - c s| >= |d - s| holds on one interval
    around d. The test does not reject s while more than 5 % of the splits' intervals hold it.
    """
    n, m = len(arm), len(baseline)
    if n > m:  # a split names the smaller side
        p, low, high = _permute(baseline, arm, seed)
        return p, -high, -low
    pooled = [*arm, *baseline]
    total = math.fsum(pooled)
    observed = math.fsum(baseline) / m - math.fsum(arm) / n
    splits = _splits(n + m, n, seed)
    slack = 1e-12 * max(1.0, abs(observed))
    extreme = 0
    lows: list[float] = []
    highs: list[float] = []
    for split in splits:
        chosen = 0.0
        swapped = 0
        for k in split:
            chosen += pooled[k]
            swapped += k >= n
        d = (total - chosen) / m - chosen / n
        c = 1 - swapped / n - swapped / m
        extreme += abs(d) >= abs(observed) - slack
        if abs(c) > 1 - 1e-9:  # the observed split or its mirror: never less extreme, whatever the shift
            lows.append(-math.inf)
            highs.append(math.inf)
            continue
        ends = ((observed - d) / (1 - c), (observed + d) / (1 + c))
        lows.append(min(ends))
        highs.append(max(ends))
    allowed = math.floor(ALPHA * len(splits))  # shifts within the intervals of more splits than this are kept
    lows.sort()
    highs.sort(reverse=True)
    return extreme / len(splits), lows[allowed], highs[allowed]
