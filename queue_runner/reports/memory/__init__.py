"""Memory of each run over its iterations: the peak, reserved but unused memory, growth, and how the run ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, families
from queue_runner.analysis.grouping import SUBJECT, Arm, by_key, taints, word
from queue_runner.analysis.memory_growth import FEWEST, MATERIAL_BYTES, MATERIAL_SHARE, MemoryPoint, MemorySeries
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.monitor.listing import ending
from queue_runner.reports._common import footnotes, prepare, select_runs
from queue_runner.reports._common.arm_rows import newest_first
from queue_runner.reports._common.columns import RowColumn, columns
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.reports._common.settings import ignore_length
from queue_runner.tables import Column

NAME = "memory"
HELP = "allocated and reserved bytes over the iterations: peak, fragmentation, growth, out-of-memory endings"
_WITH_ITERATIONS = "{chosen} AND state = 'DONE' AND (n_iters > 0 OR outcome = 'OUT_OF_MEMORY')"
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {_WITH_ITERATIONS} ORDER BY job_id, number"
_MOST_RUNS = 24
ONLY = f"run_id IN (SELECT run_id FROM v_run WHERE {_WITH_ITERATIONS} ORDER BY run_id DESC LIMIT {_MOST_RUNS})"
COLUMNS = columns(
    "workload config label framework framework_version device compile dtype run outcome",
    Column("n", "iterations", units.count, True),
    Column("reserved_is", "reserved kind"),
    Column("peak_allocated_bytes", "peak allocated", units.size, True),
    Column("peak_reserved_bytes", "peak reserved", units.size, True),
    Column("reserved_over_allocated", "reserved / allocated", units.ratio, True),
    Column("last_i", "last iteration", units.count, True),
    Column("last_allocated_bytes", "last allocated", units.size, True),
    Column("last_reserved_bytes", "last reserved", units.size, True),
    "max_rss_bytes",
    Column("grows", "growth of"),
    Column("growth_bytes_per_1000", "growth / 1,000 iterations", units.size, True),
    Column("growth_low", "95 % low", units.size, True),
    Column("growth_high", "95 % high", units.size, True),
    Column("leak", "leak"),
    "valid taints",
)
PER = 1000
"""Number of iterations for which growth is given."""
FRAGMENTED = 1.5
"""Minimum ratio of reserved to allocated, at the peak of reserved, that is reported."""
_LABEL_WIDTH = 18
"""Characters available for a label in the narrowest table."""


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table of runs for each family. Raises: UsageError when --group-by is invalid or --vs is given."""
    if context.options.vs:
        raise UsageError(f"{NAME} takes no --vs: it compares nothing", "--where device=cuda narrows it")
    rows = ignore_length(prepare.prepare(rows, context), context)
    found = newest_first(families(rows, prepare.question(rows, context))) if rows else []
    raw, sections, shown = [], [], []
    for table in _tables(found):
        runs = [(arm, row) for family in table for arm in family.arms for row in arm.runs]
        series = [one for arm, row in runs if (one := _series(arm, row, context)) is not None]
        raw += [_row(one) for one in series]
        shown += series
        kinds = ([one for one in series if one.resident is resident] for resident in (True, False))
        sections += [_section(kind) for kind in kinds if kind]
    without = {row["run"] for row in rows if row["outcome"] == Outcome.OUT_OF_MEMORY} - {one["run"] for one in raw}
    notes = [*_notes(shown)] if raw else []
    if without:
        notes.append(f"out of memory before the first reported iteration: {footnotes.named(sorted(without))}")
    if not context.options.chosen and len(rows) == _MOST_RUNS:
        notes.append(
            f"the newest {_MOST_RUNS} runs only: select others with mpsq report memory g4, --since 2d or --where"
        )
    if not raw:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "with reported memory")], notes=notes)
    return Result(COLUMNS, raw, sections, [*_findings(shown)], notes)


def _tables(found: Sequence[Family]) -> list[list[Family]]:
    """Merge families that differ only in settings, and add these to the labels of their rows."""
    tables = []
    for several in by_key(found, lambda family: tuple(family.common[name] for name in SUBJECT)).values():
        differ = [n for n in several[0].common if len({str(f.common.get(n)) for f in several}) > 1]
        tables.append([_labelled(family, differ) for family in several])
    return tables


