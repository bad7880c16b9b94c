"""Lookup of what a user named, in the transaction that acts on it. `read.select` does the same for readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Text, func, select

from queue_runner.errors import UsageError
from queue_runner.model import Condition, Dependency, Selector
from queue_runner.store.schema import groups, job_tags, jobs, runs

Row = dict[str, Any]


class Memory:
    """A cache for the dependencies of many jobs: each set of names is looked up once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[Dependency, ...], tuple[tuple[int, Condition], ...]] = {}

    def dependencies(self, wanted: Iterable[Dependency]) -> tuple[tuple[int, Condition], ...]:
        """Return the same as the function of that name, from the cache."""
        names = tuple(wanted)
        if names not in self._known:
            self._known[names] = tuple(dependencies(self._connection, names))
        return self._known[names]


def dependencies(connection: Connection, wanted: Iterable[Dependency]) -> list[tuple[int, Condition]]:
    """Return the ids of the jobs to wait for, each once, and the condition on each.

    Raises: UsageError for a name of nothing, and for a job with two different conditions.
    """
    found: dict[int, Condition] = {}
    for one in wanted:
        for job_id in job_ids(connection, one.selector):
            if found.setdefault(job_id, one.condition) is not one.condition:
                raise UsageError(
                    f"job {job_id} is given with two conditions: {found[job_id]} and {one.condition}", "use one of them"
                )
    return sorted(found.items())


def runs_of(connection: Connection, selectors: Sequence[Selector]) -> list[Row]:
    """Return the runs that selectors name, each once, by job and number: id, run (12.3), job_id, number, repeat,
    attempt, state, outcome; kind, deleted_at and find_max of the job. Raises: UsageError if one names nothing."""
    found: dict[int, Row] = {}
    for selector in selectors:
        job_ids(connection, selector)
        chosen = _RUNS.where(runs.c.job_id.in_(_jobs(selector).order_by(None)))
        if selector.number is not None:
            chosen = chosen.where(runs.c.number == selector.number)
        rows = [dict(row) for row in connection.execute(chosen).mappings()]
        if not rows:
            raise UsageError(f"there is no run {selector.text}", f"mpsq show {selector.job} lists its runs")
        found.update((row["id"], row) for row in rows)
    return sorted(found.values(), key=lambda row: (row["job_id"], row["number"]))


def siblings(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return all runs of the jobs of these runs."""
    ids = sorted({row["job_id"] for row in rows})
    return [
        dict(row)
        for start in range(0, len(ids), _BATCH)
        for row in connection.execute(_RUNS.where(runs.c.job_id.in_(ids[start : start + _BATCH]))).mappings()
    ]


_BATCH = 10_000  # SQLite takes 32,766 values in one statement
_RUNS = (
    select(
        runs.c.id,
        (runs.c.job_id.cast(Text) + "." + runs.c.number.cast(Text)).label("run"),
        runs.c.job_id,
        runs.c.number,
        runs.c.repeat,
        runs.c.attempt,
        runs.c.state,
        runs.c.outcome,
        jobs.c.kind,
        jobs.c.deleted_at,
        func.coalesce(func.json_extract(jobs.c.spec_json, "$.find_max"), "").label("find_max"),
    )
    .join(jobs, jobs.c.id == runs.c.job_id)
    .order_by(runs.c.job_id, runs.c.number)
)


def job_ids(connection: Connection, selector: Selector) -> list[int]:
    """Return the ids of the jobs that a selector names. Raises: UsageError when it names nothing."""
    ids = [int(row.id) for row in connection.execute(_jobs(selector))]
    if not ids:
        raise UsageError(f"there is no {_NOUN[_kind(selector)]} {selector.text}", "mpsq list --all shows every job")
    return ids


_NOUN = {"group": "group", "tag": "job with the tag", "job": "job", "last": "group"}


def _kind(selector: Selector) -> str:
    return "last" if selector.last else "group" if selector.group else "tag" if selector.tag else "job"


def _jobs(selector: Selector) -> Select[tuple[int]]:
    query = select(jobs.c.id).order_by(jobs.c.id)
    if selector.last:
        query = query.where(jobs.c.group_id == select(func.max(groups.c.id)).scalar_subquery())
    elif selector.group is not None:
        query = query.where(jobs.c.group_id == selector.group)
    elif selector.tag is not None:
        query = query.where(jobs.c.id.in_(select(job_tags.c.job_id).where(job_tags.c.tag == selector.tag)))
    else:
        query = query.where(jobs.c.id == selector.job)
    return query
