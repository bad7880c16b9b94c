"""Performance of single operations, forward and backward, and what bounds them: compute or memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queue_runner import units
from queue_runner.reports._common import microbench
from queue_runner.reports._common.columns import columns, shared, through
from queue_runner.reports._common.document import Section
from queue_runner.reports._common.microbench import CellRow
from queue_runner.tables import Column

NAME = "kernels"
HELP = "single operations, forward and backward: TFLOP/s, GB/s, bound, share of the roofline"
NOTES = (
    "bound by: compute if the operation's FLOP per byte exceed the device's (FLOP/s over bytes/s, as the run"
    " measured them), else memory (roofline: Williams, Waterman & Patterson 2009)",
    "of roof: share of what the bound allows. Above 100 %: a cache serves bytes (bound by memory), or FFT, Winograd"
    " or TF32 needs fewer or less precise products (bound by compute)",
)


def _intensity(cell: CellRow) -> float | None:
    flop, moved = cell.medians.get("flop"), cell.medians.get("bytes")
    return flop / moved if flop and moved else None


def _bound(cell: CellRow) -> str | None:
    intensity, peak, width = _intensity(cell), cell.medians.get("roof.flops"), cell.medians.get("roof.bytes")
    return ("compute" if intensity >= peak / width else "memory") if intensity and peak and width else None


def _share(cell: CellRow) -> float | None:
    """Return the rate as a share of what the roofline allows."""
    intensity, peak, width = _intensity(cell), cell.medians.get("roof.flops"), cell.medians.get("roof.bytes")
    if not (intensity and peak and width and cell.flops_per_s):
        return None
    return cell.flops_per_s / min(peak, intensity * width)


_SHARE = Column("share_of_roof", "of roof", units.percent, True, value=_share)
COLUMNS = columns(
    *microbench.PLACE,
    *through("run", "compile dtype config"),
    "settings",
    Column("op", "operation", value=lambda cell: cell.cell.partition(".")[0]),
    shared("direction", lambda cell: cell.cell.partition(".")[2]),
    *microbench.NUMBERS,
    "flops_per_s bytes_per_s",
    Column("intensity", "FLOP/byte", units.number, True, value=_intensity),
    Column("bound", "bound", value=_bound),
    _SHARE,
    "valid taints",
)


def _title(cell: CellRow) -> str:
    words = ["kernels", cell.run.config, f"{microbench.label(cell)},", cell.run.dtype, microbench.caption(cell)]
    return " ".join(str(part) for part in words if part)


def _sections(title: str, cells: Sequence[CellRow], marks: Column) -> Iterable[Section]:
    name = Column("cell", "", lambda cell: cell.replace(".", " "), flexible=True)
    times = (name, microbench.TIME, marks, microbench.SPREAD, *microbench.rates(cells, microbench.RATE))
    bound = Column("bound", "bound by", value=_bound)
    yield Section(title, (*times, microbench.GB_PER_S, bound, _SHARE), cells)


REPORT = microbench.Microbench("kernels", COLUMNS, _title, _sections, lambda _: NOTES, with_config=True)
SQL, finish = REPORT.sql, REPORT.finish
