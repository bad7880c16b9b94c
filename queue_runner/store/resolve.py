"""Lookup of what a user named, in the transaction that acts on it. `run_view.select` does the same for readers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec import Struct

from queue_runner.errors import UsageError
from queue_runner.model import Condition, Dependency, Selector
from queue_runner.spec import JobSpec
from queue_runner.store.engine import Connection
from queue_runner.store.read import JOB_EXISTS, RERUN_JOBS, condition_of, names_nothing


class NamedRun(Struct, frozen=True):
    """A run that a user named, or another run of its job. `run` is 12.3. `kind` and the rest describe the job, but for
    `is_sent`: whether another machine has it."""

    id: int
    run: str
    job_id: int
    number: int
    repeat: int
    attempt: int
    state: str
    outcome: str | None
    kind: str
    deleted_at: float | None
    deadline_at: float | None
    retries: int
    find_max: str
    is_sent: bool


def dependencies(connection: Connection, named: Iterable[Dependency]) -> tuple[tuple[int, Condition], ...]:
    """Return the ids of the jobs to wait for, each once, and the condition on each.

    Raises: UsageError for a name of nothing, and for a job with two different conditions.
    """
    conditions: dict[int, Condition] = {}
    for dependency in named:
        ids = job_ids(connection, dependency.selector)
        replaced = connection.column(RERUN_JOBS, [json.dumps(ids)]) if dependency.selector.name else ()
        for job_id in (id for id in ids if id not in replaced):
            if conditions.setdefault(job_id, dependency.condition) is not dependency.condition:
                raise UsageError(
                    f"job {job_id} is given with two conditions: {conditions[job_id]} and {dependency.condition}",
                    "use one of them",
                )
    return tuple(sorted(conditions.items()))


def runs_of(connection: Connection, selectors: Sequence[Selector]) -> list[NamedRun]:
    """Return the runs that selectors name, each once, by job and number. Raises: UsageError if one names nothing."""
    runs = {run.id: run for selector in selectors for run in _named(connection, selector)}
    return sorted(runs.values(), key=lambda run: (run.job_id, run.number))


def job_ids(connection: Connection, selector: Selector) -> list[int]:
    """Return the ids of the jobs that a selector names. Raises: UsageError when it names nothing."""
    return sorted({run.job_id for run in _named(connection, selector)})


def siblings(connection: Connection, runs: Sequence[NamedRun]) -> list[NamedRun]:
    """Return all runs of the jobs of these runs."""
    ids = sorted({run.job_id for run in runs})
    return _select(connection, "job_id IN (SELECT value FROM json_each(?))", [json.dumps(ids)])


def specs(connection: Connection, job_ids: Collection[int]) -> dict[int, JobSpec]:
    """Return the specs of jobs, by id."""
    sql = "SELECT id, spec_json FROM jobs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
    rows = connection.rows(sql, [json.dumps(sorted(job_ids))])
    return {job: JobSpec.from_json(spec_json) for job, spec_json in rows}


def _named(connection: Connection, selector: Selector) -> list[NamedRun]:
    try:
        runs = _select(connection, *condition_of(selector))
    except OverflowError:
        runs = []
    if not runs:
        exists = selector.number is not None and connection.value(JOB_EXISTS, [selector.job])
        raise names_nothing(selector, job_exists=bool(exists))
    return runs


def _select(connection: Connection, condition: str, values: Sequence[Any]) -> list[NamedRun]:
    return [NamedRun(*row) for row in connection.rows(_RUNS.format(condition), values)]


_RUNS = """
SELECT r.id, r.job_id || '.' || r.number, r.job_id, r.number, r.repeat, r.attempt, r.state, r.outcome,
    j.kind, j.deleted_at, j.deadline_at, j.retries,
    COALESCE(json_extract(j.spec_json, '$.find_max'), ''), r.token IS NOT NULL
FROM runs r JOIN jobs j ON j.id = r.job_id WHERE {} ORDER BY r.job_id, r.number
"""
