"""Matrix multiplication speed by framework, device, dtype and size, also as a share of the peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queue_runner import units
from queue_runner.reports._common import footnotes, microbench, prepare, select_runs
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.microbench import Bench, Measured
from queue_runner.reports._common.peaks import Peaks
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "matmul"
FOR = "matmul"
HELP = "matrix multiplication: TFLOP/s by framework, device, dtype and n, share of the peak"
SQL = microbench.sql("matmul")
COLUMNS = columns(
    "framework framework_version device device_name compile dtype settings",
    Column("n", "n", units.count, True),
    "runs n_runs n_samples median_s spread_s spread_over q1_s q3_s flops_per_s",
    Column("share_of_peak", "of peak", units.percent, True),
    "peak_flops peak_source",
    Column("naive_flops_per_s", "FLOP/s without synchronization", units.flops_per_s, True),
    Column("naive_times", "naive / true", units.ratio, True),
    "valid taints",
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
_TIMES = Column("naive_times", "naive / true", units.ratio, True)


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each device."""
    found = microbench.measured(prepare.prepare(rows, context), context, with_config=False)
    if not found.cells:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of matmul with results")], notes=found.notes)
    cells = sorted(found.cells, key=_order)
    peaks = Peaks(context)
    rows = [_row(cell, peaks) for cell in cells]
    sections, lines = [], []
    for caption, results in microbench.tables(cells, rows, microbench.caption):
        devices = {cell.key["device"] for cell, _ in results}
        title = f"matmul {caption}" + (f" ({next(iter(devices))})" if len(devices) == 1 else "")
        shown = [_shown(cell, row, found, len(devices) > 1) for cell, row in results]
        sections.append(Section(title, [*_SHOWN, *microbench.rates(shown, flops_per_s=""), _SHARE], shown))
        if naive := [row for row in shown if row["naive_times"]]:
            both = microbench.rates(naive, flops_per_s="true", naive_flops_per_s="naive")
            title = "the naive loop of many guides, which reads the clock without synchronizing the device"
            sections.append(Section(title, [*_SHOWN[:3], *both, _TIMES], naive))
        lines += _fastest([(cell, row) for cell, row in results if cell.valid or context.options.include_invalid])
    notes = [
        "TFLOP/s = 2 n^3 / t / 10^12, where t is the time of one product, synchronized",
        *microbench.spreads(cells),
        *(["naive: speed without synchronization"] if any(row["naive_times"] for row in rows) else []),
        *footnotes.peaks(rows, "peak:"),
    ]
    return Result(COLUMNS, rows, sections, lines, [*notes, *found.notes])


def _order(cell: Measured) -> tuple[Any, ...]:
    key = cell.key
    return (
        str(key["machine"]), microbench.caption(cell), key["dtype"] != "fp32", str(key["dtype"]), _n(cell),
        str(key["framework"]), str(key["framework_version"]), str(key["device"]), bool(key["compile"]),
    )  # fmt: skip


def _n(cell: Measured) -> int:
    return int(cell.cell.removeprefix("n"))


def _row(cell: Measured, peaks: Peaks) -> dict[str, Any]:
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


def _fastest(results: Sequence[tuple[Measured, dict[str, Any]]]) -> list[str]:
    """Describe the fastest result."""
    if not results:
        return []
    cell, row = max(results, key=lambda result: result[1]["flops_per_s"] or 0.0)
    share = f", {units.percent(row['share_of_peak'])} of its peak" if row["share_of_peak"] else ""
    rate = units.flops_per_s(row["flops_per_s"])
    how = f"{cell.label()} {row['dtype']}, n = {units.count(row['n'])}"
    return [f"fastest {microbench.caption(cell)}: {rate}, {how}{share}"]
