"""The MFU of one run: mpsq's, of the device's own peak, and the one that nanoGPT's train.py printed.

train.py divides by an A100's peak on every device ("A100 GPU bfloat16 peak flops is 312 TFLOPS", estimate_mfu in
github.com/karpathy/nanoGPT, model.py), so that its number is a rate in FLOP/s, and no share of what a Mac has.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from queue_runner import config_file
from queue_runner.analysis import peaks, stats
from queue_runner.host.machine import gpu_cores
from queue_runner.monitor.run_view import RunView
from queue_runner.paths import Layout
from queue_runner.store import read

A100_BF16_FLOPS = 312e12


@dataclass(frozen=True)
class Mfu:
    """Shares of 1 and FLOP per second of a run, by the median of its measured iterations; None is unknown."""

    flops_per_s: float | None
    share: float | None
    peak_flops: float | None
    peak_source: str | None
    printed_share: float | None
    """the median of what the trainer printed, of A100_BF16_FLOPS"""
    printed_flops_per_s: float | None


def of_run(layout: Layout, connection: sqlite3.Connection, run: RunView) -> Mfu | None:
    """Return the MFU of a run; None if neither rate is known."""
    sql = "SELECT value FROM metrics WHERE run_id = ? AND name = 'mfu_printed' AND value IS NOT NULL"
    printed = [percent / 100 for (percent,) in read.tuples(connection, sql, [run.run_id])]
    share = stats.median(printed) if printed else None
    median_s, flops = run.median_s, run.flops_per_iter
    rate = flops / median_s if flops is not None and median_s else None
    if rate is None and share is None:
        return None
    machine = read.tuples(
        connection, "SELECT data_json FROM fingerprints WHERE hash = ?", [run.machine_hash]
    ).fetchone()
    cores = gpu_cores(json.loads(machine[0]) if machine else {})
    peak = peaks.known(config_file.load(layout.config).peak_tflops, run.device, run.device_name, cores, run.dtype)
    peak = peaks.of_gpus(peak, run.spec.gpus)
    return Mfu(
        flops_per_s=rate,
        share=peaks.mfu(flops, median_s, peak),
        peak_flops=peak.flops if peak else None,
        peak_source=peak.source if peak else None,
        printed_share=share,
        printed_flops_per_s=None if share is None else share * A100_BF16_FLOPS,
    )
