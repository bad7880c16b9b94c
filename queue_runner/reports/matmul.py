"""Matrix multiplication speed by framework, device, dtype and size, also as a share of the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from queue_runner import units
from queue_runner.reports._common import footnotes, microbench
from queue_runner.reports._common.columns import RowColumn, columns
from queue_runner.reports._common.device_peaks import Peaks
from queue_runner.reports._common.document import Row, Section
from queue_runner.tables import Column

NAME = "matmul"
FOR = "matmul"
HELP = "matrix multiplication: TFLOP/s by framework, device, dtype and n, share of the peak"
_N = Column("n", "n", units.count, True)
_SHARE = Column("share_of_peak", "of peak", units.percent, True)
_TIMES = Column("naive_times", "naive / true", units.ratio, True)
_BLOCK = (
    Column("block_calls", "products", units.count, True),
    Column("guide_block_s", "guide", units.short_duration, True),
    Column("naive_block_s", "naive", units.short_duration, True),
    Column("block_s", "true", units.short_duration, True),
)
COLUMNS = columns(
    "framework framework_version device device_name compile dtype settings",
    _N,
    "runs n_runs n_samples median_s spread_s spread_over q1_s q3_s flops_per_s",
    _SHARE,
    "peak_flops peak_source",
    Column("naive_flops_per_s", "FLOP/s without synchronization", units.flops_per_s, True),
    _TIMES,
    *_BLOCK,
    "valid taints",
)


def _values(row: Row, peaks: Peaks) -> Row:
    peak = peaks.find(row["machine"], row["device"], row["device_name"], row["dtype"], or_measured=True)
    facts = row["facts"]
    flop, naive_s, calls = facts.get("flop"), facts.get("time_unsynced"), facts.get("calls")
    return {
        "n": int(row["cell"].removeprefix("n")),
        "share_of_peak": row["flops_per_s"] / peak.flops if peak and row["flops_per_s"] else None,
        "peak_flops": peak.flops if peak else None,
        "peak_source": peak.source if peak else None,
        "naive_flops_per_s": flop / naive_s if naive_s and flop is not None else None,
        "naive_times": row["median_s"] / naive_s if naive_s else None,
        "block_calls": calls,
        "guide_block_s": facts.get("block_unsynced"),
        "naive_block_s": naive_s * calls if naive_s and calls else None,
        "block_s": row["median_s"] * calls if naive_s and calls else None,
    }


def _order(row: Row) -> tuple[Any, ...]:
    return (
        str(row["machine"]), microbench.caption(row), row["dtype"] != "fp32", str(row["dtype"]), row["n"],
        str(row["framework"]), str(row["framework_version"]), str(row["device"]), str(row["compile"] or False),
    )  # fmt: skip


def _sections(caption: str, rows: Sequence[Row], marks: Column) -> Iterable[Section]:
    devices = {row["device"] for row in rows}
    label = RowColumn("label", "", partial(microbench.label, device=len(devices) > 1), flexible=True)
    case = columns(label, "dtype", _N)
    title = f"matmul {caption}" + (f" ({next(iter(devices))})" if len(devices) == 1 else "")
    rate = microbench.rates(rows, flops_per_s="")
    yield Section(title, (*case, microbench.RUNS, microbench.TIME, marks, microbench.SPREAD, *rate, _SHARE), rows)
    if naive := [row for row in rows if row["naive_times"]]:
        both = microbench.rates(naive, flops_per_s="true", naive_flops_per_s="naive")
        title = "the naive loop of many guides, which reads the clock without synchronizing the device"
        yield Section(title, (*case, *both, _TIMES), naive)
    if guides := [row for row in rows if row["guide_block_s"] is not None]:
        title = "the guide's loop, as it prints it: the seconds of one block of products"
        yield Section(title, (*case, *_BLOCK), guides)


def _findings(rows: Sequence[Row]) -> Iterable[str]:
    """Describe the fastest result."""
    if rows:
        row = max(rows, key=lambda row: row["flops_per_s"] or 0.0)
        share = f", {units.percent(row['share_of_peak'])} of its peak" if row["share_of_peak"] else ""
        rate = units.flops_per_s(row["flops_per_s"])
        how = f"{microbench.label(row)} {row['dtype']}, n = {units.count(row['n'])}"
        yield f"fastest {microbench.caption(row)}: {rate}, {how}{share}"


def _notes(rows: Sequence[Row]) -> Iterable[str]:
    yield "TFLOP/s = 2 n^3 / t / 10^12, where t is the time of one product, synchronized"
    if any(row["naive_times"] for row in rows):
        yield "naive: speed without synchronization"
    if any(row["guide_block_s"] is not None for row in rows):
        yield (
            "guide: the first block of the process by time.time(), without synchronization; naive and true: the median"
            " of the measured blocks, without and with it"
        )
    yield from footnotes.peaks(rows, "peak:")


REPORT = microbench.Microbench("matmul", COLUMNS, _values, microbench.caption, _sections, _notes, _findings, _order)
SQL, finish = REPORT.sql, REPORT.finish
