"""Cost of copies between the host and a device, by size: latency and GB/s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queue_runner import units
from queue_runner.reports._common import microbench, prepare, select_runs
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.microbench import Bench, Measured
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "transfer"
FOR = "transfer"
HELP = "copies between host and device: latency and GB/s by size"
SQL = microbench.sql("transfer")
COLUMNS = columns(
    "framework framework_version device device_name settings direction",
    Column("memory", "host memory"),
    Column("n_bytes", "size", units.size, True),
    "runs n_runs n_samples median_s spread_s spread_over q1_s q3_s bytes_per_s valid taints",
)
_SHOWN = (
    Column("direction", "direction"),
    Column("memory", "host memory"),
    Column("n_bytes", "size", units.size, True),
    Column("n_runs", "runs", units.count, True),
    Column("time", "time", right=True),
    Column("mark", ""),
    Column("spread", units.PLUS_MINUS, right=True),
    Column("rate", "GB/s", right=True),
)


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each device, and sentences with the latency and highest rate of each direction."""
    found = microbench.measured(prepare.prepare(rows, context), context, with_config=False)
    if not found.cells:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of transfer with results")], notes=found.notes)
    cells = sorted(found.cells, key=_order)
    rows = [_row(cell) for cell in cells]
    sections, lines = [], []
    for title, table in microbench.tables(cells, rows, _title):
        sections.append(Section(title, _SHOWN, [_shown(cell, row, found) for cell, row in table]))
        lines += _extremes([(cell, row) for cell, row in table if cell.valid or context.options.include_invalid])
    if any(cell.key["device"] == "cpu" for cell in found.cells):
        lines.append("on the CPU, host and device are the same: these are copies within host memory (memcpy)")
    notes = ["each copy is synchronized; GB/s counts its bytes once (1 GB = 10^9 bytes)"]
    notes += [*microbench.spreads(found.cells), *found.notes]
    return Result(COLUMNS, rows, sections, lines, notes)


def _title(cell: Measured) -> str:
    return f"transfer, {cell.label()}, {microbench.caption(cell)}"


def _order(cell: Measured) -> tuple[Any, ...]:
    row = _row(cell)
    return str(cell.key["machine"]), _title(cell), row["direction"] != "to device", row["memory"], row["n_bytes"]


def _row(cell: Measured) -> dict[str, Any]:
    direction, memory, size = cell.cell.split(".")
    return {**cell.row(), "direction": direction.replace("_", " "), "memory": memory, "n_bytes": int(size)}


def _shown(cell: Measured, row: dict[str, Any], found: Bench) -> dict[str, Any]:
    return {
        **row,
        "mark": found.mark(cell),
        "time": units.short_duration(cell.median_s, 3),
        "spread": microbench.spread(cell),
        "rate": units.number((row["bytes_per_s"] or 0.0) / 1e9, 3),
    }


def _extremes(results: Sequence[tuple[Measured, dict[str, Any]]]) -> list[str]:
    """Describe the latency of the smallest copy and the highest rate, by direction and kind of host memory."""
    lines = []
    for direction, memory in dict.fromkeys((row["direction"], row["memory"]) for _, row in results):
        rows = [row for _, row in results if (row["direction"], row["memory"]) == (direction, memory)]
        least, most = rows[0], max(rows, key=lambda row: row["bytes_per_s"] or 0.0)
        rate = f"{units.number((most['bytes_per_s'] or 0.0) / 1e9, 3)} GB/s at {units.size(most['n_bytes'])}"
        latency = units.short_duration(least["median_s"], 3)
        device = results[0][0].key["device"]
        lines.append(f"{device}, {direction} ({memory}): {latency} for {units.size(least['n_bytes'])}, {rate}")
    return lines
