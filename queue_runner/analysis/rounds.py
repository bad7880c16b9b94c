"""Rounds of rows: which runs form one, what stands against a word, and the verdict on a pair of rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from queue_runner.model import Outcome

SAME_WITHIN = 0.01
"""Default margin of --same-within: ±1 %, the noise threshold of Criterion.rs."""
TOO_SLOW = (Outcome.TIMED_OUT, Outcome.STALLED)
"""Outcomes of runs that were slow: a later attempt that counts instead is none of the same speed."""
FEWEST_EARLIER = 8
"""Fewer earlier runs do not show that a row has two speeds."""
FINEST_DIGIT = 9
FINEST_STEP = 2e-5
"""A rounding step that is a smaller share of the times decides no word; any times would pass as its multiples."""


class Word(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    HIGHER = "higher"
    LOWER = "lower"
    SAME = "the same"
    UNDECIDED = "undecided"


_WORDS = {
    verdicts.Decision.ABOVE: Word.FASTER,
    verdicts.Decision.BELOW: Word.SLOWER,
    verdicts.Decision.SAME: Word.SAME,
    verdicts.Decision.UNDECIDED: Word.UNDECIDED,
}
_METRIC_WORDS = _WORDS | {verdicts.Decision.ABOVE: Word.HIGHER, verdicts.Decision.BELOW: Word.LOWER}
_MIRRORED = {Word.FASTER: Word.SLOWER, Word.HIGHER: Word.LOWER}
_MIRRORED |= {opposite: word for word, opposite in _MIRRORED.items()}


@dataclass(frozen=True, kw_only=True)
class RoundAnswer:
    """The answer on an arm against its baseline after `n` rounds.

    `low` and `high` are the ends of the 95 % interval, None where so few rounds exclude nothing. `given_after`: the
    round after which the word was given. `more`: about how many more rounds decide; None if too many, or if rounds
    alone do not: then `why` says what stands against a word. `is_final`: no further round removes that.
    """

    word: Word
    low: float | None
    high: float | None
    n: int
    given_after: int | None
    more: int | None
    within_margin: bool = False
    why: str = ""
    is_final: bool = False

    @property
    def margin(self) -> str:
        """The margin of "the same", with its unit."""
        raise NotImplementedError

    @property
    def size(self) -> str:
        """The size of the difference with its interval, as text."""
        raise NotImplementedError

    @property
    def values(self) -> tuple[str, str]:
        """The values of the arm and of its baseline, as text."""
        raise NotImplementedError

    @property
    def on_scale(self) -> list[float]:
        """The difference and, where there are any, the ends of its interval, on a scale whose 0 means none."""
        raise NotImplementedError

    @property
    def decided(self) -> bool:
        """Whether there is a word."""
        return self.word is not Word.UNDECIDED

    def __str__(self) -> str:
        if self.word is Word.SAME:
            return f"the same within {self.margin}"
        if self.decided:
            return f"{self.word} by less than {self.margin}" if self.within_margin else str(self.word)
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


@dataclass(frozen=True, kw_only=True)
class Verdict(RoundAnswer):
    """The answer on times. `speedup` above 1: the arm takes less time. `arm_s` and `baseline_s` are the geometric means
    of the times compared."""

    speedup: float
    arm_s: float
    baseline_s: float
    same_within: float = SAME_WITHIN

    @property
    def margin(self) -> str:
        return f"{100 * self.same_within:g} %"

    @property
    def size(self) -> str:
        """As in "1.024 x (1.021 to 1.027)"."""
        interval = units.ratio_interval(self.low, self.high).removesuffix(" x")
        ratio = units.ratio(self.speedup, self.low, self.high)
        return ratio if interval == units.MISSING else f"{ratio} ({interval})"

    @property
    def values(self) -> tuple[str, str]:
        return units.duration(self.arm_s), units.duration(self.baseline_s)

    @property
    def on_scale(self) -> list[float]:
        return [math.log(x) for x in (self.speedup, self.low, self.high) if x]

    def mirrored(self) -> Verdict:
        """Return the verdict on the baseline against the arm."""
        return replace(
            self,
            word=_MIRRORED.get(self.word, self.word),
            speedup=1 / self.speedup,
            low=1 / self.high if self.high else None,
            high=1 / self.low if self.low else None,
            arm_s=self.baseline_s,
            baseline_s=self.arm_s,
        )


@dataclass(frozen=True, kw_only=True)
class MetricAnswer(RoundAnswer):
    """The answer on a metric: the arm's mean minus that of the baseline, in the metric's unit. `same_within` is the
    margin in that unit, None without one."""

    difference: float
    value: float
    baseline: float
    same_within: float | None = None

    @property
    def margin(self) -> str:
        return f"{self.same_within:g}"

    @property
    def size(self) -> str:
        """As in "+0.0202 (0.0190 to 0.0214)"."""
        interval = units.interval(self.low, self.high)
        difference = units.measured(self.difference, self.low, self.high, sign=True)
        return f"{difference} ({interval})" if interval else difference

    @property
    def values(self) -> tuple[str, str]:
        arm, baseline = (units.measured(x, self.low, self.high) for x in (self.value, self.baseline))
        return arm, baseline

    @property
    def on_scale(self) -> list[float]:
        return [x for x in (self.difference, self.low, self.high) if x is not None]

    def mirrored(self) -> MetricAnswer:
        """Return the answer on the baseline against the arm."""
        return replace(
            self,
            word=_MIRRORED.get(self.word, self.word),
            difference=-self.difference,
            low=None if self.high is None else -self.high,
            high=None if self.low is None else -self.low,
            value=self.baseline,
            baseline=self.value,
        )


Pair = tuple[Arm, Arm]


def judge(
    requested: Iterable[Pair], n_words: int = 0, per_work: str = "", same_within: float | None = None
) -> dict[Pair, Verdict]:
    """Judge pairs of (arm, baseline) that one question compares; a pair requested in both directions counts once.

    `n_words` is the number of pairs that the question declares, if more than those requested: what --where hides
    counts too. `per_work` compares the time per token or sample.
    """
    margin = SAME_WITHIN if same_within is None else same_within

    def values(arm: Arm) -> Values:
        """Return the negated logarithms of the times: a difference is the logarithm of the speedup."""
        work = (arm.work(per_work) or 1.0) if per_work else 1.0
        return [(row, -math.log((row.median_s or math.nan) / work)) for row in arm.timed]

    def step(arm: Arm, baseline: Arm) -> float:
        return rounding_step([*arm.times, *baseline.times]) or max(map(rounding_step, (arm.times, baseline.times)))

    judged: dict[Pair, Verdict] = {}
    for pairing, judgement in _judgements(requested, values, step, math.log1p(margin), n_words):
        arm, baseline = pairing.pair
        judged[arm, baseline] = verdict = _verdict(pairing, judgement, margin)
        judged[baseline, arm] = verdict.mirrored()
    return judged


def judge_metric(
    requested: Iterable[Pair],
    value: Callable[[ReportedRun], float | None],
    n_words: int,
    same_within: float | None,
    obstacle: str,
) -> dict[Pair, MetricAnswer]:
    """Judge pairs of (arm, baseline) by a metric: differences of its values, in its unit. An `obstacle` stands against
    every word."""

    def values(arm: Arm) -> Values:
        return [(row, x) for row in arm.used if (x := value(row)) is not None]

    def step(arm: Arm, baseline: Arm) -> float:
        return decimal_step([x for of_arm in (arm, baseline) for _, x in values(of_arm)])

    judged: dict[Pair, MetricAnswer] = {}
    with_values = [pair for pair in requested if all(map(values, pair))]
    for pairing, judgement in _judgements(with_values, values, step, same_within, n_words, obstacle):
        arm, baseline = pairing.pair
        difference = judgement.mean if judgement.n else pairing.difference
        judged[arm, baseline] = answer = MetricAnswer(
            **_common(
                pairing, judgement, _METRIC_WORDS, f"the values are rounded to steps of {pairing.contrast.step:g}"
            ),
            low=_finite(judgement.low),
            high=_finite(judgement.high),
            difference=difference,
            value=pairing.baseline + difference,
            baseline=pairing.baseline,
            same_within=same_within,
        )
        judged[baseline, arm] = answer.mirrored()
    return judged


Values = Sequence[tuple[ReportedRun, float]]
"""Runs with the values compared."""


@dataclass(frozen=True, slots=True)
class _Pairing:
    """The contrast of a pair, the difference of all its values, and the baseline's mean of the values compared."""

    pair: Pair
    contrast: verdicts.Contrast
    difference: float
    baseline: float


