"""Rounds of rows: which runs form one, what prevents a verdict, and the verdict on a pair of rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from operator import itemgetter
from statistics import fmean, variance
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis import intervals
from queue_runner.analysis.grouping import Arm, machine_of, round_of, seed_of, seeds_in_common, taints
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.model import Outcome, State

SAME_WITHIN = 0.01
"""Default margin of --same-within: ±1 %, the noise threshold of Criterion.rs."""
TOO_SLOW = (Outcome.TIMED_OUT, Outcome.STALLED)
"""Outcomes of runs that were too slow: a retry that counts instead is faster than they were."""
FEWEST_EARLIER = 8
"""Fewer earlier runs do not show that a row has two speeds."""
FINEST_DIGIT = 9
HIDES_NOTHING = 1e-6
"""Of values with finer steps than this, more digits tell nothing."""
FINEST_STEP = 2e-5
"""A rounding step that is a smaller share of the times affects no verdict; any times would pass as its multiples."""


class Word(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    HIGHER = "higher"
    LOWER = "lower"
    SAME = "the same"
    UNDECIDED = "undecided"


_WORDS = {
    intervals.Decision.ABOVE: (Word.HIGHER, Word.FASTER),
    intervals.Decision.BELOW: (Word.LOWER, Word.SLOWER),
    intervals.Decision.SAME: (Word.SAME, Word.SAME),
    intervals.Decision.UNDECIDED: (Word.UNDECIDED, Word.UNDECIDED),
}
"""The words on a metric and on times."""
_MIRRORED = {Word.FASTER: Word.SLOWER, Word.HIGHER: Word.LOWER}
_MIRRORED |= {opposite: word for word, opposite in _MIRRORED.items()}


def further(more: int | None, unit: str = "more round") -> str:
    """Return how many more are needed, such as "about 3 more rounds"; None and 0 stand for too many."""
    return f"about {units.counted(more, unit)}" if more else f"over {intervals.MOST_ROUNDS} {unit}s"


class Verdict(Struct, frozen=True, kw_only=True):
    """The answer on an arm against its baseline after `n` rounds on so many `machines` of one kind: on the time or, if
    not `of_time`, on a metric.

    `change` is the speedup, above 1 if the arm takes less time, or the difference in the metric's unit. `low` and
    `high` are the ends of its 95 % interval, None where so few rounds exclude nothing. `value` and `baseline` are the
    values compared: seconds (geometric means), or means of the metric. `same_within` is the margin, a share of the
    times or in the metric's unit. `given_after`: the round after which the word was given. `more`: about how many
    more rounds decide; None if too many, or if rounds alone do not: then `why` says what prevents a verdict.
    `is_final`: no further round removes that obstacle.
    """

    of_time: bool
    word: Word
    change: float
    low: float | None
    high: float | None
    value: float
    baseline: float
    n: int
    given_after: int | None
    more: int | None
    same_within: float | None = None
    within_margin: bool = False
    why: str = ""
    is_final: bool = False
    machines: int = 1

    @property
    def ratio(self) -> str:
        """The speedup as text, with the digits that its interval needs."""
        return units.ratio(self.change, self.low, self.high)

    @property
    def interval(self) -> str:
        """The interval as text: "95 % CI 1.021 to 1.027 x", "95 % CI 0.0190 to 0.0214", or "did not vary"; "" if there
        is none."""
        if self.low is None or self.high is None:
            return ""
        if math.isclose(self.low, self.high, rel_tol=units.ROUNDING):
            return "did not vary"
        ends = (units.ratio_interval if self.of_time else units.interval)(self.low, self.high)
        return f"95 % CI {ends}"

    def difference(self, *, sign: bool = False) -> str:
        """Return the change of a metric with as many decimals as its values have."""
        change, larger = self.change if sign else abs(self.change), max(abs(self.value), abs(self.baseline))
        return units.measured(change, self.low, self.high, sign=sign, least=units.VALUE_DIGITS, beside=larger)

    @property
    def size(self) -> str:
        """The change with its interval: "1.024 x (1.021 to 1.027)", "+0.0202 (0.0190 to 0.0214)"."""
        change = self.ratio if self.of_time else self.difference(sign=True)
        interval = self.interval.removeprefix("95 % CI ").removesuffix(" x")
        return f"{change} ({interval})" if interval else change

    @property
    def values(self) -> tuple[str, str]:
        """The values of the arm and of its baseline, as text."""
        if self.of_time:
            return units.duration(self.value), units.duration(self.baseline)
        value, baseline = (units.measured(x, self.low, self.high) for x in (self.value, self.baseline))
        return value, baseline

    @property
    def on_scale(self) -> list[float]:
        """The change and, where there are any, the ends of its interval, on a scale whose 0 means none."""
        ends = [x for x in (self.change, self.low, self.high) if x is not None]
        return [*map(math.log, ends)] if self.of_time else ends

    @property
    def decided(self) -> bool:
        """Whether it is decided."""
        return self.word is not Word.UNDECIDED

    def __str__(self) -> str:
        margin = f"{100 * (self.same_within or 0):g} %" if self.of_time else f"{self.same_within or 0:g}"
        if self.word is Word.SAME:
            return f"the same within {margin}"
        if self.decided:
            return f"{self.word} by less than {margin}" if self.within_margin else str(self.word)
        return f"{self.word} ({self.next_step})" if self.next_step else str(self.word)

    @property
    def next_step(self) -> str:
        """The remedy for an undecided pair, such as "about 3 more rounds needed", or the obstacle to a verdict."""
        if self.decided or self.why:
            return self.why
        unit = "more machine" if self.machines > 1 else "more round"
        return f"{further(self.more, unit)} needed"

    @property
    def rounds(self) -> str:
        """The rounds and, if there are several, the machines, in words: "20 rounds on 4 machines"."""
        on = f" on {self.machines} machines" if self.machines > 1 else ""
        return units.counted(self.n, "round") + on if self.n else ""

    def mirrored(self) -> Verdict:
        """Return the answer on the baseline against the arm."""

        def turned(x: float) -> float:
            return 1 / x if self.of_time else -x

        return replace(
            self,
            word=_MIRRORED.get(self.word, self.word),
            change=turned(self.change),
            low=None if self.high is None else turned(self.high),
            high=None if self.low is None else turned(self.low),
            value=self.baseline,
            baseline=self.value,
        )


Pair = tuple[Arm, Arm]


def judge(
    requested: Iterable[Pair],
    n_words: int = 0,
    per_work: str = "",
    same_within: float | None = None,
    effect_sd: float = intervals.EFFECT_SD,
) -> dict[Pair, Verdict]:
    """Judge the times of pairs of (arm, baseline) that one question compares; a pair requested in both directions
    counts once.

    `n_words` is the number of pairs that the question declares, if more than those requested: what --where hides
    counts too. `per_work` compares the time per token or sample.
    """
    margin = SAME_WITHIN if same_within is None else same_within
    return _judged(requested, _of_time(per_work), n_words, margin, effect_sd, of_time=True)


def judge_metric(
    requested: Iterable[Pair],
    value: Callable[[ReportedRun], float | None],
    n_words: int,
    same_within: float | None,
    obstacle: str,
    effect_sd: float = intervals.EFFECT_SD,
) -> dict[Pair, Verdict]:
    """Judge pairs of (arm, baseline) by a metric: differences of its values, in its unit. An `obstacle` prevents every
    verdict."""
    return _judged(requested, _of_metric(value), n_words, same_within, effect_sd, obstacle)


def contrast(
    pair: Pair, per_work: str = "", value: Callable[[ReportedRun], float | None] | None = None, obstacle: str = ""
) -> intervals.Contrast:
    """Return what the rounds of (arm, baseline) show, without a margin: of the times or, with `value`, of a metric."""
    compared = _of_time(per_work) if value is None else _of_metric(value)
    mine, theirs = map(compared.values, pair)
    order = _in_order(row for runs in (mine, theirs) for row, _ in runs)
    return _pairing(pair, mine, theirs, order, compared.step(*pair), None, obstacle, value is None).contrast


Values = Sequence[tuple[ReportedRun, float]]
"""Runs with the values compared."""


class _Compared(NamedTuple):
    """The values of an arm that are compared, and the step to which those of two arms are rounded."""

    values: Callable[[Arm], Values]
    step: Callable[[Arm, Arm], float]


def _of_time(per_work: str) -> _Compared:
    """Compare the negated logarithms of the times: a difference is the logarithm of the speedup."""

    def values(arm: Arm) -> Values:
        work = (arm.work(per_work) or 1.0) if per_work else 1.0
        return [(row, -math.log((row.median_s or math.nan) / work)) for row in arm.timed]

    def step(arm: Arm, baseline: Arm) -> float:
        return rounding_step([*arm.times, *baseline.times]) or max(map(rounding_step, (arm.times, baseline.times)))

    return _Compared(values, step)


def _of_metric(value: Callable[[ReportedRun], float | None]) -> _Compared:
    def values(arm: Arm) -> Values:
        return [(row, x) for row in arm.used if (x := value(row)) is not None]

    def step(arm: Arm, baseline: Arm) -> float:
        return decimal_step([x for of_arm in (arm, baseline) for _, x in values(of_arm)])

    return _Compared(values, step)


class _Pairing(Struct, frozen=True):
    """The contrast of a pair, the difference of all its values, and the baseline's mean of the values compared."""

    contrast: intervals.Contrast
    difference: float
    baseline: float


