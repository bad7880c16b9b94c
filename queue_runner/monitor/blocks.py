"""Blocks of runs that were, or will be, sent to other machines, as a reader of the queue sees them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from queue_runner import units
from queue_runner.lanes import REMOTE_GLOB, is_remote
from queue_runner.model import Obstacle, Row, State
from queue_runner.store import read

_OPEN = """
SELECT r.lane, count(*) AS runs, sum(r.state = 'DONE') AS done, l.blocked_reason AS said,
    l.blocked_kind IS 'silent' AS silent, l.next_try_at,
    max(CASE WHEN r.state = 'RUNNING' THEN r.job_id || '.' || r.number END) AS running
FROM runs r LEFT JOIN lanes l ON l.name = r.lane
WHERE r.lane IN (SELECT DISTINCT lane FROM runs WHERE state <> 'DONE' AND lane GLOB ?)
GROUP BY r.lane ORDER BY min(r.id)
"""
_UNSENT = "to be sent as a block"


@dataclass(frozen=True)
class Block:
    """The runs that a group sends to one target. `done` of `runs` have ended; `running` is the run that its node works
    on, if any. `said` is what is known of it. `silent`: its target does not answer, and is asked again at `next_try_at`
    (Unix seconds)."""

    lane: str
    runs: int
    done: int
    running: str | None
    said: str
    silent: bool
    next_try_at: float | None

    @property
    def words(self) -> str:
        """What is known of it now, with the time of the next try."""
        return _words(self.said, self.next_try_at)


def look(connection: sqlite3.Connection) -> list[Block]:
    """Return the blocks with runs that have not ended, in the order of their submission."""
    rows = connection.execute(_OPEN, [REMOTE_GLOB]).fetchall()
    return [Block(**{**row, "said": row["said"] or _UNSENT, "silent": bool(row["silent"])}) for row in rows]


def of(connection: sqlite3.Connection, row: Row) -> str:
    """Return what is known of the block of a run that is sent elsewhere; "" for a run of this machine."""
    if not is_remote(row["lane"]):
        return ""
    found = read.lane(connection, row["lane"])
    return _words(found["blocked_reason"] or f"{_UNSENT}, {row['lane']}", found["next_try_at"])


def silences(connection: sqlite3.Connection, rows: Sequence[Row]) -> dict[str, str]:
    """Return, by lane, since when the targets of these runs do not answer, for those that have not ended."""
    open_ = dict.fromkeys(row["lane"] for row in rows if row["state"] != State.DONE and is_remote(row["lane"]))
    found = {lane: read.lane(connection, lane) for lane in open_}
    return {lane: row["blocked_reason"] for lane, row in found.items() if row["blocked_kind"] == Obstacle.SILENT}


def _words(said: str, next_try_at: float | None) -> str:
    if next_try_at is None:
        return said
    left_s = next_try_at - time.time()
    return f"{said}; the next try is " + (f"in {units.duration(left_s)}" if left_s > 1 else "now")
