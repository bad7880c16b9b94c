"""What a failed run means for the rest of its group: one mistake must not use up a night."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlalchemy import Connection, Select, func, select

from queue_runner.model import Ending, Outcome, State, Verb
from queue_runner.store import jobs
from queue_runner.store.jobs import Claimed
from queue_runner.store.schema import exits, job_events, runs
from queue_runner.store.schema import jobs as job_table

AT_ONCE_S = 1.0
"""A run that fails within this time of its start has not begun its work."""
_FAILED = (Outcome.FAILED, Outcome.KILLED, Outcome.SPAWN_FAILED, Outcome.CODE_CHANGED)
_OF_GROUP = runs.join(job_table, job_table.c.id == runs.c.job_id)


def guard(connection: Connection, run: Claimed, ending: Ending, limit: int, now: float) -> None:
    """Skip or hold the waiting runs of a run's group that would fail as it did.

    Runs on a device that was found missing are skipped. After `limit` runs in a row that failed at once with the same
    cause, the group is held until the user releases it; 0 is never.
    """
    group = connection.execute(select(job_table.c.group_id).where(job_table.c.id == run.id.job)).scalar_one()
    if ending.outcome is Outcome.DEVICE_UNAVAILABLE and run.spec.device is not None:
        _skip_device(connection, run, group, now)
    elif limit and ending.outcome in _FAILED and (cause := _cause_in_row(connection, group, limit)):
        reason = f"{limit} runs in a row failed within a second of their start: {cause}"
        for run_id in connection.execute(_ids(group, (State.QUEUED,))).scalars().all():
            jobs.move(connection, run_id, Verb.HOLD, actor="worker", reason=reason, blocked_reason=reason)


def _skip_device(connection: Connection, run: Claimed, group: int, now: float) -> None:
    alike = [
        func.json_extract(job_table.c.spec_json, f"$.{key}").is_not_distinct_from(getattr(run.spec, key))
        for key in ("device", "python", "env_name")
    ]
    waiting = (State.QUEUED, State.HELD)
    ending = Ending(Outcome.SKIPPED, reason=f"device: {run.spec.device} was not available to run {run.id}")
    for run_id in connection.execute(_ids(group, waiting).where(*alike)).scalars().all():
        jobs.move(connection, run_id, Verb.SKIP, actor="worker", ending=ending, ended_at=now)


def _ids(group: int, states: Sequence[State]) -> Select[int]:
    return select(runs.c.id).select_from(_OF_GROUP).where(job_table.c.group_id == group, runs.c.state.in_(states))


def _cause_in_row(connection: Connection, group: int, limit: int) -> str | None:
    """Return the cause if the last `limit` runs of the group failed at once for the same one; earlier runs than the
    last hold by mpsq do not count."""
    in_group = select(job_table.c.id).where(job_table.c.group_id == group)
    held_at = connection.execute(
        select(func.max(job_events.c.at)).where(
            job_events.c.job_id.in_(in_group), job_events.c.verb == Verb.HOLD, job_events.c.actor == "worker"
        )
    ).scalar()
    rows = connection.execute(
        select(runs.c.outcome, runs.c.exit_code, runs.c.signal, runs.c.reason, exits.c.real_s)
        .select_from(runs.outerjoin(exits, exits.c.run_id == runs.c.id))
        .where(
            runs.c.job_id.in_(in_group),
            runs.c.state == State.DONE,
            runs.c.outcome.not_in((Outcome.SKIPPED, Outcome.CANCELLED)),
            runs.c.ended_at > (held_at or 0.0),
        )
        .order_by(runs.c.ended_at.desc(), runs.c.id.desc())
        .limit(limit)
    ).all()
    causes = {(row.outcome, row.exit_code, row.signal, re.sub(r"\d+", "#", row.reason or "")) for row in rows}
    at_once = all(row.outcome in _FAILED and (row.real_s or 0.0) <= AT_ONCE_S for row in rows)
    if len(rows) < limit or len(causes) > 1 or not at_once:
        return None
    newest = rows[0]
    return str(Ending(Outcome(newest.outcome), newest.exit_code, newest.signal)) + (
        f": {newest.reason}" if newest.reason else ""
    )
