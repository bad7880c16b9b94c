"""Rounds that are added to a submission after it was stored: further runs of the same jobs, one of each in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from queue_runner.model import PREFLIGHT, RunId, State, Verb
from queue_runner.store import hot_sql
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import add_run, places, record, spec_of

Order = Callable[[int, int, int], Sequence[int]]
"""Return the order of this many rows in the round of this number, for the group's seed: run_order.round_order."""


@dataclass(frozen=True, slots=True)
class RoundJob:
    """A job of a group, which is a row of its rounds. `repeat` is the newest of its rounds."""

    id: int
    kind: str
    is_probe: bool
    deleted_at: float | None
    deadline_at: float | None
    repeat: int


_JOBS = f"""
SELECT j.id, j.kind, json_extract(j.spec_json, '$.find_max') <> '', j.deleted_at, j.deadline_at, max(r.repeat)
FROM jobs j JOIN runs r ON r.job_id = j.id AND r.number <> {PREFLIGHT} WHERE j.group_id = ? GROUP BY j.id ORDER BY j.id
"""


def jobs_of(connection: Connection, group_id: int) -> list[RoundJob]:
    """Return the jobs of a group in the order in which its rounds number them."""
    return [RoundJob(*row) for row in connection.rows(_JOBS, [group_id])]


def renew_environment(connection: Connection, job: int, env_file: str) -> None:
    """Let the further runs of a job take their environment from this file."""
    spec = spec_of(connection, job).changed(env_file=env_file)
    connection.change("UPDATE jobs SET spec_json = ? WHERE id = ?", [spec.to_json(), job])


def add(connection: Connection, group_id: int, count: int, order: Order, actor: str) -> list[RunId]:
    """Queue this many further rounds of all jobs of a group, behind all waiting runs. Return their runs in order.

    They continue the numbers of the rounds, and with them the mirrored pairs and the seeds.
    """
    jobs = jobs_of(connection, group_id)
    seed = connection.value("SELECT seed FROM groups WHERE id = ?", [group_id])
    newest = max(job.repeat for job in jobs)
    added = []
    for repeat in range(newest + 1, newest + count + 1):
        for job in (jobs[place].id for place in order(len(jobs), repeat, seed)):
            values = {"job_id": job}
            run = RunId(job, connection.value(hot_sql.LAST_NUMBER, values) + 1)
            run_id = add_run(
                connection,
                job,
                position=places(connection)[1] + 1,
                number=run.number,
                repeat=repeat,
                lane=connection.value(hot_sql.LANE_OF_JOB, values),
            )
            reason = f"round {repeat} was added"
            record(
                connection, job_id=job, run_id=run_id, actor=actor, verb=Verb.SUBMIT, target=State.QUEUED, reason=reason
            )
            added.append(run)
    return added
