"""The attempt of a repeat that counts: its last one, unless a new round replaces it."""

from __future__ import annotations

from collections.abc import Sequence

from queue_runner.model import Row


def last_attempts(rows: Sequence[Row]) -> list[Row]:
    """Return the last attempt, the one that counts, of each repeat of each job that was not replaced."""
    last: dict[tuple[int, int], Row] = {}
    for row in rows:
        if row.get("replaced"):
            continue
        key = (row["job_id"], row["repeat"])
        if key not in last or row["attempt"] > last[key]["attempt"]:
            last[key] = row
    return list(last.values())
