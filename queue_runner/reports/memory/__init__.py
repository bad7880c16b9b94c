"""Memory of each run over its iterations: the peak, reserved but unused memory, growth, and how the run ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, families
from queue_runner.analysis.grouping import SUBJECT, Arm, taints, word
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.reports._common import footnotes, prepare, select_runs
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports._common.settings import whatever_their_length
from queue_runner.reports.memory import text as _memory_words
from queue_runner.reports.memory.series import Point, Series
from queue_runner.tables import Column

NAME = "memory"
HELP = "allocated and reserved bytes over the iterations: the peak, fragmentation, growth, the end of what ran out"
SQL = (
    f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND state = 'DONE'"
    " AND (n_iters > 0 OR outcome = 'OUT_OF_MEMORY') ORDER BY job_id, number"
)
COLUMNS = (
    Column("workload", "workload"),
    Column("config", "config"),
    Column("label", "row"),
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("device", "device"),
    Column("compile", "compile"),
    Column("dtype", "dtype"),
    Column("run", "run"),
    Column("outcome", "outcome"),
    Column("n", "iterations", units.count, True),
    Column("reserved_is", "reserved is"),
    Column("peak_allocated_bytes", "peak allocated", units.size, True),
    Column("peak_reserved_bytes", "peak reserved", units.size, True),
    Column("reserved_over_allocated", "reserved / allocated", units.ratio, True),
    Column("last_i", "last iteration", units.count, True),
    Column("last_allocated_bytes", "last allocated", units.size, True),
    Column("last_reserved_bytes", "last reserved", units.size, True),
    Column("max_rss_bytes", "max RSS", units.size, True),
    Column("grows", "what grows"),
    Column("growth_bytes_per_1000", "growth / 1,000 iterations", units.size, True),
    Column("growth_low", "from", units.size, True),
    Column("growth_high", "to", units.size, True),
    Column("leak", "leak"),
    Column("valid", "times count"),
    Column("taints", "taints", " ".join),
)
_MOST_RUNS = 24
_LABEL_WIDTH = 18
"""Characters available for a label in the narrowest table."""


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table of runs for each family. Raises: UsageError when --group-by is invalid or --vs is given."""
    if context.options.vs:
        raise UsageError(f"{NAME} takes no --vs: it compares nothing", "--where device=cuda narrows it")
    rows = whatever_their_length(prepare.prepare(rows, context), context)
    found = families(rows, prepare.question(rows, context)) if rows else []
    found = sorted(found, key=lambda family: -max(row["run_id"] for cell in family.cells for row in cell.runs))
    raw, sections, told = [], [], []
    left = len(rows) if context.options.chosen else _MOST_RUNS
    n_left = 0
    for some in _tables(found):
        runs = [(cell, row) for family in some for cell in family.cells for row in cell.runs]
        looked_at = runs[:left]
        n_left += len(runs) - len(looked_at)
        left -= len(looked_at)
        series = [one for cell, row in looked_at if (one := _series(cell, row, context)) is not None]
        raw += [_row(one) for one in series]
        told += series
        kinds = ([one for one in series if one.resident is resident] for resident in (True, False))
        sections += [_section(of) for of in kinds if of]
    silent = {row["run"] for row in rows if row["outcome"] == Outcome.OUT_OF_MEMORY} - {one["run"] for one in raw}
    notes = [*_memory_words.notes(told)] if raw else []
    if silent:
        notes.append(f"out of memory before an iteration was told: {footnotes.named(sorted(silent))}")
    if not raw:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "that tells its memory")], notes=notes)
    if n_left:
        notes.append(f"{n_left} older runs were not looked at: mpsq report memory g4, --since 2d or --where choose")
    return Result(COLUMNS, raw, sections, [*_memory_words.lines(told)], notes)


