"""Performance of single operations, forward and backward, and what bounds them: compute or memory."""

from __future__ import annotations

from typing import Any

from queue_runner import units
from queue_runner.reports._common import microbench, prepare, select_runs
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.microbench import Bench, Measured
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "kernels"
FOR = "kernels"
HELP = "single operations, forward and backward: TFLOP/s, GB/s, bound, share of the roofline"
SQL = microbench.sql("kernels")
COLUMNS = columns(
    "framework framework_version device device_name compile dtype config settings",
    Column("op", "operation"),
    "direction runs n_runs n_samples median_s spread_s spread_over q1_s q3_s flops_per_s bytes_per_s",
    Column("intensity", "FLOP/byte", units.number, True),
    Column("bound", "bound"),
    Column("share_of_roof", "of roof", units.percent, True),
    "valid taints",
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
    rows = [_row(cell) for cell in found.cells]
    sections = []
    for title, results in microbench.tables(found.cells, rows, _title):
        shown = [_shown(cell, row, found) for cell, row in results]
        sections.append(Section(title, [*_SHOWN[:4], *microbench.rates(shown, flops_per_s=""), *_SHOWN[4:]], shown))
    notes = [
        "bound by: compute if the operation has more FLOP per byte than the device's FLOP/s over its bytes/s, both"
        " measured by the run, else memory (roofline: Williams, Waterman & Patterson 2009)",
        "of roof: share of what the bound allows; above 100 % if a cache serves bytes counted as moved (memory), or if"
        " fewer or less precise products are computed than counted, as by FFT, Winograd or TF32 (compute)",
        *microbench.spreads(found.cells),
    ]
    return Result(COLUMNS, rows, sections, [], [*notes, *found.notes])


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
