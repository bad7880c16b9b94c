"""Performance of single operations, forward and backward, and their bound: arithmetic or memory."""

from __future__ import annotations

import json
from typing import Any

from queue_runner import units
from queue_runner.reports._common import microbench, prepare, select_runs
from queue_runner.reports._common.microbench import Bench, Measured
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "kernels"
FOR = "kernels"
HELP = "single operations, forward and backward: TFLOP/s, GB/s, what bounds them, share of the roofline"
SQL = microbench.sql("kernels")
COLUMNS = (
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("device", "device"),
    Column("device_name", "device name"),
    Column("compile", "compile"),
    Column("dtype", "dtype"),
    Column("config", "config"),
    Column("settings", "settings"),
    Column("op", "operation"),
    Column("direction", "direction"),
    Column("runs", "runs", " ".join),
    Column("n_runs", "valid", units.count, True),
    Column("n_samples", "samples", units.count, True),
    Column("median_s", "time", units.short_duration, True),
    Column("spread_s", "spread", units.short_duration, True),
    Column("spread_over", "spread over"),
    Column("q1_s", "lower quartile", units.short_duration, True),
    Column("q3_s", "upper quartile", units.short_duration, True),
    Column("flops_per_s", "FLOP/s", units.flops_per_s, True),
    Column("bytes_per_s", "bytes/s", units.number, True),
    Column("intensity", "FLOP/byte", units.number, True),
    Column("bound", "bound"),
    Column("share_of_roof", "of roof", units.percent, True),
    Column("valid", "counts"),
    Column("taints", "taints", json.dumps),
)
_SHOWN = (
    Column("cell", "", flexible=True),
    Column("time", "time", right=True),
    Column("mark", ""),
    Column("spread", units.PLUS_MINUS, right=True),
    Column("gb_per_s", "GB/s", lambda x: units.number(x, 3), True),
    Column("bound", "bound by"),
    Column("share_of_roof", "of roof", units.percent, True),
)


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each device, dtype, mode and size."""
    found = microbench.measured(prepare.prepare(rows, context), context, with_config=True)
    if not found.cells:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of kernels with results")], notes=found.notes)
    told = [(cell, _row(cell)) for cell in found.cells]
    sections = []
    for machine, title in dict.fromkeys((cell.key["machine"], _title(cell)) for cell in found.cells):
        of = [(cell, row) for cell, row in told if (cell.key["machine"], _title(cell)) == (machine, title)]
        shown = [_shown(cell, row, found) for cell, row in of]
        sections.append(Section(title, [*_SHOWN[:4], *microbench.rates(shown, flops_per_s=""), *_SHOWN[4:]], shown))
    said = [
        "bound by: compute where an operation has more FLOP per byte than the device does in the time of one byte,"
        " both measured by the run (roofline: Williams, Waterman & Patterson 2009)",
        "of roof: of what that bound allows; above 100 % where a cache serves what the bound counts as moved (memory),"
        " or where fewer or coarser products are computed than FLOP are counted, as by FFT, Winograd or TF32 (compute)",
        *microbench.spreads(found.cells),
    ]
    return Result(COLUMNS, [row for _, row in told], sections, [], [*said, *found.notes])


def _title(cell: Measured) -> str:
    key = cell.key
    words = ["kernels", key["config"], f"{cell.label()},", key["dtype"], microbench.caption(cell)]
    return " ".join(str(part) for part in words if part)


def _row(cell: Measured) -> dict[str, Any]:
    row = cell.row()
    op, _, direction = cell.cell.partition(".")
    flop, moved = cell.facts.get("flop"), cell.facts.get("bytes")
    intensity = flop / moved if flop and moved else None
    peak, width = cell.facts.get("roof.flops"), cell.facts.get("roof.bytes")
    bound, roof = None, None
    if intensity and peak and width:
        bound = "compute" if intensity >= peak / width else "memory"
        roof = min(peak, intensity * width)
    return {
        **row,
        "op": op,
        "direction": direction,
        "intensity": intensity,
        "bound": bound,
        "share_of_roof": row["flops_per_s"] / roof if roof and row["flops_per_s"] else None,
    }


def _shown(cell: Measured, row: dict[str, Any], found: Bench) -> dict[str, Any]:
    return {
        **row,
        "cell": cell.cell.replace(".", " "),
        "mark": found.mark(cell),
        "time": units.short_duration(cell.median_s, 3),
        "spread": microbench.spread(cell),
        "gb_per_s": row["bytes_per_s"] and row["bytes_per_s"] / 1e9,
    }
