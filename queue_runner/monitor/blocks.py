"""Blocks of runs that were, or will be, sent to other machines, as a reader of the queue sees them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from queue_runner.lanes import REMOTE_GLOB, SILENT, is_remote
from queue_runner.model import Row, State

_OPEN = """
SELECT r.lane, count(*) AS runs, sum(r.state = 'DONE') AS done, l.blocked_reason AS said,
    max(CASE WHEN r.state = 'RUNNING' THEN r.job_id || '.' || r.number END) AS running
FROM runs r LEFT JOIN lanes l ON l.name = r.lane
WHERE r.lane IN (SELECT DISTINCT lane FROM runs WHERE state <> 'DONE' AND lane GLOB ?)
GROUP BY r.lane ORDER BY min(r.id)
"""
_UNSENT = "to be sent as a block"


@dataclass(frozen=True)
class Block:
    """The runs that a group sends to one target. `done` of `runs` have ended; `running` is the run that its node works
    on, if any. `said` is what is known of it; it names since when a target does not answer."""

    lane: str
    runs: int
    done: int
    running: str | None
    said: str


def look(connection: sqlite3.Connection) -> list[Block]:
    """Return the blocks with runs that have not ended, in the order of their submission."""
    rows = connection.execute(_OPEN, [REMOTE_GLOB]).fetchall()
    return [Block(**{**row, "said": row["said"] or _UNSENT}) for row in rows]


def of(connection: sqlite3.Connection, row: Row) -> str:
    """Return what is known of the block of a run that is sent elsewhere; "" for a run of this machine."""
    if not is_remote(row["lane"]):
        return ""
    found = connection.execute("SELECT blocked_reason FROM lanes WHERE name = ?", [row["lane"]]).fetchone()
    return (found and found["blocked_reason"]) or f"{_UNSENT}, {row['lane']}"


def silences(connection: sqlite3.Connection, rows: Sequence[Row]) -> dict[str, str]:
    """Return, by lane, since when the targets of these runs do not answer, for those that have not ended."""
    found = {row["lane"]: row for row in rows if row["state"] != State.DONE}
    said = {lane: of(connection, row) for lane, row in found.items()}
    return {lane: text for lane, text in said.items() if SILENT in text}
