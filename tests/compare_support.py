"""Runs as reports/_common/prepare.py prepares them, and their comparison, without a store."""

from __future__ import annotations

from typing import Any

from queue_runner.analysis.comparison import Family, Question, compare
from queue_runner.analysis.grouping import MAIN

NAMES = (*MAIN, "n_layer", "optimizer")
_numbers = iter(range(1, 1_000_000))


def row(device: str = "cpu", compile: int = 0, median_s: float | None = 0.1, **more: Any) -> dict[str, Any]:
    """Return a run as prepare.prepare does."""
    number = next(_numbers)
    base = {
        "run_id": number,
        "run": f"{number}.1",
        "spec_hash": f"{device} {compile} {more.get('dtype')} {more.get('factors')}",
        "machine": "m",
        "subject": "nanogpt",
        "config": "tiny",
        "device": device,
        "compile": compile,
        "dtype": "fp32",
        "framework": "torch",
        "optimizer": "AdamW",
        "factors": {},
        "state": "DONE",
        "outcome": "SUCCEEDED",
        "valid": 1,
        "taints": None,
        "median_s": median_s,
        "mad_s": 0.001,
        "tokens_per_iter": 100.0,
        "samples_per_iter": None,
        "n_measure": 100,
        "first_iter_excess_s": 1.0,
        "compile_cache": None,
    }
    return {**base, **more}


def ask(rows: list[dict[str, Any]], **more: Any) -> list[Family]:
    return compare(rows, Question(NAMES, **{"settings": ["n_layer"], **more}))
