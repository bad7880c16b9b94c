"""Two charts of a comparison: each row's difference from the baseline with its interval, and the runs of each row, in
the quantity that the answer compares. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis import run_metrics
from queue_runner.analysis.comparison import Family, Pair
from queue_runner.analysis.grouping import Arm, taints, without_used
from queue_runner.analysis.intervals import FIRST_LOOK
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Verdict, Word, mean_interval, metric_interval
from queue_runner.model import Outcome
from queue_runner.pages.axis import Axis, axis
from queue_runner.spec import OF_TIME

COLOURS = 8
"""Colours of the style sheet: c0 to c7. Rows beyond them use the first again; the label beside a row names it."""
MOST_STRIPS = 40
"""Rows of a chart: more are scrolled, not compared. The table has all."""
BEYOND = 4.0
"""Ratio to the farthest mark at which an interval of times is cut, and for a metric the multiple of the range of all
marks: a wide one does not set the axis."""
_JITTER = (0, -6, 6, -3, 3)
"""Vertical offsets in pixels of neighbouring dots, so that equal runs do not hide each other."""
_SIGNS = {Word.FASTER: "good", Word.SLOWER: "bad", Word.UNDECIDED: "warn"}


class Dot(Struct, frozen=True):
    """A mark: its place in percent of the width, its offset in pixels, what to say of it, and its kind: "hollow" if the
    row is undecided, "out" if the run is left out."""

    x: float
    dy: int
    title: str
    kind: str = ""


class Strip(Struct, frozen=True):
    """A row of a chart: an arm, its dots, and its interval, whose low and high end may be `cut` because it goes on
    beyond the edge; `word` is its verdict, `sign` the class of that."""

    label: str
    colour: str
    about: str
    dots: Sequence[Dot]
    low: float | None = None
    high: float | None = None
    middle: float | None = None
    word: str = ""
    sign: str = ""
    cut: tuple[bool, bool] = (False, False)


class Chart(Struct, frozen=True):
    """All arms of a family on one axis, with its title; `zero` is the place of no difference. `notes` say what the
    chart cannot show."""

    axis: Axis
    title: str
    strips: Sequence[Strip]
    notes: Sequence[str] = ()
    zero: float | None = None


def colour(place: int) -> str:
    """Return the class of the n-th arm's colour."""
    return f"c{place % COLOURS}"


def quantities(family: Family) -> list[Family]:
    """Return the family, and the same led by the quantity that comes next: the time, or the first metric that somebody
    asks about or that has verdicts."""
    names = [name for name, obstacle in family.metrics.items() if name in family.named or not obstacle]
    compared = [name for name in names if any(name in pair.metrics for pair in family.pairs)]
    compared.sort(key=lambda name: name not in family.named)
    following = [OF_TIME] if family.by else compared[:1]
    return [family, *(replace(family, aim=replace(family.aim, by=name)) for name in following)]


def _drawn(family: Family) -> tuple[dict[Arm, int], list[str]]:
    """Return the rows that a chart has room for, each with its place among all, and a note if these are not all: the
    baseline and the fastest, or those that differ most from it in the metric."""

    def rank(pair: Pair) -> float:
        if not family.by:
            return pair.ratio
        return abs(pair.metrics[family.by].change) if family.by in pair.metrics else 0.0

    ranked = [pair.arm for pair in sorted(family.pairs, key=rank, reverse=True)]
    arms = [family.baseline] if family.baseline is not None else []
    chosen = {*[*dict.fromkeys([*arms, *ranked, *family.arms])][:MOST_STRIPS]}
    which = (", those that differ most" if family.by else ", the fastest") if family.pairs else ""
    notes = [f"{MOST_STRIPS} of {len(family.arms)} rows are drawn{which}"] if len(family.arms) > MOST_STRIPS else []
    return {arm: place for place, arm in enumerate(family.arms) if arm in chosen}, notes


