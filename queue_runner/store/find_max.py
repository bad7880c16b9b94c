"""Searches (--find-max): the probes of a search are jobs of the same group that differ in one setting only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select, text

from queue_runner.model import RunId, State, Verb
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import add_job, add_run, record
from queue_runner.store.read import PROBES
from queue_runner.store.schema import job_tags, jobs, runs

_PROBES = text(PROBES)


def probes(connection: Connection, job_id: int, asked: str) -> list[Mapping[str, Any]]:
    """Return the last attempt of every probe for `asked` in a job's group, which may hold several searches."""
    return [dict(row) for row in connection.execute(_PROBES, {"job": job_id, "asked": asked}).mappings()]


def add(connection: Connection, like: int, spec: JobSpec, reason: str) -> RunId:
    """Queue one more probe, ahead of all waiting runs, on the terms of the job `like`. Return the name of its run."""
    old = connection.execute(select(jobs).where(jobs.c.id == like)).one()
    tags = connection.execute(select(job_tags.c.tag).where(job_tags.c.job_id == like)).scalars().all()
    terms = Terms(
        priority=old.priority,
        tags=tuple(tags),
        note=old.note,
        deadline_at=old.deadline_at,
        retries=old.retries,
        backoff_s=old.backoff_s or 0.0,
        retry_on=tuple((old.retry_on or "failed").split(",")),
        schedule_id=old.schedule_id,
    )
    job_id = add_job(connection, old.group_id, NewJob(spec, 1, terms))
    head = connection.execute(select(func.min(runs.c.position)).where(runs.c.state != State.DONE)).scalar_one()
    lane = connection.execute(select(runs.c.lane).where(runs.c.job_id == like).limit(1)).scalar_one()
    add_run(connection, job_id, position=1 if head is None else head - 1, lane=lane)
    record(connection, job_id=job_id, actor="worker", verb=Verb.SUBMIT, target=State.QUEUED, reason=reason)
    return RunId(job_id, 1)