def _labelled(family: Family, differ: Sequence[str]) -> Family:
    words = [word(name, value) for name in differ if (value := family.common.get(name)) is not None]
    return replace(family, arms=[replace(arm, label=" ".join([arm.label, *words])) for arm in family.arms])


def _series(arm: Arm, row: Mapping[str, Any], context: Context) -> MemorySeries | None:
    first, last = context.options.iters or (0, 2**62)
    sql = (
        "SELECT i, phase, allocated_bytes, reserved_bytes FROM v_iteration WHERE run_id = ? AND i BETWEEN ? AND ?"
        " AND COALESCE(allocated_bytes, reserved_bytes) IS NOT NULL ORDER BY offset"
    )
    points = [MemoryPoint(*one.values()) for one in context.read(sql, [row["run_id"], first, last])]
    return MemorySeries(arm, row, points) if points else None


def _row(one: MemorySeries) -> dict[str, Any]:
    row, slope = one.run, one.slope
    last = one.points[-1]
    named = ("config", "framework", "framework_version", "device", "compile", "dtype", "run", "max_rss_bytes")
    return {
        "workload": row["subject"],
        "label": one.arm.label,
        **{name: row[name] for name in named},
        "outcome": str(ending(row)),
        "n": len(one.points),
        "reserved_is": "RSS" if one.resident else "reserved",
        "peak_allocated_bytes": one.peak_allocated,
        "peak_reserved_bytes": one.peak_reserved,
        "reserved_over_allocated": one.ratio,
        "last_i": last.i,
        "last_allocated_bytes": last.allocated,
        "last_reserved_bytes": last.reserved,
        "grows": one.grows,
        "growth_bytes_per_1000": slope.middle * PER if slope else None,
        "growth_low": slope.low * PER if slope else None,
        "growth_high": slope.high * PER if slope else None,
        "leak": one.leak,
        "valid": bool(row["valid"]),
        "taints": sorted(taints(row)),
    }


def _section(series: Sequence[MemorySeries]) -> Section:
    device = not series[0].resident
    shared = _shared(series)
    on_device = (
        Column("peak_allocated_bytes", "allocated", units.size, True),
        Column("peak_reserved_bytes", "reserved", units.size, True),
        Column("reserved_over_allocated", "ratio", lambda ratio: units.number(ratio, 3), True),
    )
    on_cpu = (Column("n", "iters", units.count, True), Column("peak_reserved_bytes", "RSS", units.size, True))

    def label(text: str) -> str:
        return " ".join(part for part in text.split(" ") if part not in shared)

    shown = (
        Column("label", "", label, flexible=True),
        Column("run", "run"),
        *(on_device if device else on_cpu),
        Column("growth_bytes_per_1000", "growth", _n_bytes, True),
        RowColumn("interval", "95 % CI", lambda row: _interval(row["growth_low"], row["growth_high"]), True),
        Column("leak", "", lambda leak: "leak" if leak else ""),
    )
    run = series[0].run
    name = " ".join(str(part) for part in (run["subject"], run["config"]) if part)
    alike = dict.fromkeys([*_alike(series, "framework", "dtype"), *shared, *_alike(series, "where")])
    return Section(", ".join([name, *alike, "peaks"]), shown, [_row(one) for one in series])


def _n_bytes(x: float | None) -> str:
    """Format bytes; zero is 0, without a unit."""
    return "0" if x == 0 else units.size(None if x is None else round(x))


def _interval(low: float | None, high: float | None) -> str:
    """Format an interval of bytes, with a common unit once: "208 to 250 MiB"."""
    if low is None:
        return units.MISSING
    least, most = _n_bytes(low), _n_bytes(high)
    number, _, unit = least.partition(" ")
    return f"{number if most.endswith(' ' + unit) else least} to {most}"


def _shared(series: Sequence[MemorySeries]) -> list[str]:
    """Return the words common to all labels if these are long, so that truncation keeps what differs."""
    words = [one.arm.label.split(" ") for one in series]
    shared = [part for part in words[0] if all(part in others for others in words)]
    long = any(len(one.arm.label) > _LABEL_WIDTH for one in series)
    return shared if long and all({*of} - {*shared} for of in words) else []


