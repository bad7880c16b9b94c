"""Performance of single operations, forward and backward, and what bounds them: compute or memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queue_runner import units
from queue_runner.reports._common import microbench
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.device_peaks import Peaks
from queue_runner.reports._common.document import Row, Section
from queue_runner.tables import Column

NAME = "kernels"
FOR = "kernels"
HELP = "single operations, forward and backward: TFLOP/s, GB/s, bound, share of the roofline"
_CELL = Column("cell", "", lambda cell: cell.replace(".", " "), flexible=True)
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
NOTES = (
    "bound by: compute if the operation has more FLOP per byte than the device's FLOP/s over its bytes/s, both"
    " measured by the run, else memory (roofline: Williams, Waterman & Patterson 2009)",
    "of roof: share of what the bound allows; above 100 % if a cache serves bytes counted as moved (memory), or if"
    " fewer or less precise products are computed than counted, as by FFT, Winograd or TF32 (compute)",
)


def _values(row: Row, _peaks: Peaks) -> Row:
    op, _, direction = row["cell"].partition(".")
    flop, moved, peak, width = (row["facts"].get(name) for name in ("flop", "bytes", "roof.flops", "roof.bytes"))
    intensity = flop / moved if flop and moved else None
    bound, roof = None, None
    if intensity and peak and width:
        bound = "compute" if intensity >= peak / width else "memory"
        roof = min(peak, intensity * width)
    share = row["flops_per_s"] / roof if roof and row["flops_per_s"] else None
    return {"op": op, "direction": direction, "intensity": intensity, "bound": bound, "share_of_roof": share}


def _title(row: Row) -> str:
    words = ["kernels", row["config"], f"{microbench.label(row)},", row["dtype"], microbench.caption(row)]
    return " ".join(str(part) for part in words if part)


def _sections(title: str, rows: Sequence[Row], marks: Column) -> Iterable[Section]:
    times = (_CELL, microbench.TIME, marks, microbench.SPREAD, *microbench.rates(rows, flops_per_s=""))
    yield Section(title, (*times, microbench.GB_PER_S, Column("bound", "bound by"), _SHARE), rows)


REPORT = microbench.Microbench("kernels", COLUMNS, _values, _title, _sections, lambda _: NOTES, with_config=True)
SQL, finish = REPORT.sql, REPORT.finish
