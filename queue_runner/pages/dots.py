"""Runs as dots: one row per arm, a dot per run at its median, a bar for the 95 % interval of the arm. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import Arm, taints
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import mean_interval
from queue_runner.analysis.verdicts import FIRST_LOOK
from queue_runner.model import Outcome
from queue_runner.pages.axis import Axis, axis, ticked

COLOURS = 8
"""Colours of the style sheet: c0 to c7. Rows beyond them use the first again; the label beside a row names it."""
_JITTER = (0, -6, 6, -3, 3)
"""Vertical offsets in pixels of neighbouring dots, so that equal runs do not hide each other."""


@dataclass(frozen=True)
class Dot:
    """A run: its place in percent of the width, its offset in pixels, whether it is used, and what to say of it."""

    x: float
    dy: int
    used: bool
    title: str


@dataclass(frozen=True)
class Strip:
    """A row of the chart: an arm and its runs."""

    label: str
    colour: str
    about: str
    dots: Sequence[Dot]
    low: float | None = None
    high: float | None = None
    middle: float | None = None


@dataclass(frozen=True)
class Chart:
    """All arms of a family on one axis; `notes` say what the chart cannot show."""

    axis: Axis
    strips: Sequence[Strip]
    notes: Sequence[str]
    relative: bool = False
    """whether the axis is the ratio to the row's own mean"""
    wall: bool = False
    """whether the times are those of whole runs"""


def colour(place: int) -> str:
    """Return the class of the n-th arm's colour."""
    return f"c{place % COLOURS}"


def charts(family: Family, details: Mapping[int, Sequence[object]]) -> list[Chart]:
    """Return the charts of a family, none if no run has a time. `details`: the taints of a run in words, by run_id.

    Where the times are so far apart that the axis is logarithmic, a second chart shows each run against its own row.
    """
    intervals = [mean_interval(arm.times) for arm in family.arms]
    shown = [[row for row in arm.ended if (row.median_s or 0) > 0] for arm in family.arms]
    first = _chart(family, shown, intervals, details, None)
    if first is None:
        return []
    drawn = [replace(first, notes=[*_notes(family, shown, intervals)])]
    if first.axis.log and any(len(arm.times) > 1 for arm in family.arms):
        centres = [arm.median_s if arm.times else None for arm in family.arms]
        drawn += filter(None, [_chart(family, shown, intervals, details, centres)])
    return drawn


def _chart(
    family: Family,
    shown: Sequence[Sequence[ReportedRun]],
    intervals: Sequence[tuple[float, float] | None],
    details: Mapping[int, Sequence[object]],
    centres: Sequence[float | None] | None,
) -> Chart | None:
    """Return the chart of the times, or with `centres` that of their ratios to these; None without any."""
    scales = [1.0] * len(shown) if centres is None else centres
    values = [(row.median_s or 0.0) / scale for rows, scale in zip(shown, scales, strict=True) if scale for row in rows]
    pairs = zip(intervals, scales, strict=True)
    ends = [end / scale for interval, scale in pairs if interval and scale for end in interval]
    x_axis = axis([*values, *ends], ticked if centres is None else percent_off)
    if x_axis is None:
        return None
    strips = [
        _strip(arm, rows, ends, place, x_axis, details, scale)
        for place, (arm, rows, ends, scale) in enumerate(zip(family.arms, shown, intervals, scales, strict=True))
        if scale
    ]
    return Chart(x_axis, strips, [], relative=centres is not None, wall=family.wall)


def percent_off(ratio: float) -> str:
    """Format a ratio as its distance from 1: "+5 %"."""
    return f"{(ratio - 1) * 100:+.3g} %" if abs(ratio - 1) > 1e-9 else "0"


def _strip(
    arm: Arm,
    rows: Sequence[ReportedRun],
    ends: tuple[float, float] | None,
    place: int,
    on: Axis,
    details: Mapping[int, Sequence[object]],
    scale: float,
) -> Strip:
    used = {row.run_id for row in arm.timed}
    dots = [
        Dot(
            on.at((row.median_s or 0.0) / scale),
            _JITTER[k % len(_JITTER)],
            row.run_id in used,
            f"run {row.run}: {units.short_duration(row.median_s)}"
            + ("" if row.run_id in used else ", left out")
            + "".join(f"; {detail}" for detail in details.get(row.run_id, taints(row))),
        )
        for k, row in enumerate(rows)
    ]
    low, high = (on.at(ends[0] / scale), on.at(ends[1] / scale)) if ends else (None, None)
    middle = on.at(arm.median_s / scale) if arm.times and arm.median_s is not None else None
    return Strip(arm.label, colour(place), _about(arm, ends), dots, low, high, middle)


def _about(arm: Arm, ends: tuple[float, float] | None) -> str:
    if not arm.times:
        return f"no valid run of {len(arm.ended)}" if arm.ended else "has not run"
    text = units.short_duration(arm.median_s)
    if ends:
        text += f" ({units.short_duration(ends[0])} to {units.short_duration(ends[1])})"
    left = f", {len(arm.left_out)} left out" if arm.left_out else ""
    return f"{text}, {units.counted(len(arm.times), 'run')}{left}"


def _notes(
    family: Family, shown: Sequence[Sequence[ReportedRun]], intervals: Iterable[tuple[float, float] | None]
) -> Iterable[str]:
    few = [arm.label for arm, ends in zip(family.arms, intervals, strict=True) if ends is None and arm.times]
    if few:
        which = "no row" if len(few) == len(family.arms) else f"not {', '.join(few[:4])}{' …' * (len(few) > 4)}"
        yield f"{which} has an interval: it needs {FIRST_LOOK} valid runs"
    failed = [
        row.run
        for arm, rows in zip(family.arms, shown, strict=True)
        for row in arm.ended
        if row not in rows and row.outcome != Outcome.SUCCEEDED
    ]
    if failed:
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        yield f"without a time, and so without a dot: {', '.join(failed[:5])}{more}"