def forest(family: Family) -> Chart | None:
    """Return the difference of each row from the baseline with its interval; None where nothing is compared."""
    if family.baseline is None or not family.pairs:
        return None
    metric = family.by
    arms, notes = _drawn(family)
    answers = {
        pair.arm: pair.metrics[metric] if metric else pair.verdict
        for pair in family.pairs
        if (not metric or metric in pair.metrics) and pair.arm in arms
    }
    scale: Callable[[float], float] = float if metric else math.exp
    points = [0.0, *(answer.on_scale[0] for answer in answers.values())]
    intervals = [answer.on_scale[1:] for answer in answers.values() if answer.low is not None]
    narrowest = min((max(map(abs, interval)) for interval in intervals), default=0.0)
    beyond = max(10 * (max(points) - min(points)), narrowest) if metric else math.log(BEYOND)
    low, high = min(points) - beyond, max(points) + beyond
    ends = [end for interval in intervals for end in interval]
    shown = [scale(min(max(value, low), high)) for value in (*points, *ends)]
    x_axis = axis(shown, (lambda value: units.measured(value, sign=True)) if metric else lambda ratio: f"{ratio:.4g} x")
    assert x_axis is not None  # there is at least the baseline
    strips = []
    for arm, place in arms.items():
        if arm is family.baseline:
            dot = Dot(x_axis.at(scale(0.0)), 0, f"{arm.label}: the baseline")
            strips.append(Strip(arm.label, colour(place), "", [dot], word="baseline"))
        elif answer := answers.get(arm):
            strips.append(_compared(arm, place, answer, [scale(value) for value in answer.on_scale], x_axis))
    base = family.baseline.label
    per = f" in time per {family.per_work}" if family.per_work else ""
    title = (
        f"difference in {metric} from {base}; right of 0 is higher"
        if metric
        else f"speedup over {base}{per}; right of 1 x is faster"
    )
    return Chart(x_axis, title, strips, [*notes, *_cut_note(strips)], zero=x_axis.at(scale(0.0)))


def _compared(arm: Arm, place: int, answer: Verdict, values: Sequence[float], on: Axis) -> Strip:
    about = ", ".join(filter(None, [answer.size, answer.rounds, answer.next_step]))
    low, high = map(on.at, values[1:]) if len(values) == 3 else (None, None)
    dot = Dot(on.at(values[0]), 0, f"{arm.label}: {about}", "" if answer.decided else "hollow")
    return Strip(
        arm.label,
        colour(place),
        about,
        [dot],
        low,
        high,
        word=str(answer.word),
        sign=_SIGNS.get(answer.word, ""),
        cut=_cut(values[1:], on),
    )


def _cut(ends: Sequence[float], on: Axis) -> tuple[bool, bool]:
    """Return at which of its ends, if there are any, an interval goes on beyond the axis."""
    return bool(ends) and ends[0] < on.low, bool(ends) and ends[-1] > on.high


def _cut_note(strips: Iterable[Strip]) -> list[str]:
    return ["arrow: the interval goes on beyond the edge"] if any(any(strip.cut) for strip in strips) else []


class Quantity(Struct, frozen=True):
    """The quantity that the answer compares: its name, the value of a run, and how many seconds of an arm's times one
    unit has; None for a metric."""

    name: str
    value_of: Callable[[Arm, ReportedRun], float | None]
    show: Callable[[float], str]
    scale: Callable[[Arm], float] | None


def quantity(family: Family) -> Quantity:
    """Return what the answer on the family compares: a metric, or the time of a run, an iteration, token or sample."""
    if metric := family.by:
        return Quantity(
            f"{metric} at the end of a run",
            lambda _arm, row: run_metrics.value(row, metric),
            units.measured,
            None,
        )

    def scale(arm: Arm) -> float:
        return (arm.work(family.per_work) or math.nan) if family.per_work else 1.0

    def value(arm: Arm, row: ReportedRun) -> float | None:
        return row.median_s / scale(arm) if row.median_s else None

    name = "real time of a run" if family.wall else f"time per {family.per_work or 'iteration'}, median of a run"
    return Quantity(name, value, units.short_duration, scale)


