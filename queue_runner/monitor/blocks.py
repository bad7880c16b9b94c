"""Blocks of runs that were, or will be, sent to other machines, as a reader of the queue sees them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from queue_runner import units
from queue_runner.lanes import REMOTE_GLOB, is_remote
from queue_runner.model import Obstacle, State
from queue_runner.monitor.run_view import RunView
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
    blocks = [Block(**row) for row in connection.execute(_OPEN, [REMOTE_GLOB])]
    return [replace(block, said=block.said or _UNSENT, silent=bool(block.silent)) for block in blocks]


def status_of(connection: sqlite3.Connection, lane: str) -> str:
    """Return the status of the block of a remote lane; "" for a lane of this machine."""
    if not is_remote(lane):
        return ""
    row = read.lane(connection, lane)
    return _words(row.blocked_reason or f"{_UNSENT}, {lane}", row.next_try_at)


def silences(connection: sqlite3.Connection, runs: Sequence[RunView]) -> dict[str, str]:
    """Return, by lane, since when the targets of these runs do not answer, for those that have not ended."""
    names = dict.fromkeys(run.lane for run in runs if run.state != State.DONE and is_remote(run.lane))
    rows = [read.lane(connection, name) for name in names]
    return {row.name: row.blocked_reason or "" for row in rows if row.blocked_kind == Obstacle.SILENT}


def _words(said: str, next_try_at: float | None) -> str:
    if next_try_at is None:
        return said
    left_s = next_try_at - time.time()
    return f"{said}; the next try is " + (f"in {units.duration(left_s)}" if left_s > 1 else "now")
