"""Throughput and memory against batch size or another swept number: the knee, and the largest value that fits."""

from __future__ import annotations

from typing import Any

from queue_runner import units
from queue_runner.analysis.grouping import taints, word
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.reports._common import arm_tables, footnotes, prepare, select_runs
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports.scaling import text
from queue_runner.reports.scaling.curves import KNOWN, Curve, Point, find_curves
from queue_runner.tables import Column

NAME = "scaling"
HELP = "throughput and memory against batch size or another swept number: the knee, the largest value that fits"
SQL = (
    f"SELECT {prepare.RUN}, spec_json, peak_allocated_bytes, peak_reserved_bytes,"
    " NULLIF(json_extract(spec_json, '$.find_max'), '') AS find_max"
    " FROM v_run WHERE {chosen} AND state = 'DONE' ORDER BY job_id, number"
)
COLUMNS = columns(
    "workload config framework framework_version device device_name compile dtype factors",
    Column("setting", "setting"),
    Column("value", "value", units.number, True),
    "runs",
    Column("n_timed", "timed", units.count, True),
    "valid median_s spread_s spread_over tokens_per_s samples_per_s",
    Column("share_of_best", "of best", units.percent, True),
    Column("memory_bytes", "memory", units.size, True),
    Column("memory_is", "memory kind"),
    "allocated_bytes",
    Column("fits", "fits"),
    "outcome",
    Column("is_knee", "knee"),
    Column("is_largest", "largest that fits"),
    "taints",
)
MOST_CURVES = 6
"""Maximum number of curves shown when no runs were chosen."""
_NAMED = ("config", "framework", "framework_version", "device", "device_name", "compile", "dtype")


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each curve, and describe its knee and end.

    Raises: UsageError when --group-by is invalid or --vs is given.
    """
    if context.options.vs:
        raise UsageError(
            f"{NAME} takes no --vs: curves are not compared", "name the swept setting with --group-by batch_size"
        )
    rows = prepare.windowed(prepare.prepare(rows, context), context)
    curves = find_curves(rows, context) if rows else []
    if not curves:
        which = "that ended and differs from another in one number only (--set batch_size=8,16,32)"
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, which)])
    found = footnotes.Taints(rows, context)
    n_shown = len(curves) if context.options.chosen else MOST_CURVES
    shown = curves[:n_shown]
    caveats = found.caveats(row for curve in shown for point in curve.points for row in point.timed)
    sections = [_section(curve, caveats) for curve in shown]
    lines = [line for curve in shown for line in text.findings(curve, shown)]
    notes = [*text.notes(shown, found, caveats, context)]
    if len(curves) > n_shown:
        notes.append(f"{len(curves) - n_shown} older curves not shown: select with mpsq report scaling g4")
    return Result(COLUMNS, [_row(curve, point) for curve in curves for point in curve.points], sections, lines, notes)


def _row(curve: Curve, point: Point) -> dict[str, Any]:
    first, knee = curve.first, curve.knee
    rate = point.rate(curve.unit) if curve.unit and point.valid else None
    memory_bytes, memory_is = point.memory
    allocated = [row["peak_allocated_bytes"] for row in point.runs if row["peak_allocated_bytes"]]
    spread_s, over = point.spread_s
    return {
        "workload": first["subject"],
        **{name: first[name] for name in _NAMED},
        "factors": {name: value for name, value in curve.key.items() if name not in KNOWN and value is not None},
        "setting": curve.name,
        "value": int(point.value) if point.value == int(point.value) else point.value,
        "runs": [row["run"] for row in point.runs],
        "n_timed": len(point.timed),
        "valid": point.valid,
        "median_s": point.median_s,
        "spread_s": spread_s,
        "spread_over": over,
        "tokens_per_s": point.rate("token"),
        "samples_per_s": point.rate("sample"),
        "share_of_best": rate / knee.best.rate if knee and rate else None,
        "memory_bytes": memory_bytes,
        "memory_is": memory_is,
        "allocated_bytes": max(allocated, default=None),
        "fits": point.decided_by_memory,
        "outcome": str(text.ending(point.failed or point.runs[-1])) if not point.fits else Outcome.SUCCEEDED.value,
        "is_knee": bool(knee and knee.at and knee.at.size == point.value),
        "is_largest": point is curve.largest,
        "taints": sorted({kind for row in point.timed for kind in taints(row)}),
    }


def _section(curve: Curve, caveats: footnotes.Caveats) -> Section:
    unit = curve.unit
    shown = [_shown(curve, point, caveats) for point in curve.points]
    kinds = {point.memory[1] for point in curve.points} - {None}
    memory = next(iter(kinds)) if len(kinds) == 1 else "memory"
    columns = [
        Column("value", curve.name, right=True),
        Column("runs", "runs", right=True),
        Column("time", arm_tables.MS, right=True),
        *([Column("mark", "")] if any(row["mark"] for row in shown) else []),
        *([Column("rate", f"{unit}s/s", right=True), Column("share", "of best", right=True)] if unit else []),
        Column("memory", str(memory), right=True),
        Column("remarks", "", flexible=True),
    ]
    return Section(_title(curve), columns, shown)


def _title(curve: Curve) -> str:
    key, first = curve.key, curve.first
    version = " ".join(filter(None, (first["framework"], first["framework_version"])))
    words = [f"{first['subject']} {key['config'] or ''}".strip(), version]
    words += [word(name, key[name]) for name in ("device", "compile", "dtype") if key[name] is not None]
    words += [word(name, value) for name, value in key.items() if name not in KNOWN and value is not None]
    words = [part for part in words if part]
    words += [f"on {first['device_name']}"] if first["device_name"] else []
    return ", ".join([*words, *filter(None, [first["where"]])])


def _shown(curve: Curve, point: Point, caveats: footnotes.Caveats) -> dict[str, str]:
    row = _row(curve, point)
    remarks = ["knee"] if row["is_knee"] else []
    remarks += ["largest that fits"] if row["is_largest"] and curve.too_large else []
    remarks += [row["outcome"]] if not point.fits else []
    return {
        "value": text.value(point.value),
        "runs": f"{point.n_counting}/{len(point.runs)}",
        "time": arm_tables.ms(row),
        "mark": caveats.mark(row["taints"], bool(point.timed) and not point.valid),
        "rate": units.number(point.rate(curve.unit)) if curve.unit else "",
        "share": units.percent(row["share_of_best"]),
        "memory": units.size(row["memory_bytes"]),
        "remarks": ", ".join(remarks),
    }