def chart(family: Family, details: Mapping[int, Sequence[object]]) -> Chart | None:
    """Return each run as a dot, with the mean of its row and the interval of that; None if fewer than two have a value.
    `details`: the taints of a run in words, by run_id."""
    what = quantity(family)
    arms, notes = _drawn(family)
    values = [
        {
            row.run_id: value
            for row in arm.ended
            if (value := what.value_of(arm, row)) is not None and math.isfinite(value)
        }
        for arm in arms
    ]
    intervals = [_interval(arm, what, by_run, family) for arm, by_run in zip(arms, values, strict=True)]
    drawn = [value for by_run in values for value in by_run.values()]
    if len(drawn) < 2:
        return None
    least, most = min(drawn) / BEYOND, max(drawn) * BEYOND
    if what.scale is None:
        beyond = BEYOND * (max(drawn) - min(drawn))
        least, most = min(drawn) - beyond, max(drawn) + beyond
    x_axis = axis([*drawn, *(min(max(end, least), most) for ends in intervals for end in ends[1:])], what.show)
    assert x_axis is not None  # there are values
    strips = [
        _strip(arm, by_run, ends, place, x_axis, details, what)
        for (arm, place), by_run, ends in zip(arms.items(), values, intervals, strict=True)
    ]
    title = f"{what.name} ({x_axis.about})"
    return Chart(x_axis, title, strips, [*notes, *_cut_note(strips), *_notes([*arms], values, intervals)])


def _interval(arm: Arm, what: Quantity, by_run: Mapping[int, float], family: Family) -> tuple[float, ...]:
    """Return the mean of an arm and, where it has enough runs, the ends of its interval; empty without any."""
    if what.scale is None:
        values = [by_run[row.run_id] for row in arm.used if row.run_id in by_run]
        ends = metric_interval(values) if not family.metrics.get(family.by) else None  # else its runs are not a sample
        return (fmean(values), *(ends or ())) if values else ()
    if not arm.times or arm.median_s is None:
        return ()
    scale = what.scale(arm)
    return tuple(value / scale for value in (arm.median_s, *(mean_interval(arm.times) or ())))


def _strip(
    arm: Arm,
    values: Mapping[int, float],
    interval: Sequence[float],
    place: int,
    on: Axis,
    details: Mapping[int, Sequence[object]],
    what: Quantity,
) -> Strip:
    used = {row.run_id for row in (arm.timed if what.scale else arm.used)}
    dots = [
        Dot(
            on.at(values[row.run_id]),
            _JITTER[k % len(_JITTER)],
            f"run {row.run}: {what.show(values[row.run_id])}"
            + ("" if row.run_id in used else ", left out")
            + "".join(f"; {detail}" for detail in details.get(row.run_id, taints(row))),
            "" if row.run_id in used else "out",
        )
        for k, row in enumerate(row for row in arm.ended if row.run_id in values)
    ]
    middle, low, high = ([on.at(value) for value in interval] + [None] * 3)[:3]
    cut = _cut(interval[1:], on)
    return Strip(arm.label, colour(place), _about(arm, interval, what), dots, low, high, middle, cut=cut)


def _about(arm: Arm, interval: Sequence[float], what: Quantity) -> str:
    if not arm.used:
        return f"no valid run of {arm.n_ended}" if arm.ended else "has not run"
    text = f"{what.show(interval[0])}, " if interval else ""
    left_out = without_used(arm.ended, {row.run_id for row in arm.used})
    return f"{text}{units.counted(len(arm.used), 'run')}{f', {len(left_out)} left out' if left_out else ''}"


def _notes(
    arms: Sequence[Arm], values: Sequence[Mapping[int, float]], intervals: Sequence[Sequence[float]]
) -> Iterable[str]:
    few = [
        arm.label for arm, ends in zip(arms, intervals, strict=True) if len(ends) == 1 and len(arm.used) < FIRST_LOOK
    ]
    if few:
        which = "each row" if len(few) == len(arms) else f"{', '.join(few[:4])}{' …' * (len(few) > 4)}"
        yield f"no interval before {FIRST_LOOK} valid runs: {which}"
    failed = [
        row.run
        for arm, by_run in zip(arms, values, strict=True)
        for row in arm.ended
        if row.run_id not in by_run and row.outcome != Outcome.SUCCEEDED
    ]
    if failed:
        yield f"without a value, and so without a dot: {units.listed(failed, 5)}"
