"""Rounds of rows: which runs form one, what stands against a word, and the verdict on a pair of rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import itemgetter
from statistics import fmean, variance
from typing import Any

from queue_runner import units
from queue_runner.analysis import verdicts
from queue_runner.analysis.grouping import Arm, round_of, taints
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key

SAME_WITHIN = 0.01
"""Default margin of --same-within: ±1 %, the noise threshold of Criterion.rs."""
FINEST_DIGIT = 9
FINEST_STEP = 2e-5
"""A rounding step that is a smaller share of the times decides no word; any times would pass as its multiples."""


class Word(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "the same"
    UNDECIDED = "undecided"


_WORDS = {
    verdicts.Decision.ABOVE: Word.FASTER,
    verdicts.Decision.BELOW: Word.SLOWER,
    verdicts.Decision.SAME: Word.SAME,
    verdicts.Decision.UNDECIDED: Word.UNDECIDED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on an arm against its baseline after `n` rounds. `speedup` above 1: the arm takes less time.

    `low` and `high` are the ends of the 95 % interval of the speedup, None where so few rounds exclude nothing.
    `given_after`: the round after which the word was given. `more`: about how many more rounds decide; None if too
    many, or if rounds alone do not: then `why` says what stands against a word. `arm_s` and `baseline_s` are the
    geometric means of the times compared.
    """

    word: Word
    speedup: float
    low: float | None
    high: float | None
    n: int
    given_after: int | None
    more: int | None
    arm_s: float
    baseline_s: float
    same_within: float = SAME_WITHIN
    within_margin: bool = False
    why: str = ""

    @property
    def decided(self) -> bool:
        """Whether there is a word."""
        return self.word is not Word.UNDECIDED

    def __str__(self) -> str:
        margin = f"{100 * self.same_within:g} %"
        if self.word is Word.SAME:
            return f"the same within {margin}"
        if self.decided:
            return f"{self.word} by less than {margin}" if self.within_margin else str(self.word)
        return f"{self.word} ({self.next_step})" if self.next_step else str(self.word)

    @property
    def next_step(self) -> str:
        """The remedy for an undecided pair, such as "about 3 more rounds", or the obstacle to a word."""
        if self.decided or self.why:
            return self.why
        return (
            f"about {units.counted(self.more, 'more round')}"
            if self.more
            else f"over {verdicts.MOST_ROUNDS} more rounds"
        )

    def mirrored(self) -> Verdict:
        """Return the verdict on the baseline against the arm."""
        return replace(
            self,
            word={Word.FASTER: Word.SLOWER, Word.SLOWER: Word.FASTER}.get(self.word, self.word),
            speedup=1 / self.speedup,
            low=1 / self.high if self.high else None,
            high=1 / self.low if self.low else None,
            arm_s=self.baseline_s,
            baseline_s=self.arm_s,
        )


Pair = tuple[Arm, Arm]


def judge(
    requested: Iterable[Pair], n_words: int = 0, per_work: str = "", same_within: float | None = None
) -> dict[Pair, Verdict]:
    """Judge pairs of (arm, baseline) that one question compares; a pair requested in both directions counts once.

    `n_words` is the number of pairs that the question declares, if more than those requested: what --where hides
    counts too. `per_work` compares the time per token or sample.
    """
    pairs = [*{frozenset(pair): pair for pair in requested}.values()]
    margin = SAME_WITHIN if same_within is None else same_within
    began = _began(arm for pair in pairs for arm in pair)
    pairings = [_pairing(arm, baseline, began, per_work, math.log1p(margin)) for arm, baseline in pairs]
    judgements = verdicts.judge([pairing.contrast for pairing in pairings], max(n_words, len(pairs)))
    judged: dict[Pair, Verdict] = {}
    for (arm, baseline), pairing, judgement in zip(pairs, pairings, judgements, strict=True):
        judged[arm, baseline] = verdict = _verdict(pairing, judgement, margin)
        judged[baseline, arm] = verdict.mirrored()
    return judged


def _began(arms: Iterable[Arm]) -> dict[Any, float]:
    """Return when each planned round of the arms began."""
    began: dict[Any, float] = {}
    for arm in arms:
        for row in arm.timed:
            if (key := round_of(row)) is not None and row.started_at is not None:
                began[key] = min(began.get(key, math.inf), row.started_at)
    return began


@dataclass(frozen=True, slots=True)
class _Pairing:
    """The contrast of a pair, the ratio of all its times, and the baseline's geometric mean of the times compared."""

    contrast: verdicts.Contrast
    ratio: float
    baseline_s: float


