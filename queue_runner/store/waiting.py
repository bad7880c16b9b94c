"""What a waiting run waits for: the one place that decides whether a run may start, and whether it never will.

A run may start when it is QUEUED, its lane is not paused, its time has come and every job that it waits for has ended
as it wants (the view v_dependency). It never will, and is SKIPPED, when one of them has ended otherwise or when its
deadline has passed.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, and_, column, exists, func, or_, select, table

from queue_runner.model import Condition, Ending, Outcome, State
from queue_runner.store.schema import jobs, lanes, runs

v_dependency = table("v_dependency", column("job_id"), column("on_job_id"), column("condition"), column("verdict"))

_NOT_AS_WANTED = {
    Condition.OK: "job {on} did not succeed",
    Condition.FAIL: "job {on} succeeded, and this one was for its failure",
    Condition.ANY: "job {on} will not end",
}


def may_start(lane: str, now: float) -> Sequence[ColumnElement[bool]]:
    """Conditions on runs joined with jobs."""
    return (
        or_(runs.c.not_before_at.is_(None), runs.c.not_before_at <= now),
        or_(jobs.c.deadline_at.is_(None), jobs.c.deadline_at > now),
        ~exists().where(v_dependency.c.job_id == runs.c.job_id, v_dependency.c.verdict != "met"),
        ~exists().where(lanes.c.name == lane, lanes.c.paused_at.is_not(None)),
    )


def something_can_start(connection: Connection, lane: str, now: float) -> bool:
    """Whether a claim would find a run."""
    return _any(connection, lane, *may_start(lane, now))


def something_waits(connection: Connection, lane: str, now: float) -> bool:
    """Whether a run is QUEUED on the lane that will start some day, or be skipped, without a hand: not one of a paused
    lane, nor one that waits for what is held, however indirectly."""
    if something_can_start(connection, lane, now):
        return True
    paused = exists().where(lanes.c.name == lane, lanes.c.paused_at.is_not(None))
    queued = select(runs.c.job_id).distinct().where(runs.c.state == State.QUEUED, runs.c.lane == lane, ~paused)
    queued_jobs = set(connection.execute(queued).scalars())
    if not queued_jobs:
        return False
    stuck = set(connection.execute(select(runs.c.job_id).distinct().where(runs.c.state == State.HELD)).scalars())
    undecided = connection.execute(
        select(v_dependency.c.job_id, v_dependency.c.on_job_id).where(v_dependency.c.verdict == "undecided")
    ).all()
    while more := {row.job_id for row in undecided if row.on_job_id in stuck} - stuck:
        stuck |= more
    return bool(queued_jobs - stuck)


def _any(connection: Connection, lane: str, *conditions: ColumnElement[bool]) -> bool:
    waiting = (
        select(runs.c.id)
        .join(jobs, jobs.c.id == runs.c.job_id)
        .where(runs.c.state == State.QUEUED, runs.c.lane == lane, *conditions)
    )
    return connection.execute(waiting.limit(1)).first() is not None


def next_change_at(connection: Connection, lane: str, now: float) -> float | None:
    """The next time (Unix seconds) at which waiting alone changes what may start; None where there is none."""
    times = []
    for moment in (runs.c.not_before_at, jobs.c.deadline_at):
        soonest = (
            select(func.min(moment))
            .select_from(runs.join(jobs, jobs.c.id == runs.c.job_id))
            .where(runs.c.state.in_((State.QUEUED, State.HELD)), runs.c.lane == lane, moment > now)
        )
        times.append(connection.execute(soonest).scalar_one())
    return min((at for at in times if at is not None), default=None)


def hopeless(connection: Connection, now: float, of: Sequence[int] | None = None) -> list[tuple[int, Ending]]:
    """Runs that wait for what cannot happen any more, by id, and how each ends; only `of` these jobs if given."""
    waiting: ColumnElement[bool] = runs.c.state.in_((State.QUEUED, State.HELD))
    if of is not None:
        waiting = and_(waiting, runs.c.job_id.between(min(of), max(of)))
    missed = connection.execute(
        select(runs.c.id, v_dependency.c.on_job_id, v_dependency.c.condition)
        .join(v_dependency, v_dependency.c.job_id == runs.c.job_id)
        .where(waiting, v_dependency.c.verdict == "impossible")
        .order_by(runs.c.id, v_dependency.c.on_job_id)
    )
    found: dict[int, Ending] = {}
    for row in missed:
        why = _NOT_AS_WANTED[Condition(row.condition)].format(on=row.on_job_id)
        found.setdefault(row.id, Ending(Outcome.SKIPPED, reason=f"dependency: {why}"))
    late = select(runs.c.id).join(jobs, jobs.c.id == runs.c.job_id).where(waiting, jobs.c.deadline_at <= now)
    for row in connection.execute(late):
        found.setdefault(row.id, Ending(Outcome.SKIPPED, reason="deadline: it could not start before its --deadline"))
    return list(found.items())
