"""The order of waiting runs, and the other editable properties of jobs. Priority and dependencies belong to jobs,
places to runs (docs/decisions/runs.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update

from queue_runner.errors import UsageError
from queue_runner.model import Condition, State
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import add_dependencies, record, spec_of
from queue_runner.store.schema import dependencies, job_tags, jobs, runs

WAITING = (State.QUEUED, State.HELD)


class Where(StrEnum):
    """The target of a move: either end of the queue, or next to other runs."""

    TOP = "to the top"
    BOTTOM = "to the bottom"
    BEFORE = "before"


def waiting(connection: Connection) -> list[tuple[int, int, int]]:
    """Return (run id, job id, priority) of all waiting runs, in their order."""
    rows = connection.execute(
        select(runs.c.id, runs.c.job_id, runs.c.job_priority)
        .where(runs.c.state.in_(WAITING))
        .order_by(runs.c.job_priority.desc(), runs.c.position, runs.c.id)
    )
    return [(row.id, row.job_id, row.job_priority) for row in rows]


def move(connection: Connection, chosen: Collection[int], where: Where, others: Collection[int], actor: str) -> None:
    """Move waiting runs, in their current order, next to `others` (run ids) or to an end of the queue.

    A job takes over the priority of its new place where its own would keep it elsewhere; places are then renumbered.
    Runs that do not wait are unaffected.
    """
    queue = waiting(connection)
    moved = [entry for entry in queue if entry[0] in chosen]
    rest = [entry for entry in queue if entry[0] not in chosen]
    if not moved:
        return
    beside = [place for place, entry in enumerate(rest) if entry[0] in others]
    at = {
        Where.TOP: 0,
        Where.BOTTOM: len(rest),
        Where.BEFORE: min(beside, default=0),
    }[where]
    before = rest[at - 1][2] if at > 0 else None
    after = rest[at][2] if at < len(rest) else None
    for job_id, priority in {(entry[1], entry[2]) for entry in moved}:
        fits = (before is None or priority <= before) and (after is None or priority >= after)
        new = priority if fits else after if where in (Where.TOP, Where.BEFORE) else before
        if new is not None and new != priority:
            connection.execute(update(jobs).where(jobs.c.id == job_id).values(priority=new))
        record(connection, job_id=job_id, actor=actor, verb="move", reason=str(where))
    places = [
        {"run": entry[0], "place": place} for place, entry in enumerate([*rest[:at], *moved, *rest[at:]], start=1)
    ]
    connection.execute(update(runs).where(runs.c.id == bindparam("run")).values(position=bindparam("place")), places)


def edit(connection: Connection, job_id: int, actor: str, reason: str, **columns: Any) -> None:
    """Change columns of a job, if any: priority, note, deadline_at, retries, name. `reason` goes into its history."""
    if "name" in columns:  # its specification has it, too; the hash does not
        columns["spec_json"] = func.json_set(jobs.c.spec_json, "$.name", columns["name"])
    if columns:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(**columns))
    record(connection, job_id=job_id, actor=actor, verb="edit", reason=reason)


def set_time(connection: Connection, job_id: int, not_before_at: float | None) -> None:
    """Set when the waiting runs of a job may start; None means at once."""
    connection.execute(
        update(runs).where(runs.c.job_id == job_id, runs.c.state.in_(WAITING)).values(not_before_at=not_before_at)
    )


def set_timeout(connection: Connection, job_id: int, timeout_s: float | None) -> None:
    """Set the time limit of each run of a job; None means no limit. It is part of the job's hash."""
    spec = spec_of(connection, job_id).changed(timeout_s=timeout_s)
    values = {"spec_json": spec.to_json(), "spec_hash": spec.content_hash()}
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))


def is_too_late(connection: Connection, job_id: int) -> bool:
    """Return whether the deadline of a job comes before a waiting run of it may start."""
    late = (
        select(runs.c.id)
        .join(jobs, jobs.c.id == runs.c.job_id)
        .where(runs.c.job_id == job_id, runs.c.state.in_(WAITING), runs.c.not_before_at >= jobs.c.deadline_at)
    )
    return connection.execute(late.limit(1)).first() is not None


def set_tags(connection: Connection, job_id: int, add: Iterable[str], remove: Iterable[str]) -> None:
    """Add tags to a job, and remove others."""
    connection.execute(delete(job_tags).where(job_tags.c.job_id == job_id, job_tags.c.tag.in_([*add, *remove])))
    if rows := [{"job_id": job_id, "tag": tag} for tag in sorted({*add})]:
        connection.execute(insert(job_tags), rows)


def set_dependencies(connection: Connection, job_id: int, after: Sequence[tuple[int, Condition]]) -> None:
    """Replace the dependencies of a job. Raises: UsageError when that would create a cycle."""
    connection.execute(delete(dependencies).where(dependencies.c.job_id == job_id))
    add_dependencies(connection, [(job_id, on, condition) for on, condition in after if on != job_id])
    graph = {job_id: [on for on, _ in after if on == job_id]}
    for job, on in connection.rows("SELECT job_id, on_job_id FROM dependencies"):
        graph.setdefault(job, []).append(on)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        chain = " waits for ".join(map(str, reversed(error.args[1])))
        hint = "remove one of these dependencies"
        raise UsageError(f"the jobs would wait for each other: {chain}", hint) from None