def _pairing(arm: Arm, baseline: Arm, began: Mapping[Any, float], per_work: str, margin: float) -> _Pairing:
    """Form the rounds of two arms: those planned for both, and those that their other runs close."""
    shared = {round_of(row) for row in arm.runs} & {round_of(row) for row in baseline.runs} - {None}
    mine, theirs = ([(row, _log_time(row, some, per_work)) for row in some.timed] for some in (arm, baseline))
    by_round = [by_key(some, lambda run: round_of(run[0])) for some in (mine, theirs)]
    tried = [{round_of(row) for row in some.ended if row.started_at is not None} for some in (arm, baseline)]
    ended = shared & tried[0] & tried[1] & began.keys()
    missing, of_baseline = (sum(key not in runs for key in ended) for runs in by_round)
    complete = {
        key: _mean(by_round[1][key]) - _mean(by_round[0][key])
        for key in ended
        if key in by_round[0] and key in by_round[1]
    }
    closed, obstacle = _close(*([run for run in runs if round_of(run[0]) not in shared] for runs in (mine, theirs)))
    if verdicts.lopsided(missing, of_baseline, len(ended)):
        most, row = max((missing, arm.label), (of_baseline, baseline.label))
        obstacle = f"{most} of {len(ended)} rounds have no valid run of {row}: slow runs may be missing"
    elif complete:
        obstacle = ""
    differences = [*((began[key], complete.get(key)) for key in began), *closed]
    compared = [run for key in complete for run in by_round[1][key]] if complete else theirs
    return _Pairing(
        verdicts.Contrast(
            [difference for _, difference in sorted(differences, key=itemgetter(0))],
            margin=margin,
            step=rounding_step([*arm.times, *baseline.times]) or max(map(rounding_step, (arm.times, baseline.times))),
            several_levels=any(sum("levels" in taints(row) for row in some.timed) > 1 for some in (arm, baseline)),
            obstacle=obstacle,
        ),
        _mean(theirs) - _mean(mine),
        math.exp(_mean(compared)),
    )


Runs = Sequence[tuple[ReportedRun, float]]
"""Runs with the logarithms of their times."""


def _log_time(row: ReportedRun, arm: Arm, per_work: str) -> float:
    """Return the logarithm of the time of an iteration, or of a token or sample."""
    return math.log((row.median_s or math.nan) / ((arm.work(per_work) or 1.0) if per_work else 1.0))


def _mean(runs: Runs) -> float:
    return fmean(log_time for _, log_time in runs)


def _close(mine: Runs, theirs: Runs) -> tuple[list[tuple[float, float]], str]:
    """Return the differences of the rounds that runs without planned ones close, with their times; else why they are
    not compared."""
    if not mine or not theirs:
        return [], ""
    if any(row.started_at is None for row, _ in (*mine, *theirs)):
        return [], "the order of the runs is unknown"
    started = ([verdicts.StartedRun(row.started_at or 0.0, log) for row, log in runs] for runs in (mine, theirs))
    closed = verdicts.close_rounds(*started)
    if not closed.balanced:
        return [], "the rows ran one after the other: submit them together, and mpsq alternates them"
    speedups = (-difference for difference in closed.differences)
    return [*zip(closed.completed_at, speedups, strict=True)], ""


def mean_interval(times_s: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the geometric mean of one row's times by the same formula; None for too few runs."""
    if len(times_s) < verdicts.FIRST_LOOK:
        return None
    logs = [math.log(time_s) for time_s in times_s]
    estimate = verdicts.Estimate(len(logs), fmean(logs), variance(logs), len(logs) - 1)
    half_width = estimate.half_width(1)
    return math.exp(estimate.mean - half_width), math.exp(estimate.mean + half_width)


def rounding_step(times_s: Sequence[float]) -> float:
    """Return the step to which all these times are rounded, as a share of the smallest; 0 if they are not rounded.

    A log that prints whole milliseconds shows equal times for rows that differ. The median of an even number of times
    may lie halfway between two steps."""
    for digits in range(FINEST_DIGIT + 1):
        step = 10.0**-digits / min(times_s, default=math.inf)
        halves = [2 * time_s * 10**digits for time_s in times_s]
        if step >= FINEST_STEP and all(abs(half - round(half)) < 1e-6 * half for half in halves):
            return step
    return 0.0


def _verdict(pairing: _Pairing, judgement: verdicts.Judgement, margin: float) -> Verdict:
    speedup = math.exp(judgement.mean if judgement.n else pairing.ratio)
    why = judgement.obstacle
    if judgement.waits_for_levels:
        n = verdicts.FIRST_LOOK_WITH_LEVELS
        why = f"the runs of a row form groups of different speed: {n} rounds show whether this lasts"
    elif not (why or judgement.given_after or judgement.more) and pairing.contrast.step > abs(judgement.mean):
        why = f"the times are rounded to steps of {units.percent(pairing.contrast.step, 2)}"
    elif judgement.contradicted and judgement.decision is verdicts.Decision.UNDECIDED:
        why = "later rounds contradict the earlier ones"
    return Verdict(
        word=_WORDS[judgement.decision],
        speedup=speedup,
        low=_ratio(judgement.low),
        high=_ratio(judgement.high),
        n=judgement.n,
        given_after=judgement.given_after,
        more=judgement.more,
        arm_s=pairing.baseline_s / speedup,
        baseline_s=pairing.baseline_s,
        same_within=margin,
        within_margin=judgement.within_margin,
        why=why,
    )


def _ratio(log_ratio: float) -> float | None:
    """Return the ratio; None beyond what a float holds, and where nothing is excluded."""
    return math.exp(log_ratio) if abs(log_ratio) < 700 else None
