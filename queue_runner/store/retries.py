"""Retries: a new run of the same job, beside the old one, which stays as it is."""

from __future__ import annotations

from sqlalchemy import Connection, func, select, update

from queue_runner.model import RETRY_ON, Ending, RunId, State, Verb
from queue_runner.store.jobs import add_run, record
from queue_runner.store.schema import jobs, runs

MOST_BACKOFF_S = 86_400.0
"""The cap of a doubled back-off: without it, the thirtieth from one hour would exceed any calendar."""


def again(
    connection: Connection,
    run_id: int,
    *,
    actor: str,
    reason: str = "",
    not_before_at: float | None = None,
    resumed_from: int | None = None,
    first: bool = False,
) -> RunId:
    """Queue another attempt at a run's repeat, ahead of or behind all waiting runs. Return its name."""
    old = connection.execute(select(runs).where(runs.c.id == run_id)).one()
    of_job = runs.c.job_id == old.job_id
    number = connection.execute(select(func.max(runs.c.number)).where(of_job)).scalar_one() + 1
    attempts = select(func.max(runs.c.attempt)).where(of_job, runs.c.repeat == old.repeat)
    ends = select(func.min(runs.c.position), func.max(runs.c.position)).where(runs.c.state != State.DONE)
    head, tail = connection.execute(ends).one()
    head, tail = (1, 0) if head is None else (head, tail)
    new_id = add_run(
        connection,
        old.job_id,
        position=head - 1 if first else tail + 1,
        number=number,
        repeat=old.repeat,
        attempt=connection.execute(attempts).scalar_one() + 1,
        lane=old.lane,
        not_before_at=not_before_at,
        resumed_from=resumed_from,
    )
    connection.execute(update(jobs).where(jobs.c.id == old.job_id).values(deleted_at=None))  # unhide the job
    record(
        connection,
        job_id=old.job_id,
        run_id=new_id,
        actor=actor,
        verb=Verb.RETRY,
        target=State.QUEUED,
        reason=reason or f"run {old.job_id}.{old.number} did not succeed",
    )
    return RunId(old.job_id, number)


def segments(connection: Connection, run_id: int) -> list[tuple[int, RunId]]:
    """Return the run, the run that it resumes from, and so on: ids and names, the newest first."""
    found: list[tuple[int, RunId]] = []
    following: int | None = run_id
    while following is not None:
        row = connection.execute(
            select(runs.c.id, runs.c.job_id, runs.c.number, runs.c.resumed_from).where(runs.c.id == following)
        ).one()
        found.append((row.id, RunId(row.job_id, row.number)))
        following = row.resumed_from  # always an older run
    return found


def retry_as_agreed(
    connection: Connection, run_id: int, ending: Ending, now: float, resumed_from: int | None = None
) -> RunId | None:
    """Queue the retry that --retries promised for a run that has just ended so; None where there is none (left)."""
    row = connection.execute(
        select(runs.c.attempt, runs.c.cancel_requested_at, jobs.c.retries, jobs.c.backoff_s, jobs.c.retry_on)
        .join(jobs, jobs.c.id == runs.c.job_id)
        .where(runs.c.id == run_id)
    ).one()
    words = (row.retry_on or "failed").split(",")  # NULL: stored before retries existed
    if row.attempt > row.retries or row.cancel_requested_at is not None:
        return None
    if not any(ending.outcome in RETRY_ON[word] for word in words):
        return None
    wait_s = min(row.backoff_s * 2.0 ** (row.attempt - 1), max(row.backoff_s, MOST_BACKOFF_S))
    return again(
        connection,
        run_id,
        actor="worker",
        reason=f"retry {row.attempt} of {row.retries}: the previous run ended as {ending}",
        not_before_at=now + wait_s if wait_s else None,
        resumed_from=resumed_from,
        first=True,
    )
