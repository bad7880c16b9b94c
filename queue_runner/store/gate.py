"""The history of a run's wait for a quiet machine: a worker that is started meanwhile counts on from there."""

from __future__ import annotations

from sqlalchemy import Connection, select

from queue_runner.store import jobs
from queue_runner.store.jobs import Following
from queue_runner.store.schema import job_events

WAITS, QUIET, NOT_QUIET, LEFT = "wait for quiet", "quiet", "not quiet", "no longer next"
"""Verbs of the history: the wait begins; it ends since the machine is quiet, or after the timeout; it is given up."""


def waits_since(connection: Connection, run_id: int) -> float | None:
    """Return when (Unix seconds) the wait began that this run is in; None if nothing happened to it, or something has
    happened since: its release, a new attempt to start it."""
    newest = select(job_events.c.verb, job_events.c.at).where(job_events.c.run_id == run_id)
    row = connection.execute(newest.order_by(job_events.c.id.desc()).limit(1)).one_or_none()
    return float(row.at) if row is not None and row.verb == WAITS else None


def record(connection: Connection, run: Following, verb: str, reason: str) -> None:
    """Append a step of the wait to the run's history; LEFT only if the run still waits."""
    if verb != LEFT or waits_since(connection, run.run_id) is not None:
        jobs.record(connection, job_id=run.id.job, run_id=run.run_id, actor="worker", verb=verb, reason=reason)