def _judgements(
    requested: Iterable[Pair],
    values: Callable[[Arm], Values],
    step: Callable[[Arm, Arm], float],
    margin: float | None,
    n_words: int,
    obstacle: str = "",
) -> Iterable[tuple[_Pairing, verdicts.Judgement]]:
    """Judge the distinct pairs; an `obstacle` stands against every word."""
    pairs = [*{frozenset(pair): pair for pair in requested}.values()]
    of_arm = {arm: values(arm) for pair in pairs for arm in pair}
    began = _began(row for runs in of_arm.values() for row, _ in runs)
    pairings = [
        _pairing(pair, of_arm[pair[0]], of_arm[pair[1]], began, step(*pair), margin, obstacle) for pair in pairs
    ]
    judgements = verdicts.judge([pairing.contrast for pairing in pairings], max(n_words, len(pairs)))
    return zip(pairings, judgements, strict=True)


def _began(rows: Iterable[ReportedRun]) -> dict[Any, float]:
    """Return when each planned round of the runs began."""
    began: dict[Any, float] = {}
    for row in rows:
        if (key := round_of(row)) is not None and row.started_at is not None:
            began[key] = min(began.get(key, math.inf), row.started_at)
    return began


def _pairing(
    pair: Pair,
    mine: Values,
    theirs: Values,
    began: Mapping[Any, float],
    step: float,
    margin: float | None,
    obstacle: str,
) -> _Pairing:
    """Form the rounds of two arms: those planned for both, and those that their other runs close."""
    arm, baseline = pair
    shared = {round_of(row) for row in arm.runs} & {round_of(row) for row in baseline.runs} - {None}
    by_round = [by_key(runs, lambda run: round_of(run[0])) for runs in (mine, theirs)]
    tried = [{round_of(row) for row in some.ended if row.started_at is not None} for some in pair]
    ended = shared & tried[0] & tried[1] & began.keys()
    slow = [{round_of(row) for row in some.ended if row.outcome in TOO_SLOW} for some in pair]
    missing, of_baseline = (len(ended - runs.keys() | ended & late) for runs, late in zip(by_round, slow, strict=True))
    complete = {
        key: _mean(by_round[0][key]) - _mean(by_round[1][key])
        for key in ended
        if key in by_round[0] and key in by_round[1]
    }
    closed, unordered = _close(*([run for run in runs if round_of(run[0]) not in shared] for runs in (mine, theirs)))
    if obstacle:
        pass
    elif verdicts.lopsided(missing, of_baseline, len(ended)):
        most, row = max((missing, arm), (of_baseline, baseline), key=itemgetter(0))
        obstacle = f"{most} of {len(ended)} rounds have a missing or retried run of {row.label}"
        obstacle += ", so its worst runs may be hidden"
        if row.left_out:
            last = row.left_out[-1]
            obstacle += f": mpsq why {last.run} says why, mpsq rerun g{last.group_id} starts anew"
    elif not complete:
        obstacle = unordered
    differences = [*((began[key], complete.get(key)) for key in began), *closed]
    compared = [run for key in complete for run in by_round[1][key]] if complete else theirs
    contrast = verdicts.Contrast(
        [difference for _, difference in sorted(differences, key=itemgetter(0))],
        margin=margin,
        step=step,
        levels=sum(map(_levels, pair)),
        obstacle=obstacle,
    )
    return _Pairing(pair, contrast, _mean(mine) - _mean(theirs), _mean(compared))


