"""The conditions of waiting runs: the one place that decides whether a run may start, and whether it never will.

A run may start when it is QUEUED, its lane is not paused, its time has come and every job that it waits for has ended
as required (the view v_dependency). A run never will, and is SKIPPED, when one of them has ended otherwise or when its
deadline has passed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, bindparam, column, exists, func, or_, select, table

from queue_runner.model import DEFAULT_LANE, NOT_FAILED, Condition, Ending, Outcome, State
from queue_runner.store.behind import UNDECIDED, behind
from queue_runner.store.schema import jobs, lanes, runs

v_dependency = table("v_dependency", column("job_id"), column("on_job_id"), column("condition"), column("verdict"))

_NOT_AS_WANTED = {
    Condition.OK: "job {on} did not succeed",
    Condition.FAIL: f"job {{on}} {NOT_FAILED}",
    Condition.ANY: "job {on} will never end",
}


_LANE: ColumnElement[str] = bindparam("this_lane")  # not the name of a column: an UPDATE would set that
_NOW: ColumnElement[float] = bindparam("now")
_PAUSED = exists().where(lanes.c.name == _LANE, lanes.c.paused_at.is_not(None))
_BOUND_TO_PAUSED = (
    exists()
    .where(
        func.instr("," + jobs.c.lane + ",", "," + lanes.c.name + ",") > 0,
        lanes.c.name != DEFAULT_LANE,
        lanes.c.paused_at.is_not(None),
    )
    .correlate(jobs)
)
"""Whether a lane that a job is bound to, or one of several, is paused."""
MAY_START = (
    runs.c.state == State.QUEUED,
    runs.c.lane == _LANE,
    or_(runs.c.not_before_at.is_(None), runs.c.not_before_at <= _NOW),
    or_(jobs.c.deadline_at.is_(None), jobs.c.deadline_at > _NOW),
    ~exists().where(v_dependency.c.job_id == runs.c.job_id, v_dependency.c.verdict != "met"),
    ~_PAUSED,
    ~_BOUND_TO_PAUSED,
)
"""Conditions on runs joined with jobs; :this_lane and :now (Unix seconds) are bound at execution."""

# Executed every few seconds by an idle worker: built once, since building them takes longer than executing.
_BOTH = runs.join(jobs, jobs.c.id == runs.c.job_id)
_WAITS = runs.c.state.in_((State.QUEUED, State.HELD)) & runs.c.token.is_(None)  # what was sent is its node's
_CAN_START = select(runs.c.id).select_from(_BOTH).where(*MAY_START).limit(1)
_QUEUED = (runs.c.state == State.QUEUED, runs.c.lane == _LANE)
_QUEUED_JOBS = select(runs.c.job_id).distinct().where(*_QUEUED, ~_PAUSED)
_PAUSED_JOBS = select(runs.c.job_id).distinct().select_from(_BOTH).where(*_QUEUED, _BOUND_TO_PAUSED)
_HELD_JOBS = select(runs.c.job_id).distinct().where(runs.c.state == State.HELD)
_SOONEST = tuple(
    select(func.min(moment)).select_from(_BOTH).where(_WAITS, runs.c.lane == _LANE, moment > _NOW)
    for moment in (runs.c.not_before_at, jobs.c.deadline_at)
)
_MISSED = (
    select(runs.c.id, v_dependency.c.on_job_id, v_dependency.c.condition)
    .join(v_dependency, v_dependency.c.job_id == runs.c.job_id)
    .where(_WAITS, v_dependency.c.verdict == "impossible")
    .order_by(runs.c.id, v_dependency.c.on_job_id)
)
_LATE = select(runs.c.id).select_from(_BOTH).where(_WAITS, jobs.c.deadline_at <= _NOW)


def something_can_start(connection: Connection, lane: str, now: float) -> bool:
    """Return whether a claim would find a run."""
    return connection.execute(_CAN_START, {"this_lane": lane, "now": now}).first() is not None


def something_waits(connection: Connection, lane: str, now: float, stuck: Collection[int] = ()) -> bool:
    """Return whether a run is QUEUED on the lane that will start some day, or be skipped, without user action: not one
    of a paused lane or of the jobs `stuck`, nor one that waits, even indirectly, for these or for a held run."""
    if not stuck and something_can_start(connection, lane, now):
        return True
    queued_jobs = set(connection.execute(_QUEUED_JOBS, {"this_lane": lane}).scalars())
    if not queued_jobs:
        return False
    paused = {*stuck, *connection.execute(_PAUSED_JOBS, {"this_lane": lane}).scalars()}
    return bool(queued_jobs - paused - behind_held(connection, paused).keys())


def behind_held(connection: Connection, others: Collection[int] = ()) -> dict[int, int]:
    """Return the jobs that wait, even indirectly, for a job with a held run or one of these `others`, and that job."""
    held = {*others, *connection.execute(_HELD_JOBS).scalars()}
    return behind(held, [(job, on) for job, on in connection.exec_driver_sql(UNDECIDED)]) if held else {}


def next_change_at(connection: Connection, lane: str, now: float) -> float | None:
    """Return the next time (Unix seconds) at which waiting alone changes what may start; None where there is none."""
    times = [connection.execute(soonest, {"this_lane": lane, "now": now}).scalar_one() for soonest in _SOONEST]
    return min((at for at in times if at is not None), default=None)


def unsatisfiable(connection: Connection, now: float, of: Sequence[int] | None = None) -> list[tuple[int, Ending]]:
    """Return runs that can never start, by id, and how each ends; only `of` these jobs if given."""
    within = () if of is None else (runs.c.job_id.between(min(of), max(of)),)
    missed = connection.execute(_MISSED.where(*within) if within else _MISSED)
    found: dict[int, Ending] = {}
    for row in missed:
        why = _NOT_AS_WANTED[Condition(row.condition)].format(on=row.on_job_id)
        found.setdefault(row.id, Ending(Outcome.SKIPPED, reason=f"dependency: {why}"))
    for row in connection.execute(_LATE.where(*within) if within else _LATE, {"now": now}):
        found.setdefault(row.id, Ending(Outcome.SKIPPED, reason="deadline: it did not start before its --deadline"))
    return list(found.items())
