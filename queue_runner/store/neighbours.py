"""Runs of other lanes of this machine that were active at the same time, and those that are only there to be so.

The latter are the runs of jobs for which another job waits `while` they are measured (mpsq bench --neighbours).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

_BESIDE = """
SELECT other.job_id || '.' || other.number AS run, other.lane, other.state, other.claimed_at, other.started_at,
    other.ended_at
FROM (SELECT id FROM runs WHERE state = 'RUNNING' UNION ALL SELECT id FROM runs WHERE ended_at > ?) recent
JOIN runs own ON own.id = ?
JOIN runs other ON other.id = recent.id AND other.lane <> own.lane AND other.boot_id = own.boot_id
JOIN jobs j ON j.id = other.job_id
WHERE other.claimed_at < ? AND json_extract(j.spec_json, '$.on.to') IS NULL
ORDER BY other.claimed_at, other.id
"""
"""Times of one boot are of one clock. What was sent elsewhere (--on) has a lane, and disturbs nobody here."""

_IDLE = """
SELECT own.id FROM runs own JOIN jobs j ON j.id = own.job_id
WHERE own.state = 'RUNNING' AND own.cancel_requested_at IS NULL AND json_extract(j.spec_json, '$.pairing') = 'neighbour'
    AND NOT EXISTS (
        SELECT 1 FROM dependencies d JOIN runs waiter ON waiter.job_id = d.job_id
        WHERE d.on_job_id = own.job_id AND d.condition = 'while' AND waiter.repeat = own.repeat
        AND waiter.state <> 'DONE' AND NOT EXISTS (
            SELECT 1 FROM runs r JOIN jobs rj ON rj.id = r.job_id
            WHERE r.repeat = own.repeat AND r.state IN ('QUEUED', 'HELD') AND r.job_id IN (
                SELECT waiter.job_id
                UNION SELECT on_job_id FROM dependencies WHERE job_id = waiter.job_id AND condition = 'while')
            AND (r.state = 'HELD' OR r.not_before_at > ? OR EXISTS (
                SELECT 1 FROM lanes l WHERE l.paused_at IS NOT NULL
                AND (l.name = 'machine' OR instr(',' || rj.lane || ',', ',' || l.name || ','))))))
"""
"""A round that stands still (its run, or a further neighbour of it, is held, delayed or on a paused lane) keeps no
neighbour: it would keep the machine until somebody comes."""
_MEASURING = """
SELECT p.run_id FROM phases p JOIN runs r ON r.id = p.run_id
WHERE r.state = 'RUNNING' AND p.name = 'measure' AND p.edge = 'begin' ORDER BY p.run_id
"""


def measuring(connection: Connection) -> list[int]:
    """Return the RUNNING runs that have begun to be measured: what waits for that may start, and no event says so."""
    return list(connection.exec_driver_sql(_MEASURING).scalars())


def idle(connection: Connection, now: float) -> list[int]:
    """Return the RUNNING neighbours beside which no run is measured any more, nor will be without user action. `now`
    is in Unix seconds."""
    return list(connection.exec_driver_sql(_IDLE, (now,)).scalars())


def beside(connection: Connection, run_id: int, since: float, until: float) -> list[dict[str, Any]]:
    """Return the runs of other lanes that were claimed before `until` and had not ended at `since` (Unix seconds), or
    are still RUNNING: run, lane, state, claimed_at, started_at (None: no fence was seen), ended_at."""
    found = connection.exec_driver_sql(_BESIDE, (since, run_id, until))
    return [dict(row) for row in found.mappings()]
