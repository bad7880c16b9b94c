"""Matrix multiplication speed by framework, device, dtype and size, also as a share of the peak."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from queue_runner import units
from queue_runner.reports._common import microbench, prepare, select_runs
from queue_runner.reports._common.microbench import Bench, Measured
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports.devices import rows as _rows
from queue_runner.tables import Column

NAME = "matmul"
FOR = "matmul"
HELP = "products of matrices: TFLOP/s by framework, device, dtype and n, share of the peak"
SQL = microbench.sql("matmul")
COLUMNS = (
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("device", "device"),
    Column("device_name", "device name"),
    Column("compile", "compile"),
    Column("dtype", "dtype"),
    Column("settings", "settings"),
    Column("n", "n", units.count, True),
    Column("runs", "runs", " ".join),
    Column("n_runs", "valid", units.count, True),
    Column("n_samples", "samples", units.count, True),
    Column("median_s", "time", units.short_duration, True),
    Column("spread_s", "spread", units.short_duration, True),
    Column("spread_over", "spread over"),
    Column("q1_s", "lower quartile", units.short_duration, True),
    Column("q3_s", "upper quartile", units.short_duration, True),
    Column("flops_per_s", "FLOP/s", units.flops_per_s, True),
    Column("share_of_peak", "of peak", units.percent, True),
    Column("peak_flops", "peak", units.flops_per_s, True),
    Column("peak_source", "peak from"),
    Column("naive_flops_per_s", "FLOP/s by a clock that does not wait", units.flops_per_s, True),
    Column("naive_times", "times the true one", units.ratio, True),
    Column("valid", "counts"),
    Column("taints", "taints", json.dumps),
)
_SHOWN = (
    Column("label", "", flexible=True),
    Column("dtype", "dtype"),
    Column("n", "n", units.count, True),
    Column("n_runs", "runs", units.count, True),
    Column("time", "time", right=True),
    Column("mark", ""),
    Column("spread", units.PLUS_MINUS, right=True),
)
_SHARE = Column("share_of_peak", "of peak", units.percent, True)
_TIMES = Column("naive_times", "times", units.ratio, True)


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each device."""
    found = microbench.measured(prepare.prepare(rows, context), context, with_config=False)
    if not found.cells:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of matmul with results")], notes=found.notes)
    cells = sorted(found.cells, key=_order)
    peaks = _rows.Peaks(context)
    told = [(cell, _row(cell, peaks)) for cell in cells]
    sections, lines = [], []
    for where in dict.fromkeys((cell.key["machine"], microbench.caption(cell)) for cell in cells):
        some = [(cell, row) for cell, row in told if (cell.key["machine"], microbench.caption(cell)) == where]
        devices = {cell.key["device"] for cell, _ in some}
        title = f"matmul {where[1]}" + (f" ({next(iter(devices))})" if len(devices) == 1 else "")
        shown = [_shown(cell, row, found, len(devices) > 1) for cell, row in some]
        sections.append(Section(title, [*_SHOWN, *microbench.rates(shown, flops_per_s=""), _SHARE], shown))
        if naive := [row for row in shown if row["naive_times"]]:
            both = microbench.rates(naive, flops_per_s="true", naive_flops_per_s="said")
            title = "what the loop says that guides publish, whose clock waits for nobody"
            sections.append(Section(title, [*_SHOWN[:3], *both, _TIMES], naive))
        lines += _fastest([(cell, row) for cell, row in some if cell.valid or context.options.include_invalid])
    said = [
        "TFLOP/s = 2 n^3 / t / 10^12, t the time of one product with the device waited for",
        *microbench.spreads(cells),
        *(
            ["naive: the speed by a clock that does not wait, over the true one"]
            if any(row["naive_times"] for _, row in told)
            else []
        ),
        *_peaks([row for _, row in told]),
    ]
    return Result(COLUMNS, [row for _, row in told], sections, lines, [*said, *found.notes])


def _order(cell: Measured) -> tuple[Any, ...]:
    key = cell.key
    return (
        str(key["machine"]), microbench.caption(cell), key["dtype"] != "fp32", str(key["dtype"]), _n(cell),
        str(key["framework"]), str(key["framework_version"]), str(key["device"]), bool(key["compile"]),
    )  # fmt: skip


def _n(cell: Measured) -> int:
    return int(cell.cell.removeprefix("n"))


def _row(cell: Measured, peaks: _rows.Peaks) -> dict[str, Any]:
    key, row = cell.key, cell.row()
    peak = peaks.find(key["machine"], key["device"], key["device_name"], key["dtype"], or_measured=True)
    naive_s = cell.facts.get("time_unsynced")
    return {
        **row,
        "n": _n(cell),
        "share_of_peak": row["flops_per_s"] / peak.flops if peak and row["flops_per_s"] else None,
        "peak_flops": peak.flops if peak else None,
        "peak_source": peak.source if peak else None,
        "naive_flops_per_s": cell.facts["flop"] / naive_s if naive_s and "flop" in cell.facts else None,
        "naive_times": cell.median_s / naive_s if naive_s else None,
    }


def _shown(cell: Measured, row: dict[str, Any], found: Bench, device: bool) -> dict[str, Any]:
    time = units.short_duration(cell.median_s, 3)
    label = cell.label(device)
    return {**row, "label": label, "time": time, "spread": microbench.spread(cell), "mark": found.mark(cell)}


def _fastest(some: Sequence[tuple[Measured, dict[str, Any]]]) -> list[str]:
    """Describe the fastest of the valid results."""
    if not some:
        return []
    cell, row = max(some, key=lambda one: one[1]["flops_per_s"] or 0.0)
    share = f", {units.percent(row['share_of_peak'])} of its peak" if row["share_of_peak"] else ""
    rate = units.flops_per_s(row["flops_per_s"])
    how = f"{cell.label()} {row['dtype']}, n = {units.count(row['n'])}"
    return [f"highest {microbench.caption(cell)}: {rate}, {how}{share}"]


def _peaks(rows: Sequence[dict[str, Any]]) -> list[str]:
    peaks = {(row["device_name"] or row["device"], row["dtype"], row["peak_flops"], row["peak_source"]) for row in rows}
    return [
        f"peak: {units.flops_per_s(flops)}, {name} {dtype} ({source})"
        for name, dtype, flops, source in sorted(peak for peak in peaks if peak[2] is not None)
    ]
