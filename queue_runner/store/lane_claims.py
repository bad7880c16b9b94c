"""Lanes: why nothing starts on one, which runs wait for one, and to which one a submission is bound.

A lane that was never blocked nor paused has no row. The cells of a submission are compared, so that all of them run on
one lane: the one that its first run is claimed on. The column jobs.lane has it; "machine" is not bound yet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial

from msgspec import Struct
from msgspec.structs import asdict, astuple, replace

from queue_runner.lanes import REMOTE_GLOB, Lane, parts, placed, units, without_lane
from queue_runner.model import DEFAULT_LANE, Obstacle, RunId
from queue_runner.spec import JobSpec
from queue_runner.store import hot_sql
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import Claimed, Following, claimed, here, spec_of
from queue_runner.store.read import LANE, LaneRow
from queue_runner.store.ready import MAY_START


class Blocked(Struct, frozen=True):
    """Why nothing starts on a lane: in words, and where a program has to know it, by its kind. `run_id` is the run for
    which it is kept free, `next_try_at` (Unix seconds) when a target that does not answer is asked again."""

    reason: str
    kind: Obstacle | None = None
    run_id: int | None = None
    next_try_at: float | None = None


def state(connection: Connection, lane: str) -> LaneRow:
    """Return the lane's row; it reads as free if it was never blocked nor paused."""
    row = connection.row(LANE, [lane])
    return LaneRow(*row) if row else LaneRow(lane)


def block(connection: Connection, lane: str, blocked: Blocked | None) -> None:
    """Set the reason why nothing may start on the lane, or (None) clear it."""
    names = ("blocked_reason", "blocked_kind", "blocked_for", "next_try_at")
    values = astuple(blocked) if blocked else (None,) * len(names)
    since = {"blocked_at": time.time() if blocked else None}
    connection.change(hot_sql.PUT_LANE, asdict(state(connection, lane)) | dict(zip(names, values, strict=True)) | since)


def pause(connection: Connection, lane: str, reason: str | None) -> bool:
    """Pause the lane, so that nothing starts on it until it is resumed; None resumes it. Return whether that is new."""
    row = state(connection, lane)
    paused = row.paused_at is not None
    if paused == (reason is not None) and row.paused_reason == reason:
        return False
    since = row.paused_at if paused else time.time()
    row = replace(row, paused_reason=reason, paused_at=since if reason is not None else None)
    connection.change(hot_sql.PUT_LANE, asdict(row))
    return True


def paused(connection: Connection) -> list[str]:
    """Return the lanes that a user has paused, the machine as a whole among them."""
    return connection.column("SELECT name FROM lanes WHERE paused_at IS NOT NULL")


def keep(connection: Connection, names: Collection[str]) -> None:
    """Have a row for each of these lanes of this machine, and for no other that nobody has paused."""
    connection.change(
        "DELETE FROM lanes WHERE name <> ? AND name NOT GLOB ? AND paused_at IS NULL"
        " AND name NOT IN (SELECT value FROM json_each(?))",
        [DEFAULT_LANE, REMOTE_GLOB, json.dumps(list(names))],
    )
    connection.change_all(hot_sql.PUT_LANE, [asdict(state(connection, name)) for name in names])


_STARTABLE = f"SELECT r.id, r.job_id, r.number, j.group_id, j.lane {MAY_START}"
STARTABLE = f"{_STARTABLE} ORDER BY r.job_priority DESC, r.position, r.id"
"""An index has this order, so that no more runs are read than are needed."""
ACTIVE = f"""
SELECT r.id, r.job_id, r.number, j.spec_json, r.token, r.boot_id, r.lane, r.started_at,
    r.cancel_requested_at, r.paused_at
FROM runs r JOIN jobs j ON j.id = r.job_id WHERE r.state = 'RUNNING' AND r.lane NOT GLOB '{REMOTE_GLOB}'
"""


class Waiting(Struct, frozen=True):
    """A run that may start, and the lane that its submission is bound to."""

    run_id: int
    job: int
    number: int
    group: int
    lane: str

    @property
    def name(self) -> RunId:
        return RunId(self.job, self.number)


class Active(Struct, frozen=True):
    """A run that is RUNNING on this machine. `started_at`: its fence was seen, whatever became of its folder since."""

    claimed: Claimed
    started_at: float | None
    cancel_requested: bool
    suspend_requested: bool