def _judged(
    requested: Iterable[Pair],
    compared: _Compared,
    n_words: int,
    same_within: float | None,
    effect_sd: float,
    obstacle: str = "",
    of_time: bool = False,
) -> dict[Pair, Verdict]:
    """Judge the distinct pairs that have values, and mirror the answers."""
    distinct = {frozenset(pair): pair for pair in requested}.values()
    pairs = [pair for pair in distinct if all(map(compared.values, pair))]
    of_arm = {arm: compared.values(arm) for pair in pairs for arm in pair}
    order = _in_order(row for runs in of_arm.values() for row, _ in runs)
    margin = math.log1p(same_within) if of_time and same_within is not None else same_within
    pairings = [
        _pairing(pair, of_arm[pair[0]], of_arm[pair[1]], order, compared.step(*pair), margin, obstacle, of_time)
        for pair in pairs
    ]
    contrasts = [pairing.contrast for pairing in pairings]
    judgements = intervals.judge(contrasts, max(n_words, len(pairs)), effect_sd)
    judged: dict[Pair, Verdict] = {}
    for (arm, baseline), pairing, judgement in zip(pairs, pairings, judgements, strict=True):
        judged[arm, baseline] = answer = _answer(pairing, judgement, same_within, of_time)
        judged[baseline, arm] = answer.mirrored()
    return judged


