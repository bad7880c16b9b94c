"""When the runs ran, in which phase, and what the machine did meanwhile: rectangles and lines over time. Pure.

Runs of one submission share a time line, because they ran in turn; places are in percent of the width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.grouping import Arm, taints
from queue_runner.analysis.phases import spans
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.machine_records import SensorSample
from queue_runner.model import Outcome
from queue_runner.pages.axis import Tick, linear_ticks, place, ticked
from queue_runner.pages.dots import colour
from queue_runner.pages.run_records import RunRecords

MOST_LINES = 6
"""Submissions that get a time line, the newest first."""
MOST_POINTS = 600
"""Points of a line of samples: more than a screen has columns for; beyond it, the lowest and highest of each column."""

_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)
_SHARE = (0.0, 1.0)


class Sensor(Struct, frozen=True):
    """A line of samples: a key of host/run_sampler.py, its name, and its ends where they are fixed."""

    key: str
    name: str
    ends: tuple[float, float] | None = _SHARE
    unit: str = "%"

    def show(self, value: float) -> str:
        return units.percent(value, 2) if self.unit == "%" else f"{units.number(value, 3)} {self.unit}"


SENSORS = (
    Sensor("gpu_busy_share", "GPU busy, by all programs"),
    Sensor("gpu_others_busy_share", "GPU busy, by other programs"),
    Sensor("gpu_temperature_c", "heat of the GPU", None, "°C"),
    Sensor("gpu_clock_share", "clock of the GPU, of its highest"),
    Sensor("thermal_level", "thermal pressure, 0 to 4", (0.0, 4.0), ""),
    Sensor("others_cpu_share", "CPU, by other programs"),
    Sensor("job_cpu_share", "CPU, by the run"),
    Sensor("swap_out_bytes_per_s", "written to swap", None, "B/s"),
)
"""The lines of a time line; one of fewer than two samples is left out."""
_OFTEN_ZERO = ("thermal_level", "swap_out_bytes_per_s", "gpu_others_busy_share")
"""Lines that are left out where they are 0 throughout."""


class PhaseBlock(Struct, frozen=True):
    """A rectangle: its left edge and width in percent, its classes and what to say of it."""

    x: float
    width: float
    kind: str
    title: str


class SensorLine(Struct, frozen=True):
    """A line of samples as an SVG path in a box of 1000 x 100, and its median and extremes in words."""

    name: str
    path: str
    about: str


class GroupTimeline(Struct, frozen=True):
    """The time line of a submission."""

    title: str
    length: str
    ticks: Sequence[Tick]
    blocks: Sequence[PhaseBlock]
    lines: Sequence[SensorLine]
    notes: Sequence[str]


class Bar(Struct, frozen=True):
    """A run by its phases."""

    run: str
    label: str
    colour: str
    blocks: Sequence[PhaseBlock]
    length: str
    invalid: Sequence[str]
    caveats: Sequence[str]
    outcome: str


def courses(evidence: RunRecords) -> tuple[list[GroupTimeline], int]:
    """Return the time lines of the newest submissions, and how many were left out. One run without samples has none:
    its time stands in the table."""
    colours = _colours(evidence)
    timed = [row for row in evidence.runs if (_end(row) or 0) > _start(row)]
    by_group = by_key(sorted(timed, key=_start), lambda row: row.group_id)
    newest = sorted(by_group, key=lambda group: -_start(by_group[group][-1]))
    drawn = [_course(group, by_group[group], evidence, colours) for group in newest[:MOST_LINES]]
    return [course for course in drawn if course.lines or len(course.blocks) > 1], len(newest[MOST_LINES:])


def _colours(evidence: RunRecords) -> dict[int, tuple[str, Arm]]:
    return {
        row.run_id: (colour(at), arm)
        for family in reversed(evidence.families)
        for at, arm in enumerate(family.arms)
        for row in arm.runs
    }


def _start(row: ReportedRun) -> float:
    return math.inf if row.started_at is None else row.started_at


def _end(row: ReportedRun) -> float | None:
    """Return when a run ended: by its own clock, as the end that the queue stored is noticed later."""
    if row.started_at is None:
        return None
    return row.started_at + row.real_s if row.real_s is not None else row.ended_at


def _course(
    group: int, rows: Sequence[ReportedRun], evidence: RunRecords, colours: Mapping[int, tuple[str, Arm]]
) -> GroupTimeline:
    begin = min(map(_start, rows))
    end = max(_end(row) or 0 for row in rows)
    samples = [sample for row in rows for sample in evidence.samples.get(row.run_id, ())]
    lines = [line for sensor in SENSORS if (line := _line(sensor, samples, begin, end)) is not None]
    blocks = [_block(row, *colours[row.run_id], begin, end, evidence) for row in rows]
    drawn = "each line is drawn from its lowest to its highest value, or from 0 to 100 %"
    notes = [drawn if lines else "too few samples of the machine are stored of these runs"]
    if any(block.kind.endswith(" out") for block in blocks):
        notes.append("pale: runs that are left out")
    if any(len(_of(sensor, samples)) > MOST_POINTS for sensor in SENSORS):
        notes.append(f"of more than {MOST_POINTS} samples the lowest and the highest of each column are drawn")
    title = f"runs of g{group}" if len(rows) > 1 else f"run {rows[0].run}"
    return GroupTimeline(title, units.duration(end - begin), time_ticks(end - begin), blocks, lines, notes)


def _block(row: ReportedRun, colour: str, arm: Arm, begin: float, end: float, evidence: RunRecords) -> PhaseBlock:
    ended = _end(row) or begin
    x = place(_start(row), begin, end, edge=0)
    width = max(0.1, round(place(ended, begin, end, edge=0) - x, 3))
    run_taints = map(str, evidence.taints.get(row.run_id, ()))
    words = [f"run {row.run}, {arm.label}: {units.duration(ended - _start(row))}", *run_taints]
    used = any(run.run_id == row.run_id for run in arm.used)
    return PhaseBlock(x, width, colour if used else f"{colour} out", "; ".join(words))


def time_ticks(length_s: float) -> list[Tick]:
    """Return marks at round times from the beginning: seconds, minutes, hours or days."""
    step = next((step for step in _STEPS_S if length_s / step <= 5), 604800 * max(1, int(length_s / 604800 / 5)))
    if length_s < 1:
        return [
            Tick(place(t, 0, length_s, edge=0), ticked(units.short_duration(t))) for t in linear_ticks(0, length_s, 4)
        ]
    return [Tick(place(t, 0, length_s, edge=0), _round(t)) for t in range(0, int(length_s) + 1, int(step))]


def _round(t_s: int) -> str:
    """Format whole seconds in the unit that fits: "0", "30 s", "5 min", "1 h 30"."""
    if t_s % 86400 == 0 and t_s:
        return f"{t_s // 86400} d"
    if t_s >= 3600:
        return f"{t_s // 3600} h" + (f" {t_s % 3600 // 60:02d}" if t_s % 3600 else "")
    return "0" if not t_s else f"{t_s // 60} min" if t_s % 60 == 0 else f"{t_s} s"


def _of(sensor: Sensor, samples: Iterable[SensorSample]) -> list[tuple[float, float]]:
    return [(sample.at, value) for sample in samples if (value := getattr(sample, sensor.key)) is not None]


def _line(sensor: Sensor, samples: Sequence[SensorSample], begin: float, end: float) -> SensorLine | None:
    points = [(at, value) for at, value in _of(sensor, samples) if begin <= at <= end]
    if len(points) < 2 or (sensor.key in _OFTEN_ZERO and not any(value for _, value in points)):
        return None
    values = [value for _, value in points]
    low, high = sensor.ends or (min(values), max(values))
    if sensor.ends is None and low == high:
        low, high = low - 1, high + 1
    middle = sorted(values)[len(values) // 2]
    about = f"median {sensor.show(middle)}, {sensor.show(min(values))} to {sensor.show(max(values))}"
    return SensorLine(sensor.name, _path(points, begin, end, low, high), about)


def _path(points: Sequence[tuple[float, float]], begin: float, end: float, low: float, high: float) -> str:
    """Return a path through the points. It is interrupted where samples are missing for long, as between two runs."""
    gap = 3 * _usual_gap([at for at, _ in points])
    breaks = [k for k, (before, after) in enumerate(pairwise(points), 1) if after[0] - before[0] > gap]
    lines = []
    for piece in (points[a:b] for a, b in pairwise([0, *breaks, len(points)])):
        shown = piece if len(points) <= MOST_POINTS else _thinned(piece, begin, end)
        first, *others = (
            f"{10 * place(at, begin, end, edge=0):.1f} {100 - place(value, low, high, edge=0):.1f}"
            for at, value in shown
        )
        lines.append("L".join([f"M{first}h.5", *others]))  # a lone sample is seen, too
    return "".join(lines)


def _usual_gap(times: Sequence[float]) -> float:
    gaps = sorted(b - a for a, b in pairwise(times))
    return gaps[len(gaps) // 2] if gaps else 0.0


def _thinned(points: Sequence[tuple[float, float]], begin: float, end: float) -> list[tuple[float, float]]:
    """Return the lowest and the highest of the points of each column."""
    columns = MOST_POINTS // 2
    by_column = by_key(points, lambda point: int((point[0] - begin) / (end - begin) * columns))
    ends = [(min(of, key=lambda point: point[1]), max(of, key=lambda point: point[1])) for of in by_column.values()]
    return [point for pair in ends for point in sorted({*pair})]


def bars(evidence: RunRecords) -> tuple[list[Bar], list[Tick]]:
    """Return each run by its phases, on one scale of seconds, in the order of the arms; and the marks of the scale."""
    longest = max((row.real_s or 0.0 for row in evidence.runs), default=0.0)
    if not longest:
        return [], []
    by_run: dict[int, Bar] = {}
    for family in evidence.families:
        for at, arm in enumerate(family.arms):
            for row in arm.runs:
                if row.real_s and row.run_id not in by_run:
                    by_run[row.run_id] = _bar(row, arm.label, colour(at), longest, evidence)
    return [*by_run.values()], time_ticks(longest)


def _bar(row: ReportedRun, label: str, colour: str, longest: float, evidence: RunRecords) -> Bar:
    real_s = row.real_s or 0.0
    blocks = [PhaseBlock(0.0, place(real_s, 0, longest, edge=0), "other", f"real time {units.duration(real_s)}")]
    for span in spans(evidence.marks.get(row.run_id, ()), real_s):
        x = place(span.from_s, 0, longest, edge=0)
        width = round(place(min(span.to_s, real_s), 0, longest, edge=0) - x, 3)
        if width > 0:
            blocks.append(
                PhaseBlock(x, width, span.name, f"{span.name}: {units.short_duration(span.to_s - span.from_s, 3)}")
            )
    run_taints = evidence.taints.get(row.run_id, ())
    invalid = [str(taint) for taint in run_taints if taint.severity == "invalid"]
    caveats = [str(taint) for taint in run_taints if taint.severity == "caveat"]
    outcome = "" if row.outcome == Outcome.SUCCEEDED else str(row.outcome or row.state)
    caveats = caveats if run_taints else taints(row)
    return Bar(row.run, label, colour, blocks, units.duration(real_s), invalid, caveats, outcome)
