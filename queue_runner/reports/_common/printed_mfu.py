"""The mfu that nanoGPT's train.py prints: of an A100's peak, whatever the device (--printed-mfu)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from queue_runner import units
from queue_runner.analysis import stats
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers.run_query import Context
from queue_runner.monitor.run_mfu import A100_BF16_FLOPS
from queue_runner.reports._common.arm_rows import ArmRow

_SQL = "SELECT run_id, value FROM v_metric WHERE name = 'mfu_printed' AND value IS NOT NULL AND run_id IN ({runs})"


def add(rows: Iterable[ReportedRun], context: Context) -> list[ReportedRun]:
    """Return the rows with `mfu_printed`, the median of what a run printed as a share of 1; None if it printed none."""
    rows = list(rows)
    printed = context.tuples_by_run(_SQL, rows) if rows else {}
    shares = {run_id: stats.median([percent / 100 for (percent,) in values]) for run_id, values in printed.items()}
    return [replace(row, mfu_printed=shares.get(row.run_id)) for row in rows]


def note(rows: Iterable[ArmRow]) -> str:
    """Say what the printed number is, and which rates it stands for."""
    known = [(row.label, share) for row in rows if (share := row.mfu_printed) is not None]
    if not known:
        return "printed MFU: no run printed one; nanoGPT's train.py does"
    rates = ", ".join(f"{label} {units.flops_per_s(share * A100_BF16_FLOPS)}" for label, share in known)
    peak = units.flops_per_s(A100_BF16_FLOPS)
    return (
        f"printed MFU: from nanoGPT's train.py, relative to an A100's {peak} in bf16 on every device and dtype: {rates}"
    )
