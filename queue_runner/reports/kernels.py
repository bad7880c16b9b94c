"""Performance of single operations, forward and backward, and what bounds them: compute or memory."""

from __future__ import annotations

from queue_runner import units
from queue_runner.reports._common import microbench, select_runs
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "kernels"
FOR = "kernels"
HELP = "single operations, forward and backward: TFLOP/s, GB/s, bound, share of the roofline"
SQL = microbench.sql("kernels")
_CELL = Column("cell", "", lambda cell: cell.replace(".", " "), flexible=True)
_GB_PER_S = Column("bytes_per_s", "GB/s", lambda rate: units.number(rate and rate / 1e9, 3), True)
_BOUND = Column("bound", "bound by")
_SHARE = Column("share_of_roof", "of roof", units.percent, True)
COLUMNS = columns(
    "framework framework_version device device_name compile dtype config settings",
    Column("op", "operation"),
    "direction runs n_runs n_samples median_s spread_s spread_over q1_s q3_s flops_per_s bytes_per_s",
    Column("intensity", "FLOP/byte", units.number, True),
    Column("bound", "bound"),
    _SHARE,
    "valid taints",
)


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each device, dtype, mode and size."""
    found = microbench.measured(rows, context, with_config=True)
    if not found.rows:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of kernels with results")], notes=found.notes)
    rows = [_row(row) for row in found.rows]
    sections = []
    for title, shown in microbench.tables(rows, _title):
        times = (_CELL, microbench.TIME, found.taints.column, microbench.SPREAD)
        rates = (*microbench.rates(shown, flops_per_s=""), _GB_PER_S, _BOUND, _SHARE)
        sections.append(Section(title, [*times, *rates], shown))
    notes = [
        "bound by: compute if the operation has more FLOP per byte than the device's FLOP/s over its bytes/s, both"
        " measured by the run, else memory (roofline: Williams, Waterman & Patterson 2009)",
        "of roof: share of what the bound allows; above 100 % if a cache serves bytes counted as moved (memory), or if"
        " fewer or less precise products are computed than counted, as by FFT, Winograd or TF32 (compute)",
        *microbench.spreads(rows),
    ]
    return Result(COLUMNS, rows, sections, [], [*notes, *found.notes])


def _title(row: Row) -> str:
    words = ["kernels", row["config"], f"{microbench.label(row)},", row["dtype"], microbench.caption(row)]
    return " ".join(str(part) for part in words if part)


def _row(row: Row) -> Row:
    op, _, direction = row["cell"].partition(".")
    flop, moved, peak, width = (row["facts"].get(name) for name in ("flop", "bytes", "roof.flops", "roof.bytes"))
    intensity = flop / moved if flop and moved else None
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
