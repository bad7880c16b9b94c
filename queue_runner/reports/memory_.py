"""Memory of each run over its iterations: the peak, reserved but unused memory, growth, and how the run ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from operator import attrgetter, methodcaller
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis import stats
from queue_runner.analysis.grouping import SUBJECT, Arm, group, kinds_of_taint, labelled, order
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.model import Outcome
from queue_runner.monitor.answers import prepare, select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.monitor.run_view import outcome_style
from queue_runner.reports._common import footnotes
from queue_runner.reports._common.arm_tables import LABEL
from queue_runner.reports._common.columns import columns, shared, through
from queue_runner.reports._common.document import Result, Section
from queue_runner.reports._common.settings import ignore_length
from queue_runner.tables import Column

NAME = "memory"
HELP = "allocated and reserved bytes over the iterations: peak, fragmentation, growth, out-of-memory endings"
READS = ("group_by", "iters")
_WITH_ITERATIONS = "{chosen} AND state = 'DONE' AND (n_iters > 0 OR outcome = 'OUT_OF_MEMORY')"
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {_WITH_ITERATIONS} ORDER BY job_id, number"
_MOST_RUNS = 24
ONLY = f"run_id IN (SELECT run_id FROM v_run WHERE {_WITH_ITERATIONS} ORDER BY run_id DESC LIMIT {_MOST_RUNS})"
_POINTS = (
    "SELECT run_id, i, phase, allocated_bytes, reserved_bytes FROM v_iteration WHERE run_id IN ({runs})"
    " AND i BETWEEN ? AND ? AND COALESCE(allocated_bytes, reserved_bytes) IS NOT NULL ORDER BY run_id, offset"
)
FEWEST = 20
"""Minimum number of measured iterations for an estimate of growth."""
MATERIAL_SHARE = 0.01
MATERIAL_BYTES = 2**20
"""A leak is a growth over the measured iterations of more than this share of the median, and more than these bytes."""
PER = 1000
"""Number of iterations for which growth is given."""


class MemoryPoint(NamedTuple):
    """Memory after one iteration. Bytes are None where not reported."""

    i: int
    phase: str
    allocated: int | None
    reserved: int | None


class MemorySeries(Struct, frozen=True, eq=False, dict=True):
    """The memory of one run by iteration."""

    arm: Arm
    run: ReportedRun
    points: Sequence[MemoryPoint]

    @property
    def resident(self) -> bool:
        """Whether the reserved bytes are the RSS of the process."""
        return str(self.run.device) == "cpu"

    def peak(self, kind: str) -> int | None:
        """Return the most bytes, allocated or reserved."""
        return max((n for point in self.points if (n := getattr(point, kind)) is not None), default=None)

    @cached_property
    def ratio(self) -> float | None:
        """Reserved over allocated at the peak of reserved; None on the CPU, whose process holds more than tensors."""
        both = [(a, r) for _, _, a, r in self.points if a and r is not None]
        if not both or self.resident:
            return None
        allocated, reserved = max(both, key=lambda pair: pair[1])
        return reserved / allocated

    @cached_property
    def _measured(self) -> tuple[str, list[int], list[float]]:
        """The series for growth, with its name: bytes in tensors where reported, else reserved bytes."""
        tensors = any(point.allocated is not None for point in self.points)
        measured = [point for point in self.points if point.phase in ("measure", "eval_iter")]
        values = [(point.i, point.allocated if tensors else point.reserved) for point in measured]
        known = [(i, float(x)) for i, x in values if x is not None]
        name = "allocated" if tensors else "RSS" if self.resident else "reserved"
        return name, [i for i, _ in known], [x for _, x in known]

    @property
    def grows(self) -> str:
        """Quantity that growth refers to: allocated, reserved or RSS."""
        return self._measured[0]

    @cached_property
    def slope(self) -> stats.Slope | None:
        """Growth in bytes per iteration; None for fewer than FEWEST."""
        _, at, xs = self._measured
        return stats.slope(at, xs) if len(xs) >= FEWEST else None

    @cached_property
    def leak(self) -> bool | None:
        """Whether memory grows significantly and materially over the measured iterations, also in their second half.

        Memory that levels off is not a leak. None for fewer than FEWEST.
        """
        if self.slope is None:
            return None
        _, at, xs = self._measured
        half = len(xs) // 2
        later = stats.slope(at[half:], xs[half:])
        grown = self.slope.middle * (at[-1] - at[0])
        material = grown > max(MATERIAL_BYTES, MATERIAL_SHARE * stats.median(xs))
        return bool(material and self.slope.low > 0 and later is not None and later.low > 0)


def _growth(end: str) -> Callable[[MemorySeries], float | None]:
    return lambda item: getattr(item.slope, end) * PER if item.slope else None


_N = Column("n", "iterations", units.count, True, value=lambda item: len(item.points))
_ALLOCATED = Column("peak_allocated_bytes", "peak allocated", units.size, True, value=methodcaller("peak", "allocated"))
_RESERVED = Column("peak_reserved_bytes", "peak reserved", units.size, True, value=methodcaller("peak", "reserved"))
_RATIO = Column("reserved_over_allocated", "reserved / allocated", units.ratio, True, value=attrgetter("ratio"))
_GROWTH = Column("growth_bytes_per_1000", "growth / 1,000 iterations", units.size, True, value=_growth("middle"))
_LOW = Column("growth_low", "95 % low", units.size, True, value=_growth("low"))
_HIGH = Column("growth_high", "95 % high", units.size, True, value=_growth("high"))
_LEAK = Column("leak", "leak")
_OUTCOME = Column(
    "outcome", "outcome", value=attrgetter("run.ending"), style=lambda item: outcome_style(item.run.ending)
)
COLUMNS = columns(
    Column("workload", "workload", value=attrgetter("run.subject")),
    *through("run", "config"),
    *through("arm", "label"),
    *through("run", "framework framework_version device compile dtype run"),
    _OUTCOME,
    _N,
    Column("reserved_is", "reserved kind", value=lambda item: "RSS" if item.resident else "reserved"),
    _ALLOCATED,
    _RESERVED,
    _RATIO,
    Column("last_i", "last iteration", units.count, True, value=lambda item: item.points[-1].i),
    Column("last_allocated_bytes", "last allocated", units.size, True, value=lambda item: item.points[-1].allocated),
    Column("last_reserved_bytes", "last reserved", units.size, True, value=lambda item: item.points[-1].reserved),
    *through("run", "max_rss_bytes"),
    Column("grows", "growth of"),
    _GROWTH,
    _LOW,
    _HIGH,
    _LEAK,
    Column("valid", "valid", value=lambda item: bool(item.run.valid)),
    shared("taints", lambda item: kinds_of_taint([item.run])),
)
FRAGMENTED = 1.5
"""Minimum ratio of reserved to allocated, at the peak of reserved, that is reported."""


def finish(rows: list[ReportedRun], context: Context) -> Result:
    """Build a table of runs for each subject. Raises: UsageError when --group-by is invalid."""
    runs = ignore_length(prepare.prepare(rows, context), context)
    tables = _tables(runs, context) if runs else []
    series = [item for table in tables for item in table]
    without = [run.run for run in runs if run.outcome == Outcome.OUT_OF_MEMORY and not run.n_iters]
    notes = [*_notes(series)] if series else []
    if without:
        notes.append(f"out of memory before the first reported iteration: {footnotes.named(without)}")
    if not context.options.chosen and len(rows) == _MOST_RUNS:
        notes.append(
            f"the newest {_MOST_RUNS} runs only: select others with mpsq report memory g4, --since 2d or --where"
        )
    if not series:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "with reported memory")], notes=notes)
    return Result(COLUMNS, series, [_section(table) for table in tables], [*_findings(series)], notes)


def _tables(rows: Sequence[ReportedRun], context: Context) -> list[list[MemorySeries]]:
    """Return the runs that reported memory by subject, the newest first; those on the CPU, which report their RSS, in a
    table of their own."""
    window = context.options.iters or (0, 2**62)
    points = {
        run_id: [MemoryPoint(*values) for values in stored]
        for run_id, stored in context.tuples_by_run(_POINTS, rows, window).items()
    }
    arms = group([row for row in rows if row.run_id in points], prepare.question(rows, context).names)
    subjects = by_key(arms, lambda arm: tuple(arm.key[name] for name in SUBJECT)).values()
    tables: list[list[MemorySeries]] = []
    for subject in sorted(subjects, key=lambda arms: -max(row.run_id for arm in arms for row in arm.runs)):
        named = labelled(sorted(subject, key=order), dict.fromkeys(SUBJECT))
        series = [MemorySeries(arm, row, points[row.run_id]) for arm in named for row in arm.runs]
        tables += by_key(series, lambda item: item.resident).values()
    return tables


def _section(series: Sequence[MemorySeries]) -> Section:
    on_device = (
        replace(_ALLOCATED, title="allocated"),
        replace(_RESERVED, title="reserved"),
        replace(_RATIO, title="ratio", words=lambda ratio: units.number(ratio, 3)),
    )
    on_cpu = (replace(_N, title="iters"), replace(_RESERVED, title="RSS"))
    shown = (
        replace(LABEL, value=attrgetter("arm.label")),
        *through("run", "run"),
        *(on_cpu if series[0].resident else on_device),
        replace(_GROWTH, title="growth", words=_n_bytes),
        Column("interval", "95 % CI", right=True, value=_interval),
        replace(_LEAK, title="", words=lambda leak: "leak" if leak else ""),
    )
    names = ("framework", "dtype", "where")
    common = [{str(value) for item in series if (value := getattr(item.run, name))} for name in names]
    subject = " ".join(str(part) for part in (series[0].run.subject, series[0].run.config) if part)
    title = [subject, *(values.pop() for values in common if len(values) == 1), "peaks"]
    return Section(", ".join(title), shown, series)


def _n_bytes(x: float | None) -> str:
    """Format bytes; zero is 0, without a unit."""
    return "0" if x == 0 else units.size(None if x is None else round(x))


def _interval(item: MemorySeries) -> str:
    """Format the interval of the growth, with a common unit once: "208 to 250 MiB"."""
    if item.slope is None:
        return units.MISSING
    least, most = _n_bytes(_LOW.of(item)), _n_bytes(_HIGH.of(item))
    number, _, unit = least.partition(" ")
    return f"{number if most.endswith(' ' + unit) else least} to {most}"


def _findings(series: Sequence[MemorySeries]) -> Iterable[str]:
    """Report leaks, then memory reserved but not used, then runs that ran out of memory."""
    for item in series:
        if item.leak:
            yield (
                f"{item.run.run} ({item.arm.label}) leaks: {item.grows} grows by {_n_bytes(_GROWTH.of(item))} per"
                f" 1,000 iterations (95 % CI {_interval(item)}), also in the second half"
            )
    if steady := [item for item in series if item.leak is False]:
        yield f"no leak detected in {_runs(steady)}"
    if unknown := [item for item in series if item.leak is None]:
        yield f"growth unknown in {_runs(unknown)}: fewer than {FEWEST} measured iterations"
    yield from _unused(series)
    for item in series:
        if item.run.outcome == Outcome.OUT_OF_MEMORY:
            last = item.points[-1]
            sizes = [f"{units.size(last.allocated)} allocated"] if last.allocated is not None else []
            if last.reserved:
                sizes.append(f"{units.size(last.reserved)} {'resident' if item.resident else 'reserved'}")
            yield (
                f"{item.run.run} ({item.arm.label}) ran out of memory; after its last reported iteration,"
                f" {units.count(last.i)}: {' and '.join(sizes)}"
            )


def _unused(series: Sequence[MemorySeries]) -> Iterable[str]:
    """Report memory reserved between iterations beyond the allocated memory, from FRAGMENTED on."""
    fragmented = [item for item in series if item.ratio is not None and item.ratio >= FRAGMENTED]
    several = len({item.run.subject for item in series}) > 1
    for name, items in by_key(fragmented, lambda item: f"{item.run.subject} {item.arm.label}").items():
        name = name if several else items[0].arm.label
        more = units.ratio(max(item.ratio or 0.0 for item in items))
        why = "kept for temporary tensors of an iteration, or fragmented"
        if any(item.run.framework == "jax" for item in items):
            why = "XLA reserves most of a device's memory at start unless XLA_PYTHON_CLIENT_PREALLOCATE=false"
        yield f"{name}, {_runs(items)}, reserves up to {more} the size of its tensors between iterations: {why}"


def _runs(series: Sequence[MemorySeries]) -> str:
    return f"{units.counted(len(series), 'run')} ({footnotes.named([item.run.run for item in series])})"


def _notes(series: Sequence[MemorySeries]) -> Iterable[str]:
    """Explain the columns, and name the runs included that did not succeed."""
    if any(not item.resident for item in series):
        yield "allocated: in tensors; reserved: from the driver; both after each iteration, not the peak within it"
        yield "ratio: reserved over allocated, at the peak of reserved"
    if any(item.resident for item in series):
        yield "RSS: resident set size after each iteration, including libraries and data; rows of the CPU"
    yield (
        f"growth: per 1,000 iterations, Theil-Sen slope of the measured ones; leak: 95 % CI above 0, overall and in the"
        f" second half, and more than {units.percent(MATERIAL_SHARE, 1)} and {units.size(MATERIAL_BYTES)} in total"
    )
    failed = [f"{item.run.run} {item.run.ending}" for item in series if item.run.outcome != Outcome.SUCCEEDED]
    if failed:
        yield f"included up to their end: {footnotes.named(failed)}"
    if any(not item.run.valid for item in series):
        yield "runs with invalid times are included: their memory is valid, except that swapping lowers RSS"
