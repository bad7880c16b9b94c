"""The last evaluation of one run, with its step: both splits, and where its iterations ended."""

from __future__ import annotations

import sqlite3
from typing import Any


def last_evaluation(connection: sqlite3.Connection, run_id: int) -> dict[str, Any] | None:
    """Return `i` (its step), the losses `train` and `val` there (None if not evaluated), and `last_i`, the number of
    the last stored iteration; None if no loss was evaluated."""
    found = connection.execute(
        "SELECT i, split, value FROM evals WHERE run_id = ? AND metric = 'loss' ORDER BY offset DESC LIMIT 4", [run_id]
    ).fetchall()
    if not found:
        return None
    step = max(one["i"] for one in found)
    known = {one["split"]: one["value"] for one in reversed(found) if one["i"] == step}
    last = connection.execute(
        "SELECT i FROM iterations WHERE run_id = ? ORDER BY offset DESC LIMIT 1", [run_id]
    ).fetchone()
    return {
        "i": step,
        "train": known.get("train"),
        "val": known.get("val"),
        "last_i": last["i"] if last else None,
    }
