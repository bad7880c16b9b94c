"""Cost of copies between the host and a device, by size: latency and GB/s."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.stats import by_key
from queue_runner.reports._common import microbench
from queue_runner.reports._common.columns import columns, shared, short
from queue_runner.reports._common.document import Section
from queue_runner.reports._common.microbench import CellRow
from queue_runner.tables import Column

NAME = "transfer"
HELP = "copies between host and device: latency and GB/s by size"


def _copy(cell: CellRow) -> tuple[str, str, int]:
    """Return the direction of a copy, the kind of host memory and its bytes."""
    direction, memory, size = cell.cell.split(".")
    return direction.replace("_", " "), memory, int(size)


_COPY = (
    shared("direction", lambda cell: _copy(cell)[0]),
    Column("memory", "host memory", value=lambda cell: _copy(cell)[1]),
    Column("n_bytes", "size", units.size, True, value=lambda cell: _copy(cell)[2]),
)
COLUMNS = columns(*microbench.PLACE, "settings", *_COPY, *microbench.NUMBERS, "bytes_per_s valid taints")


def _title(cell: CellRow) -> str:
    return f"transfer, {microbench.label(cell)}, {microbench.caption(cell)}"


def _order(cell: CellRow) -> tuple[Any, ...]:
    direction, *rest = _copy(cell)
    return str(cell.run.machine), _title(cell), direction != "to device", *rest


def _sections(title: str, cells: Sequence[CellRow], marks: Column) -> Iterable[Section]:
    measured = (microbench.RUNS, microbench.TIME, marks, microbench.SPREAD, microbench.GB_PER_S)
    yield Section(title, (*_COPY, *measured), cells)


def _findings(cells: Sequence[CellRow]) -> Iterable[str]:
    """Describe the latency of the smallest copy and the highest rate, by direction and kind of host memory."""
    for (direction, memory), copies in by_key(cells, lambda cell: _copy(cell)[:2]).items():
        least, most = copies[0], max(copies, key=lambda cell: cell.bytes_per_s or 0.0)
        rate = f"{microbench.GB_PER_S.show(most)} GB/s at {units.size(_copy(most)[2])}"
        latency = f"{short(least.median_s)} for {units.size(_copy(least)[2])}"
        yield f"{least.run.device}, {direction} ({memory}): {latency}, {rate}"


def _notes(cells: Sequence[CellRow]) -> Iterable[str]:
    if any(cell.run.device == "cpu" for cell in cells):
        yield "on the CPU, host and device are the same: these are copies within host memory (memcpy)"
    yield "each copy is synchronized; GB/s counts its bytes once (1 GB = 10^9 bytes)"


REPORT = microbench.Microbench("transfer", COLUMNS, _title, _sections, _notes, _findings, _order)
SQL, finish = REPORT.sql, REPORT.finish
