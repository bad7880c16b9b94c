"""Claims where a machine has several lanes: what waits, in its order, and which lane a submission is bound to.

The cells of a submission are compared, so that all of them run on one lane: the one that its first run is claimed on.
The column jobs.lane has it; "machine" is not bound yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, or_, select, update

from queue_runner.lanes import Lane, parts, placed, units, without_lane
from queue_runner.model import DEFAULT_LANE, RunId, State
from queue_runner.spec import JobSpec
from queue_runner.store import lanes as lane_rows
from queue_runner.store.jobs import Claimed, Following, claimed, here
from queue_runner.store.ready import MAY_START
from queue_runner.store.schema import jobs, runs


@dataclass(frozen=True)
class Waiting:
    """A run that may start, and the lane that its submission is bound to."""

    run_id: int
    job: int
    group: int
    lane: str


_IN_ORDER = (
    select(runs.c.id, runs.c.job_id, jobs.c.group_id, jobs.c.lane)
    .join(jobs, jobs.c.id == runs.c.job_id)
    .where(*MAY_START)
    .order_by(jobs.c.priority.desc(), runs.c.position, runs.c.id)
)


def waiting(connection: Connection, now: float) -> Iterator[Waiting]:
    """Return the runs of this machine that may start, in the order in which they are claimed."""
    for row in connection.execute(_IN_ORDER, {"this_lane": DEFAULT_LANE, "now": now}):
        yield Waiting(*row)


def spec_of(connection: Connection, job: int) -> JobSpec:
    """Return the specification of a job."""
    return JobSpec.from_json(connection.execute(select(jobs.c.spec_json).where(jobs.c.id == job)).scalar_one())


def following(connection: Connection, run_id: int, lane: Lane) -> Following:
    """Return a waiting run as it would run on the lane."""
    row = connection.execute(select(runs.c.job_id, runs.c.number).where(runs.c.id == run_id)).one()
    return Following.of(run_id, RunId(row.job_id, row.number), placed(spec_of(connection, row.job_id), lane))


def claim(connection: Connection, lane: Lane, token: str, boot_id: str, only: int) -> Claimed | None:
    """Claim the run `only` on a lane, and bind its submission to it. None: it may not start any more, its submission is
    bound to another lane, or a run is on the lane, a part or a processor of it, or alone on the machine."""
    row = connection.execute(
        _IN_ORDER.where(runs.c.id == only), {"this_lane": DEFAULT_LANE, "now": time.time()}
    ).one_or_none()
    busy = {unit for name in here(connection) for unit in units(name)}
    alone = lane.name == DEFAULT_LANE
    if row is None or DEFAULT_LANE in busy or (busy if alone else busy & {*units(lane.name)}):
        return None
    if not alone:
        if row.lane not in (DEFAULT_LANE, lane.name) or any(is_paused(connection, part) for part in parts(lane.name)):
            return None
        if row.lane == DEFAULT_LANE:
            _bind(connection, row.group_id, lane)
    return claimed(connection, only, lane.name, token, boot_id)


def is_paused(connection: Connection, lane: str) -> bool:
    """Return whether a user has paused the lane."""
    row = lane_rows.state(connection, lane)
    return row is not None and row["paused_at"] is not None


def began_alone(connection: Connection, group: int) -> list[JobSpec]:
    """Return the jobs of a submission of which a run has started although it is bound to no lane."""
    of_group = select(jobs.c.spec_json).distinct().join(runs, runs.c.job_id == jobs.c.id)
    begun = of_group.where(jobs.c.group_id == group, jobs.c.lane == DEFAULT_LANE, runs.c.started_at.is_not(None))
    return [JobSpec.from_json(text) for text in connection.execute(begun).scalars()]


_OVERLAPPING = """
SELECT other.job_id || '.' || other.number AS run, other.lane, other.state, other.claimed_at, other.started_at,
    other.ended_at
FROM (SELECT id FROM runs WHERE state = 'RUNNING' UNION ALL SELECT id FROM runs WHERE ended_at > ?) recent
JOIN runs this ON this.id = ?
JOIN runs other ON other.id = recent.id AND other.lane <> this.lane AND other.boot_id = this.boot_id
JOIN jobs j ON j.id = other.job_id
WHERE other.claimed_at < ? AND json_extract(j.spec_json, '$.on.to') IS NULL
ORDER BY other.claimed_at, other.id
"""
"""Times of one boot are of one clock. Runs that were sent elsewhere (--on) have a lane, and disturb nobody here."""


@dataclass(frozen=True)
class Overlapping:
    """A run of another lane that was claimed before a moment, and had not ended at an earlier one.

    `started_at` is None where no worker has seen its fence; `ended_at` is None while it is RUNNING.
    """

    run: str
    lane: str
    state: str
    claimed_at: float
    started_at: float | None
    ended_at: float | None


def overlapping(connection: Connection, run_id: int, since: float, until: float) -> list[Overlapping]:
    """Return the runs of other lanes of this machine that were claimed before `until` and had not ended at `since`
    (Unix seconds)."""
    return [Overlapping(*row) for row in connection.exec_driver_sql(_OVERLAPPING, (since, run_id, until))]


def unbind(connection: Connection, run_id: int) -> None:
    """Undo what the first claim of a submission has bound, if that claim, of `run_id`, was undone and no other run of
    it has started: any free lane will do again. A rerun, which was submitted with its lane, keeps it."""
    of_run = select(jobs.c.group_id, jobs.c.lane).join(runs, runs.c.job_id == jobs.c.id).where(runs.c.id == run_id)
    group, lane = connection.execute(of_run).one()
    if lane == DEFAULT_LANE:
        return
    begun = or_(runs.c.started_at.is_not(None), runs.c.state == State.RUNNING, jobs.c.rerun_of.is_not(None))
    in_group = select(runs.c.id).join(jobs, jobs.c.id == runs.c.job_id).where(jobs.c.group_id == group)
    if connection.execute(in_group.where(begun).limit(1)).first() is None:
        _place(connection, group, DEFAULT_LANE, without_lane)


def _bind(connection: Connection, group: int, lane: Lane) -> None:
    """Bind a submission to the lane, whose processors become part of its question."""
    _place(connection, group, lane.name, partial(placed, lane=lane))


def _place(connection: Connection, group: int, lane: str, change: Callable[[JobSpec], JobSpec]) -> None:
    for id_, spec in _specs(connection, group):
        new = change(spec)
        values = {"spec_json": new.to_json(), "spec_hash": new.content_hash()} if new != spec else {}
        connection.execute(update(jobs).where(jobs.c.id == id_).values(lane=lane, **values))


def _specs(connection: Connection, group: int) -> list[tuple[int, JobSpec]]:
    found = connection.execute(select(jobs.c.id, jobs.c.spec_json).where(jobs.c.group_id == group))
    return [(id_, JobSpec.from_json(text)) for id_, text in found.all()]
