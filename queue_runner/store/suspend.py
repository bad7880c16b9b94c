"""Suspend and continue: the request to suspend a running job (runs.paused_at). Its warden carries it out."""

from __future__ import annotations

import time

from sqlalchemy import Connection, select, update

from queue_runner.model import State
from queue_runner.store.jobs import record
from queue_runner.store.schema import runs


def wish(connection: Connection, run_id: int, suspended: bool, actor: str) -> bool:
    """Request that a running run be suspended, or continued. Return whether that is new; False if it is not RUNNING.

    A run that was suspended and then could not be started waits again, and keeps the request until it is withdrawn.
    """
    if suspended:
        fits = (runs.c.paused_at.is_(None), runs.c.state == State.RUNNING)
    else:
        fits = (runs.c.paused_at.is_not(None), runs.c.state != State.DONE)
    changed = connection.execute(
        update(runs)
        .where(runs.c.id == run_id, *fits)
        .values(paused_at=time.time() if suspended else None)
        .returning(runs.c.job_id)
    ).one_or_none()
    if changed is None:
        return False
    verb = "suspend" if suspended else "continue"
    record(connection, job_id=changed.job_id, run_id=run_id, actor=actor, verb=verb)
    return True


def is_wished(connection: Connection, run_id: int) -> bool:
    """Return whether suspension of the run is requested."""
    return connection.execute(select(runs.c.paused_at).where(runs.c.id == run_id)).scalar_one() is not None