def active(connection: Connection) -> list[Active]:
    """Return the runs that are RUNNING on this machine, in the order in which they were submitted."""
    rows = sorted(connection.rows(ACTIVE))  # not in SQL, where it would make SQLite read all runs
    return [
        Active(
            Claimed.of(run_id, RunId(job, number), spec_json, token, boot_id, lane),
            started_at=started_at,
            cancel_requested=cancelled_at is not None,
            suspend_requested=paused_at is not None,
        )
        for run_id, job, number, spec_json, token, boot_id, lane, started_at, cancelled_at, paused_at in rows
    ]


def waiting(connection: Connection, now: float, lane: str = DEFAULT_LANE) -> Iterator[Waiting]:
    """Return the runs of this machine, or of a lane elsewhere, that may start, in the order in which they are claimed.
    No more of them are read than are needed."""
    for row in connection.each(STARTABLE, {"this_lane": lane, "now": now}):
        yield Waiting(*row)


def following(connection: Connection, run_id: int, lane: Lane) -> Following:
    """Return a waiting run as it would run on the lane."""
    job, number = connection.rows(hot_sql.NAME_OF_RUN, {"run_id": run_id})[0]
    return Following.of(run_id, RunId(job, number), placed(spec_of(connection, job), lane))


def claim(connection: Connection, lane: Lane, token: str, boot_id: str, run_id: int, now: float) -> Claimed | None:
    """Claim a run on a lane, and bind its submission to it. None: it may not start any more, its submission is bound to
    another lane, or a run is on the lane, a part or a processor of it, or alone on the machine."""
    values = {"this_lane": DEFAULT_LANE, "now": now, "run_id": run_id}
    row = connection.row(f"{_STARTABLE} AND r.id = :run_id", values)
    busy = {unit for name in here(connection) for unit in units(name)}
    alone = lane.name == DEFAULT_LANE
    if row is None or DEFAULT_LANE in busy or (busy if alone else busy & {*units(lane.name)}):
        return None
    startable = Waiting(*row)
    if not alone:
        if startable.lane not in (DEFAULT_LANE, lane.name) or {*parts(lane.name)} & {*paused(connection)}:
            return None
        if startable.lane == DEFAULT_LANE:
            _place(connection, startable.group, lane.name, partial(placed, lane=lane))
    return claimed(connection, run_id, lane.name, token, boot_id, now)


def began_alone(connection: Connection, group: int) -> list[JobSpec]:
    """Return the jobs of a submission of which a run has started although it is bound to no lane."""
    texts = connection.column(
        "SELECT DISTINCT j.spec_json FROM runs r JOIN jobs j ON j.id = r.job_id"
        " WHERE j.group_id = ? AND j.lane = ? AND r.started_at IS NOT NULL",
        [group, DEFAULT_LANE],
    )
    return [JobSpec.from_json(text) for text in texts]


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
"""Times of one boot come from one clock. Runs that were sent elsewhere (--on) have a lane, and disturb nobody here."""


class Overlapping(Struct, frozen=True):
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
    return [Overlapping(*row) for row in connection.rows(_OVERLAPPING, (since, run_id, until))]


_BEGUN = """
SELECT 1 FROM runs r JOIN jobs j ON j.id = r.job_id
WHERE j.group_id = ? AND (r.started_at IS NOT NULL OR r.state = 'RUNNING' OR j.rerun_of IS NOT NULL) LIMIT 1
"""
"""Whether a run of a submission has started, or the submission repeats another one."""


def unbind(connection: Connection, run_id: int) -> None:
    """Undo what the first claim of a submission has bound, if that claim, of `run_id`, was undone and no other run of
    it has started: any free lane will do again. A rerun, which was submitted with its lane, keeps it."""
    sql = "SELECT group_id, lane FROM jobs WHERE id = (SELECT job_id FROM runs WHERE id = ?)"
    group, lane = connection.rows(sql, [run_id])[0]
    if lane != DEFAULT_LANE and connection.row(_BEGUN, [group]) is None:
        _place(connection, group, DEFAULT_LANE, without_lane)


def _place(connection: Connection, group: int, lane: str, change: Callable[[JobSpec], JobSpec]) -> None:
    """Bind the jobs of a submission to a lane, whose processors are part of their question; or to none again."""
    for job, spec_json in connection.rows("SELECT id, spec_json FROM jobs WHERE group_id = ?", [group]):
        spec = change(JobSpec.from_json(spec_json))
        values = (lane, spec.to_json(), spec.content_hash(), job)
        connection.change("UPDATE jobs SET lane = ?, spec_json = ?, spec_hash = ? WHERE id = ?", values)
