"""Cost of copies between the host and a device, by size: latency and GB/s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.grouping import by_key
from queue_runner.reports._common import microbench, select_runs
from queue_runner.reports._common.columns import columns, short
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "transfer"
FOR = "transfer"
HELP = "copies between host and device: latency and GB/s by size"
SQL = microbench.sql("transfer")
_MEMORY = Column("memory", "host memory")
_SIZE = Column("n_bytes", "size", units.size, True)
COLUMNS = columns(
    "framework framework_version device device_name settings direction",
    _MEMORY,
    _SIZE,
    "runs n_runs n_samples median_s spread_s spread_over q1_s q3_s bytes_per_s valid taints",
)


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each device, and sentences with the latency and highest rate of each direction."""
    found = microbench.measured(rows, context, with_config=False)
    if not found.rows:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of transfer with results")], notes=found.notes)
    rows = sorted(map(_row, found.rows), key=_order)
    measured = (
        microbench.RUNS,
        microbench.TIME,
        found.taints.column,
        microbench.SPREAD,
        Column("bytes_per_s", "GB/s", _gb_per_s, True),
    )
    sections, lines = [], []
    for title, shown in microbench.tables(rows, _title):
        sections.append(Section(title, columns("direction", _MEMORY, _SIZE, *measured), shown))
        lines += _extremes([row for row in shown if row["valid"] or context.options.include_invalid])
    if any(row["device"] == "cpu" for row in rows):
        lines.append("on the CPU, host and device are the same: these are copies within host memory (memcpy)")
    notes = ["each copy is synchronized; GB/s counts its bytes once (1 GB = 10^9 bytes)"]
    notes += [*microbench.spreads(rows), *found.notes]
    return Result(COLUMNS, rows, sections, lines, notes)


def _title(row: Row) -> str:
    return f"transfer, {microbench.label(row)}, {microbench.caption(row)}"


def _order(row: Row) -> tuple[Any, ...]:
    return str(row["machine"]), _title(row), row["direction"] != "to device", row["memory"], row["n_bytes"]


def _row(row: Row) -> Row:
    direction, memory, size = row["cell"].split(".")
    return {**row, "direction": direction.replace("_", " "), "memory": memory, "n_bytes": int(size)}


def _gb_per_s(bytes_per_s: float | None) -> str:
    return units.number((bytes_per_s or 0.0) / 1e9, 3)


def _extremes(rows: Sequence[Row]) -> list[str]:
    """Describe the latency of the smallest copy and the highest rate, by direction and kind of host memory."""
    lines = []
    for (direction, memory), of in by_key(rows, lambda row: (row["direction"], row["memory"])).items():
        least, most = of[0], max(of, key=lambda row: row["bytes_per_s"] or 0.0)
        rate = f"{_gb_per_s(most['bytes_per_s'])} GB/s at {units.size(most['n_bytes'])}"
        latency = f"{short(least['median_s'])} for {units.size(least['n_bytes'])}"
        lines.append(f"{least['device']}, {direction} ({memory}): {latency}, {rate}")
    return lines