Round = tuple[Any, int]
"""A planned round: its submission, and its number there."""


def _in_order(rows: Iterable[ReportedRun]) -> dict[Round, float]:
    """Return when each planned round of the runs counts: once it and those of its submission with lower numbers have
    ended. Where several machines work, fast rounds end first, and their order would favour them."""
    ended: dict[Round, float] = {}
    for row in rows:
        if (key := round_of(row)) is not None and row.started_at is not None:
            ended[key] = max(ended.get(key, -math.inf), row.ended_at or row.started_at)
    latest: dict[Any, float] = {}
    for group_id, repeat in sorted(ended):
        latest[group_id] = max(latest.get(group_id, -math.inf), ended[group_id, repeat])
        ended[group_id, repeat] = latest[group_id]
    return ended


def _is_pending(runs: Iterable[ReportedRun]) -> bool:
    """Return whether a row's run of a round is still to come: it waits or runs, and no attempt has ended but lost
    ones."""
    states = {row.state for row in runs if row.outcome != Outcome.LOST}
    return State.DONE not in states and bool({State.QUEUED, State.RUNNING} & states)


def _before_gaps(rounds: Iterable[Round], pending: Collection[Round]) -> set[Round]:
    """Return the rounds without those that follow a pending one of their submission."""
    first: dict[Any, int] = {}
    for group_id, repeat in pending:
        first[group_id] = min(first.get(group_id, repeat), repeat)
    return {(group_id, repeat) for group_id, repeat in rounds if repeat < first.get(group_id, math.inf)}


class _Complete(Struct, frozen=True):
    """A round that ran entirely on one machine: the difference, and the baseline's values."""

    difference: float
    theirs: Values
    machine: str | None


