"""Replacements (--until-valid): runs that the machine disturbed are repeated by a complete round of all arms.

The decision is made once, in the transaction that ends the last run of a group: a worker that dies has made it or has
not. What a run's own numbers say never replaces it, since choosing runs by their results would bias the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from queue_runner.analysis.validity import disturbance
from queue_runner.model import PREFLIGHT, Outcome, State, Verb
from queue_runner.store import hot_sql
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import add_run, places, record

MOST = 2
"""Replacements of one run."""


@dataclass(frozen=True)
class GroupRun:
    """A run of a group. `until_valid`: its disturbed runs are replaced. `taints` has kinds, separated by commas."""

    id: int
    job_id: int
    number: int
    repeat: int
    attempt: int
    outcome: Outcome
    reason: str | None
    replaces: int | None
    cancel_requested_at: float | None
    lane: str
    deleted_at: float | None
    deadline_at: float | None
    retries: int
    retry_on: str | None
    until_valid: int | None
    taints: str | None


_OPEN = "SELECT 1 FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id = ? AND r.state <> 'DONE' LIMIT 1"
_RUNS = """
SELECT r.id, r.job_id, r.number, r.repeat, r.attempt, r.outcome, r.reason, r.replaces, r.cancel_requested_at, r.lane,
    j.deleted_at, j.deadline_at, j.retries, j.retry_on, json_extract(j.spec_json, '$.until_valid') AS until_valid,
    (SELECT group_concat(kind) FROM taints WHERE run_id = r.id) AS taints
FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id = ? AND r.number <> ? ORDER BY r.job_id, r.attempt, r.id
"""

Order = Callable[[int, int, int], Sequence[int]]


def after(connection: Connection, job_id: int, order: Order, now: float) -> int:
    """Queue the rounds that replace disturbed ones, ahead of all waiting runs, if the group of a job has ended and
    nobody has cancelled or deleted a part of it. Return the number of new runs.

    `order` is called with the number of arms, a round and the group's seed, and returns the places of the arms.
    """
    group_id, seed = connection.rows(hot_sql.GROUP_OF_JOB, {"job_id": job_id})[0]
    if connection.row(_OPEN, (group_id,)) is not None:
        return 0
    rows = [GroupRun(*row) for row in connection.rows(_RUNS, (group_id, PREFLIGHT))]
    if any(_is_the_users(row, now) for row in rows):
        return 0
    last = {(row.job_id, row.repeat): row for row in rows if row.until_valid}  # in the order of attempts
    replaced = {(row.job_id, row.replaces) for row in rows if row.replaces}
    disturbed: dict[int, dict[int, GroupRun]] = {}
    for (job, repeat), row in last.items():
        if _disturbed(row) and (job, repeat) not in replaced and _generation(repeat, rows) < MOST:
            disturbed.setdefault(repeat, {})[job] = row
    arms = sorted({job for job, _ in last if _works(job, last.values())})
    rounds = sorted(disturbed)
    if not rounds:
        return 0
    position = places(connection)[0] - len(rounds) * len(arms)
    newest = max(row.repeat for row in rows)
    for following, old in enumerate(rounds, start=newest + 1):
        for place in order(len(arms), following, seed):
            _add(connection, arms[place], following, old, disturbed[old], position)
            position += 1
    return len(rounds) * len(arms)


def after_skips(connection: Connection, run_ids: Sequence[int], order: Order, now: float) -> None:
    """Do the same for the groups whose last runs were skipped."""
    for job_id in connection.column(hot_sql.LAST_JOBS_OF_GROUPS, {"ids": json.dumps(list(run_ids))}):
        after(connection, job_id, order, now)


def _disturbed(row: GroupRun) -> list[str]:
    """Return what of the machine disturbed a run that is to be replaced for it. A lost run that --retries covers is
    not: it has been retried."""
    retried = row.retries and "lost" in (row.retry_on or "").split(",")
    return [] if row.outcome == Outcome.LOST and retried else disturbance(row.outcome, row.reason, row.taints)


def _is_the_users(row: GroupRun, now: float) -> bool:
    """Return whether a user has ended a part of the group, or its time is over."""
    late = row.deadline_at is not None and row.deadline_at <= now
    return row.cancel_requested_at is not None or row.deleted_at is not None or late


def _generation(repeat: int, rows: Sequence[GroupRun]) -> int:
    """Return how often the round was replaced before: 0 for a submitted one."""
    before = max((row.replaces or 0 for row in rows if row.repeat == repeat), default=0)
    return 1 + _generation(before, rows) if before else 0


def _works(job: int, last: Collection[GroupRun]) -> bool:
    """Return whether a round includes the job: one that never succeeded would only fail again."""
    return any(row.job_id == job and (row.outcome == Outcome.SUCCEEDED or _disturbed(row)) for row in last)


def _add(
    connection: Connection, job: int, repeat: int, old: int, disturbed: dict[int, GroupRun], position: int
) -> None:
    """Queue a job's run of a new round. Where it replaces one, it goes on with the attempts that were used there, so
    that retries and replacements do not multiply."""
    replaced = disturbed.get(job)
    new = add_run(
        connection,
        job,
        position=position,
        number=connection.value(hot_sql.LAST_NUMBER, {"job_id": job}) + 1,
        repeat=repeat,
        attempt=replaced.attempt if replaced is not None else 1,
        replaces=old if replaced is not None else 0,
        lane=connection.value(hot_sql.LANE_OF_JOB, {"job_id": job}),
    )
    causes = [f"{row.job_id}.{row.number} {', '.join(_disturbed(row))}" for row in disturbed.values()]
    record(
        connection,
        job_id=job,
        run_id=new,
        actor="worker",
        verb=Verb.REPLACE,
        target=State.QUEUED,
        reason=f"round {repeat} replaces round {old}, which the machine disturbed: {'; '.join(causes)}",
    )
