"""Rounds that are added to a submission after it was stored: further runs of the same jobs, one of each in a round."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from msgspec import Struct

from queue_runner.model import PREFLIGHT, RunId, State, Verb
from queue_runner.spec import Aim, Until
from queue_runner.store import hot_sql
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import add_run, lane_of, places, record, spec_of

Order = Callable[[int, int, int], Sequence[int]]
"""Return the order of this many rows in the round of this number, for the group's seed: run_order.round_order."""


class RoundJob(Struct, frozen=True):
    """A job of a group, which is a row of its rounds. `repeat` is the newest of its rounds."""

    group_id: int
    id: int
    kind: str
    is_probe: bool
    deleted_at: float | None
    deadline_at: float | None
    repeat: int

    def obstacle(self, now: float) -> tuple[str, str] | None:
        """Return why its group takes no further round, and what to do instead; None where it takes one."""
        if self.kind == "import":
            return "was imported: it never ran here", "submit a job with the same settings"
        if self.is_probe:
            return "belongs to --find-max, which has no rounds", f"mpsq report scaling g{self.group_id}"
        if self.deleted_at is not None:
            return "was deleted, so no complete round can be added", "submit the jobs again"
        if self.deadline_at is not None and self.deadline_at <= now:
            return "has a --deadline that has passed: it would be skipped", f"mpsq rerun g{self.group_id}"
        return None


JOBS = f"""
SELECT j.group_id, j.id, j.kind, json_extract(j.spec_json, '$.find_max') <> '', j.deleted_at, j.deadline_at,
    (SELECT max(repeat) FROM runs WHERE job_id = j.id AND number <> {PREFLIGHT})
FROM jobs j WHERE j.group_id IN ({{groups}}) ORDER BY j.id
"""
"""The fields of RoundJob, for the jobs of `{groups}`."""


def instead_of_rounds(jobs: Iterable[Sequence[Any]]) -> dict[int, str]:
    """Return, by group, the next step where `mpsq rerun --rounds` would be refused. `jobs` are rows of JOBS."""
    steps: dict[int, str] = {}
    for job in (RoundJob(*values) for values in jobs):
        if obstacle := job.obstacle(time.time()):
            steps.setdefault(job.group_id, obstacle[1])
    return steps


def jobs_of(connection: Connection, group_id: int) -> list[RoundJob]:
    """Return the jobs of a group in the order in which its rounds number them."""
    return [RoundJob(*row) for row in connection.rows(JOBS.format(groups="?"), [group_id])]


def renew_environment(connection: Connection, job: int, env_file: str) -> None:
    """Let the further runs of a job take their environment from this file."""
    spec = spec_of(connection, job).changed(env_file=env_file)
    connection.change("UPDATE jobs SET spec_json = ? WHERE id = ?", [spec.to_json(), job])


ENDED = f"""
SELECT g.id, max(r.repeat) FROM groups g CROSS JOIN jobs j ON j.group_id = g.id
CROSS JOIN runs r ON r.job_id = j.id AND r.number <> {PREFLIGHT}
WHERE g.until IS NOT NULL AND g.closed_at IS NULL
GROUP BY g.id HAVING sum(r.state <> 'DONE') = 0
"""
"""Open submissions of which no run waits or runs, each with its newest round: a round follows, or they are closed.
CROSS JOIN keeps the order of the tables: each step of the worker reads the few open groups, not all runs."""


class OpenGroup(Struct, frozen=True):
    """A submission whose rounds have all ended and that is not closed: the newest round, when its first run started,
    and the outcomes of its last attempts. Also whether one of its jobs was deleted, and how many rounds can run at
    once."""

    until: Until
    repeat: int
    first_started_at: float | None
    outcomes: frozenset[str]
    is_whole: bool
    at_once: int = 1


def open_until(connection: Connection, group_id: int, until: Until) -> None:
    """Let rounds follow those of a new group."""
    values = [until.goal, until.budget_s, group_id]
    connection.change("UPDATE groups SET until = ?, budget_s = ? WHERE id = ?", values)


def set_aim(connection: Connection, group_id: int, aim: Aim) -> None:
    """Store what a new group asks about."""
    connection.change("UPDATE groups SET aim = ? WHERE id = ?", [aim.to_json(), group_id])


def copy_aim(connection: Connection, old_group: int, new_group: int) -> None:
    """Let a group ask about the same as another one."""
    connection.change(
        "UPDATE groups SET aim = (SELECT aim FROM groups WHERE id = ?) WHERE id = ?", [old_group, new_group]
    )