def _tables(found: Sequence[Family]) -> list[list[Family]]:
    """Merge families that differ only in settings, and add these to the labels of their rows."""
    tables: dict[tuple[Any, ...], list[Family]] = {}
    for family in found:
        tables.setdefault(tuple(family.common[name] for name in SUBJECT), []).append(family)
    labelled = []
    for several in tables.values():
        differ = [n for n in several[0].common if len({str(f.common.get(n)) for f in several}) > 1]
        labelled.append(
            [
                replace(family, cells=[replace(cell, label=_label(cell, family, differ)) for cell in family.cells])
                for family in several
            ]
        )
    return labelled


def _label(cell: Arm, family: Family, differ: Sequence[str]) -> str:
    told = [word(name, value) for name in differ if (value := family.common.get(name)) is not None]
    return " ".join([cell.label, *told])


def _series(cell: Arm, row: Mapping[str, Any], context: Context) -> Series | None:
    first, last = context.options.iters or (0, 2**62)
    sql = (
        "SELECT i, phase, allocated_bytes, reserved_bytes FROM v_iteration WHERE run_id = ? AND i BETWEEN ? AND ?"
        " AND COALESCE(allocated_bytes, reserved_bytes) IS NOT NULL ORDER BY offset"
    )
    points = [Point(*one.values()) for one in context.read(sql, [row["run_id"], first, last])]
    return Series(cell, row, points) if points else None


def _row(one: Series) -> dict[str, Any]:
    row, slope = one.run, one.slope
    last = one.points[-1]
    named = ("config", "framework", "framework_version", "device", "dtype", "run", "max_rss_bytes")
    return {
        "workload": row["subject"],
        "label": one.cell.label,
        **{name: row[name] for name in named},
        "compile": None if row["compile"] is None else bool(row["compile"]),
        "outcome": str(_memory_words.ending(row)),
        "n": len(one.points),
        "reserved_is": "RSS" if one.resident else "reserved",
        "peak_allocated_bytes": one.peak_allocated,
        "peak_reserved_bytes": one.peak_reserved,
        "reserved_over_allocated": one.ratio,
        "last_i": last.i,
        "last_allocated_bytes": last.allocated,
        "last_reserved_bytes": last.reserved,
        "grows": one.grows,
        "growth_bytes_per_1000": slope.middle * _memory_words.PER if slope else None,
        "growth_low": slope.low * _memory_words.PER if slope else None,
        "growth_high": slope.high * _memory_words.PER if slope else None,
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
        Column("interval", "95 % interval", right=True),
        Column("what", ""),
    ]
    shared = _shared(series)
    shown = []
    for one in series:
        slope = one.slope
        shown.append(
            {
                "label": " ".join(text for text in one.cell.label.split(" ") if text not in shared),
                "run": one.run["run"],
                "n": len(one.points),
                "allocated": units.size(one.peak_allocated),
                "reserved": units.size(one.peak_reserved),
                "ratio": units.number(one.ratio, 3),
                "growth": _memory_words.n_bytes(slope.middle * _memory_words.PER) if slope else units.MISSING,
                "interval": _memory_words.interval(slope) if slope else units.MISSING,
                "what": "leak" if one.leak else "",
            }
        )
    run = series[0].run
    name = " ".join(str(text) for text in (run["subject"], run["config"]) if text)
    alike = [*_alike(series, "framework", "dtype"), *shared, *_alike(series, "where")]
    alike = [*dict.fromkeys(alike)]
    return Section(", ".join([name, *alike, "at the highest"]), columns, shown)


def _shared(series: Sequence[Series]) -> list[str]:
    """Return the words common to all labels if these are long, so that truncation keeps what differs."""
    words = [one.cell.label.split(" ") for one in series]
    shared = [text for text in words[0] if all(text in others for others in words)]
    long = any(len(one.cell.label) > _LABEL_WIDTH for one in series)
    return shared if long and all({*of} - {*shared} for of in words) else []


def _alike(series: Sequence[Series], *names: str) -> list[str]:
    """Return the values of `names` that all rows share."""
    found = [{str(one.run[name]) for one in series if one.run[name]} for name in names]
    return [next(iter(values)) for values in found if len(values) == 1]
