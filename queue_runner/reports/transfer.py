"""Cost of moving bytes between the host and its device, by size: latency and GB/s."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from queue_runner import units
from queue_runner.reports._common import microbench, prepare, select_runs
from queue_runner.reports._common.microbench import Bench, Measured
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "transfer"
FOR = "transfer"
HELP = "copies between host and device: latency and GB/s by size"
SQL = microbench.sql("transfer")
COLUMNS = (
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("device", "device"),
    Column("device_name", "device name"),
    Column("settings", "settings"),
    Column("direction", "direction"),
    Column("memory", "host memory"),
    Column("n_bytes", "size", units.size, True),
    Column("runs", "runs", " ".join),
    Column("n_runs", "valid", units.count, True),
    Column("n_samples", "samples", units.count, True),
    Column("median_s", "time", units.short_duration, True),
    Column("spread_s", "spread", units.short_duration, True),
    Column("spread_over", "spread over"),
    Column("q1_s", "lower quartile", units.short_duration, True),
    Column("q3_s", "upper quartile", units.short_duration, True),
    Column("bytes_per_s", "bytes/s", units.number, True),
    Column("valid", "counts"),
    Column("taints", "taints", json.dumps),
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
    told = sorted(((cell, _row(cell)) for cell in found.cells), key=lambda one: _order(*one))
    sections, lines = [], []
    for machine, title in dict.fromkeys((cell.key["machine"], _title(cell)) for cell, _ in told):
        some = [(cell, row) for cell, row in told if (cell.key["machine"], _title(cell)) == (machine, title)]
        sections.append(Section(title, _SHOWN, [_shown(cell, row, found) for cell, row in some]))
        lines += _said([(cell, row) for cell, row in some if cell.valid or context.options.include_invalid])
    if any(cell.key["device"] == "cpu" for cell in found.cells):
        lines.append("on the cpu host and device are one: these are copies within the host's memory (memcpy)")
    said = [
        "each copy is waited for by itself; GB/s counts its bytes once, 10^9 a GB",
        *microbench.spreads(found.cells),
    ]
    return Result(COLUMNS, [row for _, row in told], sections, lines, [*said, *found.notes])


def _title(cell: Measured) -> str:
    return f"transfer, {cell.label()}, {microbench.caption(cell)}"


def _order(cell: Measured, row: dict[str, Any]) -> tuple[Any, ...]:
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


def _said(some: Sequence[tuple[Measured, dict[str, Any]]]) -> list[str]:
    lines = []
    for direction, memory in dict.fromkeys((row["direction"], row["memory"]) for _, row in some):
        rows = [row for _, row in some if (row["direction"], row["memory"]) == (direction, memory)]
        least, most = rows[0], max(rows, key=lambda row: row["bytes_per_s"] or 0.0)
        rate = f"{units.number((most['bytes_per_s'] or 0.0) / 1e9, 3)} GB/s at {units.size(most['n_bytes'])}"
        latency = units.short_duration(least["median_s"], 3)
        lines.append(
            f"{some[0][0].key['device']}, {direction} ({memory}): {latency} for {units.size(least['n_bytes'])}, {rate}"
        )
    return lines