def note(connection: Connection, group_id: int, judged: int, more: int | None) -> None:
    """Store how many rounds of an open group count, and about how many more decide it."""
    connection.change("UPDATE groups SET judged_rounds = ?, more_rounds = ? WHERE id = ?", [judged, more, group_id])


def ended(connection: Connection) -> list[tuple[int, int]]:
    """Return the open groups of which no run waits or runs, each with its newest round."""
    return connection.rows(ENDED)


def open_groups(connection: Connection) -> list[int]:
    """Return the open groups: other jobs may wait for them, and no entry of the history tells that one is closed."""
    return connection.column("SELECT id FROM groups WHERE until IS NOT NULL AND closed_at IS NULL ORDER BY id")


def open_jobs(connection: Connection) -> dict[int, list[int]]:
    """Return the jobs of each open group: further rounds may follow."""
    sql = "SELECT j.group_id, j.id FROM groups g JOIN jobs j ON j.group_id = g.id WHERE g.until IS NOT NULL"
    groups: dict[int, list[int]] = {}
    for group_id, job_id in connection.rows(f"{sql} AND g.closed_at IS NULL"):
        groups.setdefault(group_id, []).append(job_id)
    return groups


def open_group(connection: Connection, group_id: int, repeat: int) -> OpenGroup | None:
    """Return an open group of which round `repeat` is the newest and has ended; None if it is no longer so."""
    if (group_id, repeat) not in ended(connection):
        return None
    goal, budget_s, first_at = connection.rows(
        "SELECT until, budget_s, (SELECT min(r.started_at) FROM runs r JOIN jobs j ON j.id = r.job_id"
        " WHERE j.group_id = groups.id) FROM groups WHERE id = ?",
        [group_id],
    )[0]
    outcomes = connection.column(
        "SELECT r.outcome FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id = ? AND r.repeat = ?"
        f" AND r.number <> {PREFLIGHT} AND NOT EXISTS (SELECT 1 FROM runs"
        " WHERE job_id = r.job_id AND repeat = r.repeat AND attempt > r.attempt)",
        [group_id, repeat],
    )
    jobs = jobs_of(connection, group_id)
    is_whole = all(job.deleted_at is None for job in jobs)
    at_once = min(spec_of(connection, job.id).tasks for job in jobs)
    return OpenGroup(Until(goal, budget_s), repeat, first_at, frozenset(outcomes), is_whole, at_once)


def close(connection: Connection, group_id: int, why: str, now: float) -> None:
    """Let no further round follow."""
    connection.change(
        "UPDATE groups SET closed_at = ?, closed_why = ? WHERE id = ? AND until IS NOT NULL AND closed_at IS NULL",
        [now, why, group_id],
    )


def close_cancelled(connection: Connection, run_ids: Collection[int], now: float) -> None:
    """Close the open groups whose runs are all among those that a user cancels."""
    connection.change(
        "UPDATE groups SET closed_at = ?, closed_why = 'cancelled' WHERE until IS NOT NULL AND closed_at IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id = groups.id"
        f" AND r.number <> {PREFLIGHT} AND r.id NOT IN (SELECT value FROM json_each(?)))",
        [now, json.dumps(list(run_ids))],
    )


def add(
    connection: Connection, group_id: int, count: int, order: Order, actor: str, *, hold: bool = False
) -> list[RunId]:
    """Queue or hold this many further rounds of all jobs of a group, behind all waiting runs. Return their runs in
    order.

    They continue the numbers of the rounds, and with them the mirrored pairs and the seeds.
    """
    jobs = jobs_of(connection, group_id)
    seed = connection.value("SELECT seed FROM groups WHERE id = ?", [group_id])
    newest = max(job.repeat for job in jobs)
    specs = {job.id: spec_of(connection, job.id) for job in jobs}
    verb, state = (Verb.SUBMIT_HELD, State.HELD) if hold else (Verb.SUBMIT, State.QUEUED)
    last = places(connection)[1]
    added: list[RunId] = []
    for repeat in range(newest + 1, newest + count + 1):
        for job in (jobs[place].id for place in order(len(jobs), repeat, seed)):
            run = RunId(job, connection.value(hot_sql.LAST_NUMBER, {"job_id": job}) + 1)
            run_id = add_run(
                connection,
                job,
                position=last + len(added) + 1,
                number=run.number,
                repeat=repeat,
                state=state,
                lane=lane_of(specs[job], group_id, repeat),
            )
            reason = f"round {repeat} was added"
            record(connection, job_id=job, run_id=run_id, actor=actor, verb=verb, target=state, reason=reason)
            added.append(run)
    return added
