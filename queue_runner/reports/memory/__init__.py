"""Memory of each run over its iterations: the peak, reserved but unused memory, growth, and how the run ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, families
from queue_runner.analysis.grouping import SUBJECT, Arm, by_key, taints, word
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.monitor.listing import ending
from queue_runner.reports._common import footnotes, prepare, select_runs
from queue_runner.reports._common.arm_rows import newest_first
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports._common.settings import ignore_length
from queue_runner.reports.memory import text
from queue_runner.reports.memory.series import Point, Series
from queue_runner.tables import Column

NAME = "memory"
HELP = "allocated and reserved bytes over the iterations: peak, fragmentation, growth, out-of-memory endings"
SQL = (
    f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND state = 'DONE'"
    " AND (n_iters > 0 OR outcome = 'OUT_OF_MEMORY') ORDER BY job_id, number"
)
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
_MOST_RUNS = 24
_LABEL_WIDTH = 18
"""Characters available for a label in the narrowest table."""


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table of runs for each family. Raises: UsageError when --group-by is invalid or --vs is given."""
    if context.options.vs:
        raise UsageError(f"{NAME} takes no --vs: it compares nothing", "--where device=cuda narrows it")
    rows = ignore_length(prepare.prepare(rows, context), context)
    found = newest_first(families(rows, prepare.question(rows, context))) if rows else []
    raw, sections, shown = [], [], []
    left = len(rows) if context.options.chosen else _MOST_RUNS
    n_left = 0
    for table in _tables(found):
        runs = [(arm, row) for family in table for arm in family.arms for row in arm.runs]
        n_left += len(runs[left:])
        series = [one for arm, row in runs[:left] if (one := _series(arm, row, context)) is not None]
        left -= len(runs[:left])
        raw += [_row(one) for one in series]
        shown += series
        kinds = ([one for one in series if one.resident is resident] for resident in (True, False))
        sections += [_section(kind) for kind in kinds if kind]
    without = {row["run"] for row in rows if row["outcome"] == Outcome.OUT_OF_MEMORY} - {one["run"] for one in raw}
    notes = [*text.notes(shown)] if raw else []
    if without:
        notes.append(f"out of memory before the first reported iteration: {footnotes.named(sorted(without))}")
    if n_left:
        notes.append(f"{n_left} older runs not read: select with mpsq report memory g4, --since 2d or --where")
    if not raw:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "with reported memory")], notes=notes)
    return Result(COLUMNS, raw, sections, [*text.findings(shown)], notes)


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


def _series(arm: Arm, row: Mapping[str, Any], context: Context) -> Series | None:
    first, last = context.options.iters or (0, 2**62)
    sql = (
        "SELECT i, phase, allocated_bytes, reserved_bytes FROM v_iteration WHERE run_id = ? AND i BETWEEN ? AND ?"
        " AND COALESCE(allocated_bytes, reserved_bytes) IS NOT NULL ORDER BY offset"
    )
    points = [Point(*one.values()) for one in context.read(sql, [row["run_id"], first, last])]
    return Series(arm, row, points) if points else None


def _row(one: Series) -> dict[str, Any]:
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
        "growth_bytes_per_1000": slope.middle * text.PER if slope else None,
        "growth_low": slope.low * text.PER if slope else None,
        "growth_high": slope.high * text.PER if slope else None,
        "leak": one.leak,
        "valid": bool(row["valid"]),
        "taints": sorted(taints(row)),
    }


def _section(series: Sequence[Series]) -> Section:
    device = not series[0].resident
    columns = [
        Column("label", "", flexible=True),
        Column("run", "run"),
        *([] if device else [Column("n", "iters", units.count, True)]),
        *([Column("allocated", "allocated", right=True)] if device else []),
        Column("reserved", "reserved" if device else "RSS", right=True),
        *([Column("ratio", "ratio", right=True)] if device else []),
        Column("growth", "growth", right=True),
        Column("interval", "95 % CI", right=True),
        Column("what", ""),
    ]
    shared = _shared(series)
    shown = []
    for one in series:
        slope = one.slope
        shown.append(
            {
                "label": " ".join(part for part in one.arm.label.split(" ") if part not in shared),
                "run": one.run["run"],
                "n": len(one.points),
                "allocated": units.size(one.peak_allocated),
                "reserved": units.size(one.peak_reserved),
                "ratio": units.number(one.ratio, 3),
                "growth": text.n_bytes(slope.middle * text.PER) if slope else units.MISSING,
                "interval": text.interval(slope) if slope else units.MISSING,
                "what": "leak" if one.leak else "",
            }
        )
    run = series[0].run
    name = " ".join(str(part) for part in (run["subject"], run["config"]) if part)
    alike = [*_alike(series, "framework", "dtype"), *shared, *_alike(series, "where")]
    alike = [*dict.fromkeys(alike)]
    return Section(", ".join([name, *alike, "peaks"]), columns, shown)


def _shared(series: Sequence[Series]) -> list[str]:
    """Return the words common to all labels if these are long, so that truncation keeps what differs."""
    words = [one.arm.label.split(" ") for one in series]
    shared = [part for part in words[0] if all(part in others for others in words)]
    long = any(len(one.arm.label) > _LABEL_WIDTH for one in series)
    return shared if long and all({*of} - {*shared} for of in words) else []


def _alike(series: Sequence[Series], *names: str) -> list[str]:
    """Return the values of `names` that all rows share."""
    found = [{str(one.run[name]) for one in series if one.run[name]} for name in names]
    return [next(iter(values)) for values in found if len(values) == 1]
