"""The mfu that nanoGPT's train.py prints: of an A100's peak, whatever the device (--printed-mfu)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis import stats
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.run_mfu import A100_BF16_FLOPS
from queue_runner.reports._common.document import Context

_SQL = "SELECT run_id, value FROM v_metric WHERE name = 'mfu_printed' AND value IS NOT NULL AND run_id IN ({runs})"


def add(rows: Iterable[ReportedRun], context: Context) -> list[ReportedRun]:
    """Return the rows with `mfu_printed`, the median of what a run printed as a share of 1; None if it printed none."""
    rows = list(rows)
    found = context.by_run(_SQL, rows) if rows else {}
    shares = {run_id: stats.median([one["value"] / 100 for one in printed]) for run_id, printed in found.items()}
    return [replace(row, mfu_printed=shares.get(row.run_id)) for row in rows]


def note(rows: Iterable[Mapping[str, Any]]) -> str:
    """Say what the printed number is, and which rates it stands for."""
    known = [(row["label"], share) for row in rows if (share := row["mfu_printed"]) is not None]
    if not known:
        return "printed MFU: no run printed one, as nanoGPT's train.py does"
    rates = ", ".join(f"{label} {units.flops_per_s(share * A100_BF16_FLOPS)}" for label, share in known)
    peak = units.flops_per_s(A100_BF16_FLOPS)
    return f"printed MFU: by nanoGPT's train.py, of an A100's {peak} in bf16 on every device and dtype: {rates}"
