"""Throughput and memory against batch size or another swept number: the knee, and the largest value that fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.curves import ENOUGH, FEWEST, Curve, CurvePoint, find_curves, number
from queue_runner.analysis.finding import Finding
from queue_runner.analysis.findings import other_clock
from queue_runner.analysis.grouping import word
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.monitor.answers import prepare, select_runs, sweeps
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables, footnotes
from queue_runner.reports._common.arm_rows import ArmNumbers, of_arm
from queue_runner.reports._common.columns import columns, through
from queue_runner.reports._common.document import Result, Section, together
from queue_runner.reports._common.settings import effective
from queue_runner.spec import JobSpec
from queue_runner.submit.find_max import search
from queue_runner.submit.find_max.next_probe import state_of_job
from queue_runner.tables import Column

NAME = "scaling"
HELP = "throughput and memory against batch size or another swept number: the knee, the largest value that fits"
READS = ("group_by", "iters")
SQL = (
    f"SELECT {prepare.RUN}, spec_json, peak_allocated_bytes,"
    " NULLIF(json_extract(spec_json, '$.find_max'), '') AS find_max"
    " FROM v_run WHERE {chosen} AND state = 'DONE' ORDER BY job_id, number"
)
_KNOWN = frozenset({"machine", "subject", "config", "device", "compile", "dtype", "framework"})
"""Names in a key that are not settings."""


class PointRow(ArmNumbers, Struct, frozen=True):
    """A point, which is an arm, and its curve."""

    curve: Curve
    arm: CurvePoint

    excluded = of_arm(lambda arm: not arm.used and any(row.median_s for row in arm.shown))
    """Whether only invalid runs have a time."""

    @property
    def factors(self) -> dict[str, Any]:
        """The settings of the curve."""
        return {name: value for name, value in self.curve.key.items() if name not in _KNOWN and value is not None}

    @property
    def share_of_best(self) -> float | None:
        """The throughput as a share of the highest of the curve."""
        curve, knee = self.curve, self.curve.knee
        rate = self.arm.rate(curve.unit) if curve.unit and self.arm.valid else None
        return rate / knee.best.rate if knee and rate else None

    @property
    def allocated_bytes(self) -> int | None:
        """The most memory that a run allocated."""
        return max((run.peak_allocated_bytes for run in self.arm.runs if run.peak_allocated_bytes), default=None)

    @property
    def outcome(self) -> str:
        """How the run ended that shows that the value does not fit, or SUCCEEDED."""
        return Outcome.SUCCEEDED.value if self.arm.fits else str(_ending(self.arm.failed or self.arm.runs[-1]))

    @property
    def is_knee(self) -> bool:
        """Whether the knee of the curve is here."""
        knee = self.curve.knee
        return bool(knee and knee.at and knee.at.size == self.arm.value)


_SHARE = Column("share_of_best", "of best", units.percent, True)
COLUMNS = columns(
    "workload config",
    *through("curve.first", "framework framework_version device device_name compile dtype"),
    "factors",
    Column("setting", "setting", value=attrgetter("curve.name")),
    Column("value", "value", units.number, True, value=attrgetter("arm.value")),
    "runs",
    Column("n_timed", "timed", units.count, True, value=lambda row: len(row.arm.with_time)),
    *through("arm", "valid"),
    "median_s spread_s spread_over tokens_per_s samples_per_s",
    _SHARE,
    Column("memory_bytes", "memory", units.size, True, value=lambda row: row.arm.memory[0]),
    Column("memory_is", "memory kind", value=lambda row: row.arm.memory[1]),
    "allocated_bytes",
    Column("fits", "fits", value=attrgetter("arm.decided_by_memory")),
    "outcome",
    Column("is_knee", "knee"),
    Column("is_largest", "largest that fits", value=lambda row: row.arm is row.curve.largest),
    "taints",
)
MOST_CURVES = 6
"""Maximum number of curves shown when no runs were chosen."""
KNEE = (
    f"knee: smallest value with at least {units.percent(ENOUGH, 2)} of the highest throughput; none if that is the"
    f" largest value, or with fewer than {FEWEST} values"
)


def finish(rows: list[ReportedRun], context: Context) -> Result:
    """Build a table for each curve, and describe its knee and end. Raises: UsageError when --group-by is invalid."""
    runs, _ = sweeps.with_phase_times(
        prepare.windowed(rows, context), context, lambda run: (run.machine, run.subject, run.device)
    )
    settings = effective(runs, context) if runs else {}
    curves = find_curves(runs, settings, _requested(runs, settings, context), context.options.include_invalid)
    if not curves:
        which = "that ended and differs from another in one number only (--set batch_size=8,16,32)"
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, which)])
    visible = curves if context.options.chosen else curves[:MOST_CURVES]
    timed = (row for curve in visible for point in curve.points for row in point.with_time)
    marks = footnotes.CaveatMarks(runs, timed, context)
    sections, lines = together(
        [
            ([_section(curve, marks)], [_knee_words(curve), _fit_words(curve), *_searches(curve, context)])
            for curve in visible
        ]
    )
    notes = [*_notes(visible, marks)]
    if older := curves[len(visible) :]:
        shows = f"mpsq report scaling g{older[0].first.group_id} shows {'one' if len(older) > 1 else 'it'}"
        notes.append(f"{units.counted(len(older), 'older curve')} not shown: {shows}")
    return Result(
        COLUMNS, [PointRow(curve, point) for curve in curves for point in curve.points], sections, lines, notes
    )


def _requested(rows: Sequence[ReportedRun], settings: Mapping[int, Mapping[str, Any]], context: Context) -> str | None:
    """Return the setting named by --group-by. Raises: UsageError unless it is one setting with numbers."""
    reported = sorted({name for by_name in settings.values() for name in by_name})
    names = [select_runs.spelled(name, reported) for name in context.options.group_by]
    if len(names) > 1 or (names and not any(number(settings[row.run_id].get(names[0])) is not None for row in rows)):
        known = sorted({name for row in rows for name, value in row.settings.items() if number(value) is not None})
        hint = f"for example --group-by {known[0]}" if known else "mpsq submit nanogpt --set batch_size=8,16,32"
        raise UsageError("scaling: --group-by takes one numeric setting", hint)
    return names[0] if names else None


def _section(curve: Curve, marks: footnotes.CaveatMarks) -> Section:
    rows = [PointRow(curve, point) for point in curve.points]
    kinds = {point.memory[1] for point in curve.points} - {None}
    memory = next(iter(kinds)) if len(kinds) == 1 else "memory"
    shown = columns(
        Column("value", curve.name, _value, True, value=attrgetter("arm.value")),
        arm_tables.RUNS,
        arm_tables.MS,
        *marks.columns(rows),
        *((f"{curve.unit}s_per_s", _SHARE) if curve.unit else ()),
        Column("memory_bytes", str(memory), units.size, True, value=lambda row: row.arm.memory[0]),
        Column("remarks", "", flexible=True, value=_remarks),
    )
    return Section(_title(curve), shown, rows)


def _title(curve: Curve) -> str:
    key, first = curve.key, curve.first
    version = " ".join(filter(None, (first.framework, first.framework_version)))
    words = [f"{first.subject} {key['config'] or ''}".strip(), version]
    words += [word(name, key[name]) for name in ("device", "compile", "dtype") if key[name] is not None]
    words += [word(name, value) for name, value in key.items() if name not in {*_KNOWN, "code"} and value is not None]
    words = [part for part in words if part]
    words += [f"on {first.device_name}"] if first.device_name else []
    return ", ".join([*words, *filter(None, [first.where])])


def _remarks(row: PointRow) -> str:
    remarks = ["knee"] if row.is_knee else []
    remarks += ["largest that fits"] if row.arm is row.curve.largest and row.curve.too_large else []
    remarks += [row.outcome] if row.outcome != Outcome.SUCCEEDED else []
    if row.outcome == Outcome.SUCCEEDED and not row.arm.valid:
        remarks.append(f"invalid: {' '.join(row.taints)}" if row.arm.with_time else "no iterations")
    return ", ".join(remarks)


def _ending(row: ReportedRun) -> str:
    """Return how a run that does not fit ended."""
    return "swapping" if row.outcome == Outcome.SUCCEEDED else row.ending


def _knee_words(curve: Curve) -> str:
    knee, name, unit = curve.knee, curve.name, curve.unit
    if unit is None:
        return "no knee: the runs do not report tokens or samples per iteration"
    if knee is None:
        return f"no knee: fewer than {FEWEST} values of {name} have a valid time"
    rate = f"{units.number(knee.best.rate)} {unit}s/s"
    best = f"the maximum, {rate}"
    doubt = "; uncertain: the times vary by more than the 5 % margin (increase --repeats)" if knee.noisy else ""
    if knee.at is None:
        return f"no knee up to {name} {_value(knee.best.size)}: throughput still rises{doubt}"
    if knee.at.size != knee.best.size:
        best = f"{units.percent(knee.share(knee.at))} of the maximum ({rate} at {_value(knee.best.size)})"
    below = knee.below
    where = f"; {_value(below.size)} reaches {units.percent(knee.share(below))}" if below else "; the smallest tried"
    last = curve.rates[-1]
    falls = knee.share(last) < ENOUGH
    fall = f"; it falls to {units.percent(knee.share(last))} at {_value(last.size)}" if falls else ""
    return f"knee: {name} {_value(knee.at.size)}, {best}{where}{fall}{doubt}"


def _fit_words(curve: Curve) -> str:
    largest, beyond, name = curve.largest, curve.too_large, curve.name
    works = f"largest {name} that fits: {_value(largest.value)}" if largest else f"no {name} fits"
    if largest and (size := largest.memory[0]):
        works += f", using {units.size(size)} ({largest.memory[1]})"
    if beyond is None:
        tried = max(point.value for point in curve.points)
        if largest is not None and tried > largest.value:
            return f"{works}; it is unknown whether larger ones, up to {_value(tried)}, fit"
        return f"{works}; it is the largest that was tried"
    row = beyond.decided[-1]
    reason = f": {row.reason}" if row.reason else ""
    too_large = row.outcome in (Outcome.OUT_OF_MEMORY, Outcome.SUCCEEDED)  # success by swapping
    failed = "smallest that does not fit" if too_large else "smallest other failure"
    return f"{works}; {failed}: {_value(beyond.value)}, {_ending(row)}{reason}"


def _value(x: float) -> str:
    """Format a value of the setting."""
    return units.count(x) if isinstance(x, int) else units.number(x, 6)


def _notes(curves: Sequence[Curve], marks: footnotes.CaveatMarks) -> Iterable[str]:
    """Return all footnotes."""
    if any(curve.unit for curve in curves):
        yield KNEE
    jax = [curve.first for curve in curves if curve.first.framework == "jax"]
    if any(row.device not in ("cpu", None) for row in jax):
        yield (
            "reserved by jax: XLA reserves most of a device's memory at start unless"
            " XLA_PYTHON_CLIENT_PREALLOCATE=false, so this is not what the size needs"
        )
    points = [(curve, point) for curve in curves for point in curve.points]
    times = footnotes.times(row.time_of for _, point in points for row in point.timed)
    yield from footnotes.spreads(times, {point.spread_s[1] for _, point in points})
    yield from other_clock((f"{curve.name} {_value(point.value)}", point.timed) for curve, point in points)
    yield from marks.notes()
    bad = [row for _, point in points for row in point.runs if not row.valid and row.median_s]
    yield from marks.excluded(bad, {row.run_id for _, point in points for row in point.used})
    if bad:
        yield Finding("invalid runs, too, show whether a value fits")
    for curve, point in points:
        if curve.largest and point.failed and point.value < curve.largest.value:
            row, at = point.failed, f"{curve.name} {_value(point.value)}"
            yield f"{row.run} ({at}) failed although a larger value fits: {_ending(row)}"


def _searches(curve: Curve, context: Context) -> Iterable[str]:
    """Report the state of each --find-max of a curve."""
    named: set[tuple[Any, ...]] = set()
    for row in (row for point in curve.points for row in point.runs if row.find_max):
        request = search.parse(row.find_max or "")
        spec = search.without(JobSpec.from_json(row.spec_json), request.key)
        key = row.group_id, row.find_max, spec
        if key not in named:
            named.add(key)
            state = state_of_job(context.connection, row.job_id)
            if state is not None:
                yield f"--find-max {request} of g{row.group_id}: {state.sentence(request.key)}"