def _levels(arm: Arm) -> float:
    """Return how far apart the speeds of an arm are that several of its runs have, in logarithms: inf if they alternate
    within runs, the range of its earlier runs if these have two speeds, else 0."""
    if sum("levels" in taints(row) for row in arm.timed) > 1:
        return math.inf
    return max((row.earlier_levels for row in arm.timed), default=0.0)


def two_levels(values: Sequence[float]) -> float:
    """Return the range of the values of earlier runs if they lie in two groups that are further apart than either is
    wide, else 0. Of 8 values, half on each of two levels ten standard deviations apart, 92 % do; of 8 normal ones
    10 %."""
    ordered = sorted(values)
    if len(ordered) < FEWEST_EARLIER:
        return 0.0
    cut = max(range(2, len(ordered) - 1), key=lambda k: ordered[k] - ordered[k - 1])
    low, high = ordered[:cut], ordered[cut:]
    is_apart = high[0] - low[-1] > max(low[-1] - low[0], high[-1] - high[0])
    return ordered[-1] - ordered[0] if is_apart else 0.0


def _mean(runs: Values) -> float:
    return fmean(value for _, value in runs)


def _close(mine: Values, theirs: Values) -> tuple[list[tuple[float, float]], str]:
    """Return the differences of the rounds that runs without planned ones close, with their times; else why they are
    not compared."""
    if not mine or not theirs:
        return [], ""
    if any(row.started_at is None for row, _ in (*mine, *theirs)):
        return [], "the order of the runs is unknown"
    started = ([verdicts.StartedRun(row.started_at or 0.0, value) for row, value in runs] for runs in (mine, theirs))
    closed = verdicts.close_rounds(*started)
    if not closed.balanced:
        return [], "the rows ran one after the other: submit them together, and mpsq alternates them"
    return [*zip(closed.completed_at, closed.differences, strict=True)], ""


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