def _complete(mine: Values, theirs: Values) -> _Complete | None:
    """Return a round whose runs are given, None if no machine ran all of it. A round that was lost on one machine, and
    ran again on another, counts on the machine that completed it first."""
    by_machine = [by_key(runs, lambda run: machine_of(run[0])) for runs in (mine, theirs)]
    whole = by_machine[0].keys() & by_machine[1].keys()
    if not whole:
        return None

    def completed_at(machine: str | None) -> float:
        return max(min(row.started_at or 0.0 for row, _ in runs[machine]) for runs in by_machine)

    machine = min(whole, key=completed_at)
    mine, theirs = (runs[machine] for runs in by_machine)
    return _Complete(_mean(mine) - _mean(theirs), theirs, machine)


def _pairing(
    pair: Pair,
    mine: Values,
    theirs: Values,
    order: Mapping[Round, float],
    step: float,
    margin: float | None,
    obstacle: str,
    of_time: bool,
) -> _Pairing:
    """Form the rounds of two arms: those planned for both, and those that their other runs close."""
    arm, baseline = pair
    planned = [by_key(some.runs, round_of) for some in pair]
    shared = {key for key in planned[0].keys() & planned[1].keys() if key is not None}
    pending = {key for key in shared if any(_is_pending(rows[key]) for rows in planned)}
    by_round = [by_key(runs, lambda run: round_of(run[0])) for runs in (mine, theirs)]
    tried = [{round_of(row) for row in some.ended if row.started_at is not None} for some in pair]
    ended = _before_gaps(shared & tried[0] & tried[1] & order.keys(), pending)
    slow = [{round_of(row) for row in some.ended if row.outcome in TOO_SLOW} for some in pair]
    missing, of_baseline = (len(ended - runs.keys() | ended & late) for runs, late in zip(by_round, slow, strict=True))
    complete = {
        key: whole
        for key in ended
        if (whole := _complete(by_round[0].get(key, []), by_round[1].get(key, []))) is not None
    }
    if not of_time and not complete:  # a loss over other seeds is another loss
        seeds = seeds_in_common(*([row for row, _ in runs] for runs in (mine, theirs)))
        mine, theirs = ([run for run in runs if seed_of(run[0]) in seeds] for runs in (mine, theirs))
    closed, unordered = _close(*([run for run in runs if round_of(run[0]) not in shared] for runs in (mine, theirs)))
    if obstacle:
        pass
    elif intervals.lopsided(missing, of_baseline, len(ended)):
        most, row = max((missing, arm), (of_baseline, baseline), key=itemgetter(0))
        silent = [run for run in row.used if round_of(run) in ended - by_round[row is baseline].keys()]
        what = "value" if silent else "run"
        obstacle = f"in {most} of {len(ended)} rounds the {what} of {row.label} is missing or retried"
        obstacle += ", so its worst may be hidden"
        if silent:
            obstacle += f": mpsq logs {silent[-1].run} shows its output"
        elif row.left_out:
            last = row.left_out[-1]
            anew = "" if last.merged else f", mpsq rerun g{last.group_id} starts over"
            obstacle += f": mpsq why {last.run} explains it{anew}"
    elif not complete:
        obstacle = unordered
    rounds = [(at, key[1], complete.get(key)) for key, at in order.items()]
    rounds += [(at, 0, whole) for at, whole in closed]
    in_order = [whole for *_, whole in sorted(rounds, key=itemgetter(0, 1))]
    compared = [run for whole in complete.values() for run in whole.theirs] if complete else theirs
    machines = [whole and whole.machine for whole in in_order]
    several = len({whole.machine for whole in in_order if whole}) > 1
    contrast = intervals.Contrast(
        [whole.difference if whole else None for whole in in_order],
        margin=margin,
        step=step,
        levels=sum(map(_levels, pair)),
        obstacle=obstacle,
        machines=machines if several else (),
    )
    return _Pairing(contrast, _mean(mine) - _mean(theirs), _mean(compared))


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


