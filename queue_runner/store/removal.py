"""Removal from the database, and the checks for it. Every check is made in the transaction that acts on it."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, func, select, update

from queue_runner.errors import MpsqError
from queue_runner.model import PREFLIGHT, RunId, State
from queue_runner.paths import preflight_cache
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import record
from queue_runner.store.schema import dependencies, groups, jobs, metadata, runs

_UNENDED = select(runs.c.job_id).where(runs.c.state != State.DONE)
_FORGET_FINGERPRINTS = """
DELETE FROM fingerprints WHERE hash NOT IN (
    SELECT machine_hash FROM runs WHERE machine_hash IS NOT NULL
    UNION SELECT software_hash FROM runs WHERE software_hash IS NOT NULL)
"""


def hide(connection: Connection, job_ids: Collection[int], actor: str) -> list[RunId]:
    """Mark ended jobs as deleted. Return all their runs, whose files are then to be removed.

    Raises: MpsqError, with nothing marked, for a job that has not ended, or whose checkpoint a waiting run needs.
    """
    chosen = _values(job_ids)
    _refuse_unended(connection, chosen)
    _refuse_resumed(connection, chosen)
    fresh = connection.execute(select(jobs.c.id).where(jobs.c.id.in_(chosen), jobs.c.deleted_at.is_(None)))
    for job_id in fresh.scalars().all():
        record(connection, job_id=job_id, actor=actor, verb="delete")
    now = time.time()
    connection.execute(update(jobs).where(jobs.c.id.in_(chosen), jobs.c.deleted_at.is_(None)).values(deleted_at=now))
    names = connection.execute(select(runs.c.job_id, runs.c.number).where(runs.c.job_id.in_(chosen)))
    return [RunId(row.job_id, row.number) for row in names]


def erase(connection: Connection, job_ids: Collection[int]) -> None:
    """Delete every row of these ended jobs from the database.

    Raises: MpsqError, after which the transaction must be rolled back, when a waiting job depends on one of them.
    """
    chosen = _values(job_ids)
    _refuse_needed(connection, chosen)
    of_jobs = select(runs.c.id).where(runs.c.job_id.in_(chosen))
    connection.execute(delete(dependencies).where(dependencies.c.on_job_id.in_(chosen)))
    for table in reversed(metadata.sorted_tables):  # referring tables before those they refer to
        if "job_id" in table.c:
            connection.execute(delete(table).where(table.c.job_id.in_(chosen)))
        elif "run_id" in table.c:
            connection.execute(delete(table).where(table.c.run_id.in_(of_jobs)))
    connection.execute(delete(jobs).where(jobs.c.id.in_(chosen)))
    connection.execute(delete(groups).where(~exists().where(jobs.c.group_id == groups.c.id)))
    connection.change(_FORGET_FINGERPRINTS)


def _values(ids: Iterable[int]) -> Select[Any]:
    """Return ids as a query: SQLite takes 32,766 values in one statement."""
    return select(func.json_each(json.dumps([*ids])).table_valued("value").c.value)


def _refuse_unended(connection: Connection, job_ids: Select[Any]) -> None:
    left = select(runs.c.job_id, runs.c.number, runs.c.state).where(
        runs.c.job_id.in_(job_ids), runs.c.state != State.DONE
    )
    row = connection.execute(left.order_by(runs.c.job_id, runs.c.number).limit(1)).one_or_none()
    if row is not None:
        does = "is running" if row.state == State.RUNNING else "waits"
        raise MpsqError(
            f"run {row.job_id}.{row.number} {does}: nothing was deleted", f"cancel it first: mpsq cancel {row.job_id}"
        )


def _refuse_resumed(connection: Connection, job_ids: Select[Any]) -> None:
    source = runs.alias("source")
    row = connection.execute(
        select(runs.c.job_id, runs.c.number, source.c.job_id.label("of_job"), source.c.number.label("of_number"))
        .join(source, source.c.id == runs.c.resumed_from)
        .where(source.c.job_id.in_(job_ids), runs.c.state != State.DONE)
        .limit(1)
    ).one_or_none()
    if row is not None:
        raise MpsqError(
            f"run {row.job_id}.{row.number} resumes from the checkpoint of run {row.of_job}.{row.of_number}: "
            "nothing was deleted",
            f"wait until it ends, or run mpsq cancel {row.job_id} first",
        )


def _refuse_needed(connection: Connection, job_ids: Select[Any]) -> None:
    row = connection.execute(
        select(dependencies.c.job_id, dependencies.c.on_job_id)
        .join(runs, runs.c.job_id == dependencies.c.job_id)
        .where(dependencies.c.on_job_id.in_(job_ids), runs.c.state != State.DONE)
        .limit(1)
    ).one_or_none()
    if row is not None:
        raise MpsqError(
            f"nothing was deleted: job {row.job_id} still needs the result of job {row.on_job_id}",
            f"mpsq cancel {row.job_id}, or delete job {row.on_job_id} without --results",
        )


def removable(connection: Connection, run_ids: Sequence[int], *, deleted: bool) -> set[int]:
    """Return those of these runs whose files nobody needs: the whole job has ended, and no waiting run resumes from
    their checkpoint. With `deleted`, only those of jobs that are still marked as deleted."""
    resuming = select(runs.c.resumed_from).where(runs.c.state != State.DONE, runs.c.resumed_from.is_not(None))
    conditions: list[ColumnElement[bool]] = [jobs.c.deleted_at.is_not(None)] if deleted else []
    query = select(runs.c.id).join(jobs, jobs.c.id == runs.c.job_id)
    query = query.where(runs.c.id.in_(_values(run_ids)), runs.c.job_id.not_in(_UNENDED), runs.c.id.not_in(resuming))
    return set(connection.execute(query.where(*conditions)).scalars())


def cache_is_free(connection: Connection, prefix: str) -> bool:
    """Return whether no unended job has a spec whose hash begins with `prefix`, nor a preflight whose folder it names:
    the compiler cache is unused."""
    tries = connection.execute(_UNENDED.where(runs.c.number == PREFLIGHT)).scalars()
    if prefix in {preflight_cache(f"{job}.{PREFLIGHT}") for job in tries}:
        return False
    asks = select(jobs.c.id).where(jobs.c.spec_hash.startswith(prefix, autoescape=True), jobs.c.id.in_(_UNENDED))
    return connection.execute(asks.limit(1)).first() is None


REFERENCED = """
SELECT snapshot_hash FROM jobs
UNION SELECT tree_hash FROM snapshots WHERE hash IN (SELECT snapshot_hash FROM jobs)
UNION SELECT json_extract(spec_json, '$.tree') FROM jobs
"""
"""Names of folders of snapshots/ that jobs refer to: of workloads, and of the trees of commands."""


def forget_snapshots(connection: Connection, hashes: Iterable[str]) -> list[str]:
    """Delete the rows of those snapshots, or trees, that no job refers to. Return the hashes that are now free."""
    needed = {*connection.column(REFERENCED)}
    free = [digest for digest in hashes if digest not in needed]
    chosen = "(SELECT value FROM json_each(:free))"
    sql = f"DELETE FROM snapshots WHERE hash IN {chosen} OR tree_hash IN {chosen}"
    connection.change(sql, {"free": json.dumps(free)})
    return free


def note_files_removed(connection: Connection, run_id: int, job_id: int, reason: str) -> None:
    """Record in a job's history that the files of a run were removed."""
    record(connection, job_id=job_id, run_id=run_id, actor="user", verb="gc", reason=reason)