def _alike(series: Sequence[MemorySeries], *names: str) -> list[str]:
    """Return the values of `names` that all rows share."""
    found = [{str(one.run[name]) for one in series if one.run[name]} for name in names]
    return [next(iter(values)) for values in found if len(values) == 1]


def _findings(series: Sequence[MemorySeries]) -> Iterable[str]:
    """Report leaks, then memory kept unused, then runs out of memory."""
    for one in series:
        if one.leak and (slope := one.slope) is not None:
            yield (
                f"{one.run['run']} ({one.arm.label}) leaks: {one.grows} grows by {_n_bytes(slope.middle * PER)} per"
                f" 1,000 iterations (95 % CI {_interval(slope.low * PER, slope.high * PER)}), also in the second half"
            )
    unknown = [one for one in series if one.leak is None]
    well = [one for one in series if one.leak is False]
    if well:
        yield f"no leak detected in {_runs(well)}"
    if unknown:
        yield f"growth unknown in {_runs(unknown)}: fewer than {FEWEST} measured iterations"
    yield from _unused(series)
    for one in series:
        if one.run["outcome"] == Outcome.OUT_OF_MEMORY:
            i, _, allocated, reserved = one.points[-1]
            known = [f"{units.size(allocated)} allocated"] if allocated is not None else []
            known += [f"{units.size(reserved)} {'resident' if one.resident else 'reserved'}"] if reserved else []
            yield (
                f"{one.run['run']} ({one.arm.label}) ran out of memory; after its last reported iteration,"
                f" {units.count(i)}: {' and '.join(known)}"
            )


def _unused(series: Sequence[MemorySeries]) -> Iterable[str]:
    """Report memory reserved between iterations beyond what is allocated, from FRAGMENTED on."""
    fragmented: dict[tuple[str, str, bool], list[MemorySeries]] = {}
    for one in series:
        if one.ratio is not None and one.ratio >= FRAGMENTED:
            jax = one.run["framework"] == "jax"
            key = ("", "", jax) if jax else (one.run["subject"], one.arm.label, jax)
            fragmented.setdefault(key, []).append(one)
    for (subject, label, jax), group in fragmented.items():
        most = units.ratio(max(one.ratio or 0.0 for one in group))
        if jax:
            yield (
                f"jax, {_runs(group)}, reserves up to {most} the size of its arrays between iterations: XLA reserves"
                " most of a device's memory at start unless XLA_PYTHON_CLIENT_PREALLOCATE=false, so this is not what"
                " the model needs"
            )
            continue
        label = f"{subject} {label}" if len({other.run["subject"] for other in series}) > 1 else label
        yield (
            f"{label}, {_runs(group)}, reserves up to {most} the size of its tensors between iterations: kept for"
            " temporary tensors of an iteration, or fragmented"
        )


def _runs(series: Sequence[MemorySeries]) -> str:
    return f"{len(series)} run{'s' if len(series) > 1 else ''} ({footnotes.named([one.run['run'] for one in series])})"


def _notes(series: Sequence[MemorySeries]) -> Iterable[str]:
    """Explain the columns, and name the runs included that did not succeed."""
    if any(not one.resident for one in series):
        yield "allocated: in tensors; reserved: from the driver; both after each iteration, not the peak within it"
        yield "ratio: reserved over allocated, at the peak of reserved"
    if any(one.resident for one in series):
        yield "RSS: resident set size after each iteration, including libraries and data; rows of the CPU"
    yield (
        f"growth: per 1,000 iterations, Theil-Sen slope of the measured ones; leak: 95 % CI above 0, overall and in the"
        f" second half, and more than {units.percent(MATERIAL_SHARE, 1)} and {units.size(MATERIAL_BYTES)} in total"
    )
    failed = [f"{one.run['run']} {ending(one.run)}" for one in series if one.run["outcome"] != Outcome.SUCCEEDED]
    if failed:
        yield f"included up to their end: {footnotes.named(failed)}"
    if any(not one.run["valid"] for one in series):
        yield "runs with invalid times are included: their memory is valid, except that swapping lowers RSS"