def _close(mine: Values, theirs: Values) -> tuple[list[tuple[float, _Complete]], str]:
    """Return the rounds that runs without planned ones close on their machines, with their times; else why they are not
    compared."""
    by_machine = [by_key(runs, lambda run: machine_of(run[0])) for runs in (mine, theirs)]
    both = [machine for machine in by_machine[0] if machine in by_machine[1]]
    closed = [_close_on(machine, *(runs[machine] for runs in by_machine)) for machine in both]
    rounds = [whole for some, _ in closed for whole in some]
    elsewhere = "the rows ran on different machines" if mine and theirs else ""
    return rounds, "" if rounds else next((why for _, why in closed), elsewhere)


def _close_on(machine: str | None, mine: Values, theirs: Values) -> tuple[list[tuple[float, _Complete]], str]:
    if any(row.started_at is None for row, _ in (*mine, *theirs)):
        return [], "the order of the runs is unknown"
    closed = intervals.close_rounds(*([(row.started_at or 0.0, x) for row, x in runs] for runs in (mine, theirs)))
    if not intervals.balanced(closed):
        return [], "the order of the runs may favour one side: submit both together to balance it"
    return [(at, _Complete(difference, theirs, machine)) for at, difference, _ in closed], ""


def mean_interval(times_s: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the geometric mean of one row's times by the same formula; None for too few runs."""
    interval = metric_interval([math.log(time_s) for time_s in times_s])
    return interval and (math.exp(interval[0]), math.exp(interval[1]))


def metric_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of one row's values of a metric; None for too few runs."""
    if len(values) < intervals.FIRST_LOOK:
        return None
    estimate = intervals.Estimate(len(values), fmean(values), variance(values), len(values) - 1)
    half_width = estimate.half_width(1)
    return estimate.mean - half_width, estimate.mean + half_width


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


def _answer(pairing: _Pairing, judgement: intervals.Judgement, same_within: float | None, of_time: bool) -> Verdict:
    change, baseline = judgement.mean if judgement.n else pairing.difference, pairing.baseline
    value = baseline + change
    if of_time:
        change, baseline = math.exp(change), math.exp(-baseline)
        value = baseline / change
    why, is_final = _obstacle(pairing.contrast, judgement, of_time)
    return Verdict(
        of_time=of_time,
        word=_WORDS[judgement.decision][of_time],
        change=change,
        low=_end(judgement.low, of_time),
        high=_end(judgement.high, of_time),
        value=value,
        baseline=baseline,
        n=judgement.n,
        given_after=judgement.given_after,
        more=judgement.more,
        same_within=same_within,
        within_margin=judgement.within_margin,
        why=why,
        is_final=is_final,
        machines=judgement.machines,
    )


def _obstacle(contrast: intervals.Contrast, judgement: intervals.Judgement, of_time: bool) -> tuple[str, bool]:
    """Return what prevents a verdict, and whether further rounds cannot remove it. Rounded values hide a difference
    below their step, until noise of several steps shows it in the mean of many rounds."""
    if contrast.obstacle:
        return contrast.obstacle, True
    if 1 < judgement.machines < intervals.FIRST_LOOK:
        few = f"{judgement.machines} machines are too few for a verdict"
        return f"{few}: run rounds on a third, too, or all on one (--nodes-at-once 1)", False
    if judgement.waits_for_levels:
        n = intervals.FIRST_LOOK_WITH_LEVELS
        return f"the runs of a row form groups of different speed: a verdict needs {n} rounds", False
    step = contrast.step
    equal = judgement.n >= intervals.FIRST_LOOK and not (
        judgement.given_after or judgement.more or any(contrast.differences)
    )
    if equal and step < HIDES_NOTHING:
        return f"the rows are equal in all {judgement.n} rounds", True
    if not (judgement.given_after or judgement.more) and step > abs(judgement.mean):
        rounded = f"times are rounded to steps of {units.percent(step, 2)}" if of_time else ""
        rounded = rounded or f"values are rounded to steps of {step:g}"
        is_final = all(abs(x) <= 2 * step for x in contrast.differences if x is not None)
        return f"the {rounded}: print more digits", is_final
    if judgement.contradicted and judgement.decision is intervals.Decision.UNDECIDED:
        return "later rounds contradict the earlier ones", False
    return "", False


def _end(x: float, of_time: bool) -> float | None:
    """Return an end of an interval, as a ratio of times; None where nothing is excluded, or beyond what a float
    holds."""
    if of_time:
        return math.exp(x) if abs(x) < 700 else None
    return x if math.isfinite(x) else None
