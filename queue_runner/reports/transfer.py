"""Cost of copies between the host and a device, by size: latency and GB/s."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.grouping import by_key
from queue_runner.reports._common import microbench
from queue_runner.reports._common.columns import columns, short
from queue_runner.reports._common.device_peaks import Peaks
from queue_runner.reports._common.document import Row, Section
from queue_runner.tables import Column

NAME = "transfer"
FOR = "transfer"
HELP = "copies between host and device: latency and GB/s by size"
_PLACE = columns("direction", Column("memory", "host memory"), Column("n_bytes", "size", units.size, True))
COLUMNS = columns(
    "framework framework_version device device_name settings",
    *_PLACE,
    "runs n_runs n_samples median_s spread_s spread_over q1_s q3_s bytes_per_s valid taints",
)


def _values(row: Row, _peaks: Peaks) -> Row:
    direction, memory, size = row["cell"].split(".")
    return {"direction": direction.replace("_", " "), "memory": memory, "n_bytes": int(size)}


def _title(row: Row) -> str:
    return f"transfer, {microbench.label(row)}, {microbench.caption(row)}"


def _order(row: Row) -> tuple[Any, ...]:
    return str(row["machine"]), _title(row), row["direction"] != "to device", row["memory"], row["n_bytes"]


def _sections(title: str, rows: Sequence[Row], marks: Column) -> Iterable[Section]:
    measured = (microbench.RUNS, microbench.TIME, marks, microbench.SPREAD, microbench.GB_PER_S)
    yield Section(title, (*_PLACE, *measured), rows)


def _findings(rows: Sequence[Row]) -> Iterable[str]:
    """Describe the latency of the smallest copy and the highest rate, by direction and kind of host memory."""
    for (direction, memory), copies in by_key(rows, lambda row: (row["direction"], row["memory"])).items():
        least, most = copies[0], max(copies, key=lambda row: row["bytes_per_s"] or 0.0)
        rate = f"{microbench.GB_PER_S.show(most)} GB/s at {units.size(most['n_bytes'])}"
        latency = f"{short(least['median_s'])} for {units.size(least['n_bytes'])}"
        yield f"{least['device']}, {direction} ({memory}): {latency}, {rate}"


def _notes(rows: Sequence[Row]) -> Iterable[str]:
    if any(row["device"] == "cpu" for row in rows):
        yield "on the CPU, host and device are the same: these are copies within host memory (memcpy)"
    yield "each copy is synchronized; GB/s counts its bytes once (1 GB = 10^9 bytes)"


REPORT = microbench.Microbench("transfer", COLUMNS, _values, _title, _sections, _notes, _findings, _order)
SQL, finish = REPORT.sql, REPORT.finish
