"""Matrix multiplication speed by framework, device, dtype and size, also as a share of the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from queue_runner import units
from queue_runner.reports._common import footnotes, microbench
from queue_runner.reports._common.columns import columns, through
from queue_runner.reports._common.document import Section
from queue_runner.reports._common.microbench import CellRow
from queue_runner.tables import Column

NAME = "matmul"
HELP = "matrix multiplication: TFLOP/s by framework, device, dtype and n, share of the peak"


def _share(cell: CellRow) -> float | None:
    return cell.flops_per_s / cell.peak.flops if cell.peak and cell.flops_per_s else None


def _naive_rate(cell: CellRow) -> float | None:
    flop, naive_s = cell.medians.get("flop"), cell.medians.get("time_unsynced")
    return flop / naive_s if naive_s and flop is not None else None


def _block(cell: CellRow, naive: bool) -> float | None:
    """Return the seconds of one block of products, which guides time, with or without synchronization."""
    naive_s, calls = cell.medians.get("time_unsynced"), cell.medians.get("calls")
    return (naive_s if naive else cell.median_s) * calls if naive_s and calls else None


_N = Column("n", "n", units.count, True, value=lambda cell: int(cell.cell.removeprefix("n")))
_SHARE = Column("share_of_peak", "of peak", units.percent, True, value=_share)
_NAIVE = Column("naive_flops_per_s", "FLOP/s without synchronization", units.flops_per_s, True, value=_naive_rate)
_TIMES = Column(
    "naive_times",
    "naive / true",
    units.ratio,
    True,
    value=lambda cell: cell.median_s / naive_s if (naive_s := cell.medians.get("time_unsynced")) else None,
)
_GUIDE = Column(
    "guide_block_s", "guide", units.short_duration, True, value=lambda cell: cell.medians.get("block_unsynced")
)
_BLOCK = (
    Column("block_calls", "products", units.count, True, value=lambda cell: cell.medians.get("calls")),
    _GUIDE,
    Column("naive_block_s", "naive", units.short_duration, True, value=partial(_block, naive=True)),
    Column("block_s", "true", units.short_duration, True, value=partial(_block, naive=False)),
)
COLUMNS = columns(
    *microbench.PLACE,
    *through("run", "compile dtype"),
    "settings",
    _N,
    *microbench.NUMBERS,
    "flops_per_s",
    _SHARE,
    "peak_flops peak_source",
    _NAIVE,
    _TIMES,
    *_BLOCK,
    "valid taints",
)


def _order(cell: CellRow) -> tuple[Any, ...]:
    run = cell.run
    place = (str(run.machine), microbench.caption(cell), run.dtype != "fp32", str(run.dtype), _N.of(cell))
    return *place, str(run.framework), str(run.framework_version), str(run.device), str(run.compile or False)


def _sections(caption: str, cells: Sequence[CellRow], marks: Column) -> Iterable[Section]:
    devices = {cell.run.device for cell in cells}
    label = Column("label", "", flexible=True, value=partial(microbench.label, device=len(devices) > 1))
    case = (label, *through("run", "dtype"), _N)
    title = f"matmul {caption}" + (f" ({next(iter(devices))})" if len(devices) == 1 else "")
    rate = microbench.rates(cells, microbench.RATE)
    yield Section(title, (*case, microbench.RUNS, microbench.TIME, marks, microbench.SPREAD, *rate, _SHARE), cells)
    if naive := [cell for cell in cells if _TIMES.of(cell)]:
        both = microbench.rates(naive, replace(microbench.RATE, title="true"), replace(_NAIVE, title="naive"))
        title = "the naive loop of many guides, which reads the clock without synchronizing the device"
        yield Section(title, (*case, *both, _TIMES), naive)
    if guides := [cell for cell in cells if _GUIDE.of(cell) is not None]:
        title = "the guide's loop, as it prints it: the seconds of one block of products"
        yield Section(title, (*case, *_BLOCK), guides)


def _findings(cells: Sequence[CellRow]) -> Iterable[str]:
    """Describe the fastest result."""
    if cells:
        best = max(cells, key=lambda cell: cell.flops_per_s or 0.0)
        share = f", {units.percent(_share(best))} of its peak" if _share(best) else ""
        how = f"{microbench.label(best)} {best.run.dtype}, n = {_N.show(best)}"
        yield f"fastest {microbench.caption(best)}: {units.flops_per_s(best.flops_per_s)}, {how}{share}"


def _notes(cells: Sequence[CellRow]) -> Iterable[str]:
    yield "FLOP/s: 2 n^3 / t, where t is the time of one product, synchronized"
    if any(_TIMES.of(cell) for cell in cells):
        yield "naive: speed without synchronization"
    if any(_GUIDE.of(cell) is not None for cell in cells):
        yield (
            "guide: a process's first block, not synchronized; naive: the median of all measured blocks, not"
            " synchronized; true: the same, synchronized"
        )
    named = ((cell.run.device_name or cell.run.device, cell.run.dtype, cell.peak) for cell in cells)
    yield from footnotes.peaks(named, "peak:")


REPORT = microbench.Microbench("matmul", COLUMNS, microbench.caption, _sections, _notes, _findings, _order)
SQL, finish = REPORT.sql, REPORT.finish
