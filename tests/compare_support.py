"""Runs as monitor/answers/prepare.py prepares them, and their comparison, without a store."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from queue_runner.analysis.comparison import Family, Question, compare
from queue_runner.analysis.grouping import MAIN
from queue_runner.analysis.reported_run import ReportedRun

NAMES = (*MAIN, "n_layer", "optimizer")
_numbers = iter(range(1, 1_000_000))


def row(device: str | None = "cpu", compile: int = 0, median_s: float | None = 0.1, **more: Any) -> ReportedRun:
    """Return a run as prepare.prepare does."""
    number = next(_numbers)
    dtype, factors = more.get("dtype"), more.get("factors")
    base: dict[str, Any] = {
        "run_id": number,
        "run": f"{number}.1",
        "spec_hash": f"{device} {compile} {dtype} {factors}",
        "machine": "m",
        "subject": "nanogpt",
        "config": "tiny",
        "dtype": "fp32",
        "framework": "torch",
        "optimizer": "AdamW",
        "outcome": "SUCCEEDED",
        "mad_s": 0.001,
        "tokens_per_iter": 100.0,
        "n_measure": 100,
        "first_iter_excess_s": 1.0,
    }
    return ReportedRun(device=device, compile=compile, median_s=median_s, **{**base, **more})


def in_rounds(rows: list[ReportedRun]) -> list[ReportedRun]:
    """Return the runs as one submission planned them: the n-th of each row in its n-th round. Others stay as they are:
    imported logs, and runs that have a submission."""
    numbers: Counter[Any] = Counter()
    planned = []
    for run in rows:
        if run.group_id is None and run.kind != "import":
            numbers[row_key := (run.device, run.compile, run.dtype, run.optimizer, str(run.factors), run.subject)] += 1
            repeat = numbers[row_key]
            run = replace(run, group_id=1, repeat=repeat, started_at=repeat * 100.0 + len(numbers))
        planned.append(run)
    return planned


def ask(rows: list[ReportedRun], **more: Any) -> list[Family]:
    return compare(in_rounds(rows), Question(NAMES, **{"settings": ["n_layer"], **more}))