def decimal_step(values: Sequence[float]) -> float:
    """Return the step of the last decimal to which all these values are printed; 0 if they are not rounded."""
    for digits in range(FINEST_DIGIT + 1):
        if all(round(value, digits) == value for value in values):
            return 10.0**-digits
    return 0.0


def _verdict(pairing: _Pairing, judgement: verdicts.Judgement, margin: float) -> Verdict:
    speedup = math.exp(judgement.mean if judgement.n else pairing.difference)
    baseline_s = math.exp(-pairing.baseline)
    rounded = f"the times are rounded to steps of {units.percent(pairing.contrast.step, 2)}"
    return Verdict(
        **_common(pairing, judgement, _WORDS, rounded),
        speedup=speedup,
        low=_ratio(judgement.low),
        high=_ratio(judgement.high),
        arm_s=baseline_s / speedup,
        baseline_s=baseline_s,
        same_within=margin,
    )


def _common(
    pairing: _Pairing, judgement: verdicts.Judgement, words: Mapping[verdicts.Decision, Word], rounded: str
) -> dict[str, Any]:
    """Return what the answers on times and metrics have in common; `rounded` says that steps of values hide the
    difference. Noise of several steps shows it in the mean of many rounds."""
    why, is_final = judgement.obstacle, bool(judgement.obstacle)
    if judgement.waits_for_levels and not is_final:
        n = verdicts.FIRST_LOOK_WITH_LEVELS
        why = f"the runs of a row form groups of different speed: {n} rounds show whether this lasts"
    elif not (why or judgement.given_after or judgement.more) and pairing.contrast.step > abs(judgement.mean):
        why = f"{rounded}: print more digits"
        is_final = all(abs(x) <= 2 * pairing.contrast.step for x in pairing.contrast.differences if x is not None)
    elif judgement.contradicted and judgement.decision is verdicts.Decision.UNDECIDED:
        why = "later rounds contradict the earlier ones"
    return {
        "word": words[judgement.decision],
        "n": judgement.n,
        "given_after": judgement.given_after,
        "more": judgement.more,
        "within_margin": judgement.within_margin,
        "why": why,
        "is_final": is_final,
    }


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _ratio(log_ratio: float) -> float | None:
    """Return the ratio; None beyond what a float holds, and where nothing is excluded."""
    return math.exp(log_ratio) if abs(log_ratio) < 700 else None
