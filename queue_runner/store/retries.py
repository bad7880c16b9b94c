"""Retries: a new run of the same job, which may resume from a checkpoint of the old one. The old one stays as it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from queue_runner.model import RETRY_ON, Ending, RunId, State, Verb
from queue_runner.store import hot_sql, read
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import add_run, places, record

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
    sql = "SELECT job_id, number, repeat, lane FROM runs WHERE id = ?"
    job, number, repeat, lane = connection.rows(sql, [run_id])[0]
    new_number = connection.value(hot_sql.LAST_NUMBER, {"job_id": job}) + 1
    head, tail = places(connection)
    new_id = add_run(
        connection,
        job,
        position=head - 1 if first else tail + 1,
        number=new_number,
        repeat=repeat,
        attempt=connection.value("SELECT max(attempt) FROM runs WHERE job_id = ? AND repeat = ?", [job, repeat]) + 1,
        lane=lane,
        not_before_at=not_before_at,
        resumed_from=resumed_from,
    )
    connection.change("UPDATE jobs SET deleted_at = NULL WHERE id = ?", [job])
    record(
        connection,
        job_id=job,
        run_id=new_id,
        actor=actor,
        verb=Verb.RETRY,
        target=State.QUEUED,
        reason=reason or f"run {job}.{number} did not succeed",
    )
    return RunId(job, new_number)


def segments(connection: Connection, run_id: int) -> list[tuple[int, RunId]]:
    """Return the run, the run that it resumes from, and so on: ids and names, the newest first."""
    chain: list[tuple[int, RunId]] = []
    following: int | None = run_id
    while following is not None:
        sql = "SELECT job_id, number, resumed_from FROM runs WHERE id = ?"
        job, number, resumed_from = connection.rows(sql, [following])[0]
        chain.append((following, RunId(job, number)))
        following = resumed_from  # always an older run
    return chain


def retry_as_agreed(
    connection: Connection, run_id: int, ending: Ending, now: float, resumed_from: int | None = None
) -> RunId | None:
    """Queue the retry that --retries promised for a run that has just ended so; None where there is none (left)."""
    attempt, cancel_requested_at, retries, backoff_s, retry_on = _terms(connection, run_id)
    if attempt > retries or cancel_requested_at is not None or not _covers(retry_on, ending):
        return None
    wait_s = min(backoff_s * 2.0 ** (attempt - 1), max(backoff_s, MOST_BACKOFF_S))
    return again(
        connection,
        run_id,
        actor="worker",
        reason=f"retry {attempt} of {retries}: the previous run ended as {ending}",
        not_before_at=now + wait_s if wait_s else None,
        resumed_from=resumed_from,
        first=True,
    )


def sends_again(connection: Connection, run_id: int, ending: Ending, times: int) -> bool:
    """Return whether --retries lets a run that never began start elsewhere, after its block has ended so: for the
    `times`-th time."""
    _, cancel_requested_at, retries, _, retry_on = _terms(connection, run_id)
    return bool(times <= retries and cancel_requested_at is None and _covers(retry_on, ending))


def _terms(connection: Connection, run_id: int) -> Sequence[Any]:
    return connection.rows(
        "SELECT r.attempt, r.cancel_requested_at, j.retries, j.backoff_s, j.retry_on"
        " FROM runs r JOIN jobs j ON j.id = r.job_id WHERE r.id = ?",
        [run_id],
    )[0]


def _covers(retry_on: str | None, ending: Ending) -> bool:
    words = (retry_on or "failed").split(",")  # NULL: stored before retries existed
    return any(ending.outcome in RETRY_ON[word] for word in words)


_CHAIN = """
WITH RECURSIVE
    up(id) AS (
        SELECT ? UNION SELECT r.resumed_from FROM runs r JOIN up ON r.id = up.id WHERE r.resumed_from IS NOT NULL),
    down(id, job_id) AS (
        SELECT id, job_id FROM runs WHERE id = (SELECT min(id) FROM up)
        UNION SELECT r.id, r.job_id FROM runs r JOIN down ON r.job_id = down.job_id AND r.resumed_from = down.id)
SELECT r.id AS run_id, r.job_id || '.' || r.number AS run, r.resumed_from,
    (SELECT min(i) FROM iterations WHERE run_id = r.id) AS first_i,
    (SELECT max(i) FROM iterations WHERE run_id = r.id) AS last_i
FROM runs r JOIN down ON down.id = r.id ORDER BY r.id
"""
"""A run resumes from a run of its own job only."""


class Segment(Struct, frozen=True):
    """One run of a chain. `first_i` and `last_i` are None where no iteration is stored."""

    run_id: int
    run: str
    resumed_from: int | None
    first_i: int | None
    last_i: int | None


def chain(connection: sqlite3.Connection, run_id: int) -> list[Segment]:
    """Return the resume chain that contains `run_id`, the first run first; only that run where none was resumed."""
    return [Segment(*row) for row in read.tuples(connection, _CHAIN, [run_id])]


def redone(segments: list[Segment], run_id: int) -> list[Segment]:
    """Return the later segments that began within the iterations of this run, which are thus done a second time."""
    later, overlapping = {run_id}, []
    for segment in segments:
        if segment.resumed_from in later:
            later.add(segment.run_id)
            if segment.first_i is not None:
                overlapping.append(segment)
    return overlapping
