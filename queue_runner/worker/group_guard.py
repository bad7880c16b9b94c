"""Pause a group whose runs fail at once, and skip its runs on a device that is not there: one mistake must not use up
a night."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlalchemy import ColumnElement, Row, and_, exists, func, or_, select

from queue_runner.ingest.outcome import SILENT
from queue_runner.model import Ending, Outcome, State, Verb
from queue_runner.spec import JobSpec
from queue_runner.store import jobs
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import Claimed
from queue_runner.store.schema import exits, job_events, runs
from queue_runner.store.schema import jobs as job_table

AT_ONCE_S = 1.0
"""A run that fails within this time of its start has not begun its work."""
_FAILED = (Outcome.FAILED, Outcome.KILLED, Outcome.SPAWN_FAILED, Outcome.CODE_CHANGED)
_NAMED = 5
"""Runs that a reason names."""

_WHERE = ("$.python", "$.env_name", "$.env", "$.mps", "$.cwd", "$.device", "$.argv")
"""The fields of a specification that decide, beside the program, whether a run finds its device."""
_PROGRAM = 3
"""How many words of a command name its program: `python -u train.py`, `sh -c 'exit 2'`."""

_own = job_table.alias()


def guard(connection: Connection, run: Claimed, ending: Ending, limit: int, now: float) -> None:
    """Skip or hold the waiting runs of a run's group that would fail as it did.

    A device that was found missing is not tried again by runs of the same program in the same environment. After
    `limit` first attempts in a row failed at once with the same cause, their jobs are held until the user releases
    them. So are jobs of the same program if none of these has succeeded. A limit of 0 holds nothing.
    """
    if ending.outcome is Outcome.DEVICE_UNAVAILABLE and run.spec.device is not None:
        _skip_device(connection, run, now)
    elif limit and ending.outcome in _FAILED:
        same_question = job_table.c.spec_hash == _own.c.spec_hash
        same_program = _same(*_program(run.spec))
        for chosen in (same_question,) if ending.reason == SILENT else (same_program, same_question):
            if _hold(connection, run, chosen, limit):
                return


def _skip_device(connection: Connection, run: Claimed, now: float) -> None:
    waiting = or_(runs.c.state == State.QUEUED, and_(runs.c.state == State.HELD, runs.c.blocked_reason.is_not(None)))
    ending = Ending(Outcome.SKIPPED, reason=f"device: run {run.id} could not use {run.spec.device}")
    chosen = and_(_in_group(run, _same(*_WHERE)), waiting)
    jobs.move_all(connection, _ids(connection, chosen), Verb.SKIP, actor="worker", ending=ending, ended_at=now)


def _program(spec: JobSpec) -> Iterator[str]:
    """Return the paths of the words that name the program, but for those with a swept value: --lr={lr}."""
    values = [str(value) for value in spec.params.values() if str(value)]
    for at in range(_PROGRAM):
        if at >= len(spec.argv) or not any(value in spec.argv[at] for value in values):
            yield f"$.argv[{at}]"


def _same(*paths: str) -> ColumnElement[bool]:
    """Return whether a job has the same program as the run's own, and the same values at `paths` of its spec."""
    columns = (job_table.c[name].is_not_distinct_from(_own.c[name]) for name in ("kind", "workload", "framework"))
    values = (
        func.json_extract(job_table.c.spec_json, path).is_not_distinct_from(func.json_extract(_own.c.spec_json, path))
        for path in ("$.script", *paths)
    )
    return and_(*columns, *values)


def _in_group(run: Claimed, chosen: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return whether a run's job is in the group of `run`, and `chosen`.

    It reads whole specifications. As a correlated subquery, SQLite evaluates it last, for the few runs that fit
    otherwise.
    """
    group = select(_own.c.group_id).where(_own.c.id == run.id.job).scalar_subquery()
    fits = exists().where(job_table.c.id == runs.c.job_id, _own.c.id == run.id.job, chosen)
    return and_(runs.c.job_id.in_(select(job_table.c.id).where(job_table.c.group_id == group)), fits)


def _hold(connection: Connection, run: Claimed, chosen: ColumnElement[bool], limit: int) -> bool:
    """Hold the runs of the chosen jobs if the last `limit` of them failed at once with one cause; return whether so.

    Retries neither count nor are held, nor is a job with --backoff: they are agreed to fail.
    """
    first = and_(_in_group(run, and_(chosen, job_table.c.backoff_s == 0)), runs.c.attempt == 1)
    last = _last(connection, first, limit)
    if len(last) < limit or last[0].id != run.run_id or not _is_one_cause(last):
        return False
    if _held_at(connection, first) >= last[-1].ended_at:  # those before the last hold by mpsq do not count
        return False
    if connection.execute(select(exists().where(first, runs.c.outcome == Outcome.SUCCEEDED))).scalar_one():
        return False
    names = ", ".join(f"{row.job_id}.{row.number}" for row in reversed(last[:_NAMED])) + ", ..." * (limit > _NAMED)
    cause = Ending(Outcome(last[0].outcome), last[0].exit_code, last[0].signal)
    why = f"{cause}: {last[0].reason}" if last[0].reason else str(cause)
    reason = (
        f"{limit} runs in a row ({names}) failed within a second of their start: {why} (setting hold_after_failures)"
    )
    queued = and_(first, runs.c.state == State.QUEUED)
    jobs.move_all(connection, _ids(connection, queued), Verb.HOLD, actor="worker", reason=reason, blocked_reason=reason)
    return True


def _ids(connection: Connection, chosen: ColumnElement[bool]) -> list[int]:
    return list(connection.execute(select(runs.c.id).where(chosen)).scalars())


def _last(connection: Connection, chosen: ColumnElement[bool], limit: int) -> list[Row[tuple[object, ...]]]:
    """Return the last `limit` runs that have ended, the newest first."""
    ended = (
        select(runs, exits.c.real_s)
        .select_from(runs.outerjoin(exits, exits.c.run_id == runs.c.id))
        .where(
            chosen,
            runs.c.state == State.DONE,
            runs.c.outcome.not_in((Outcome.SKIPPED, Outcome.CANCELLED)),
        )
        .order_by(runs.c.ended_at.desc(), runs.c.id.desc())
        .limit(limit)
    )
    return list(connection.execute(ended).all())


def _held_at(connection: Connection, chosen: ColumnElement[bool]) -> float:
    """Return when mpsq last held one of these runs; 0 for never."""
    held_at = (
        select(func.max(job_events.c.at))
        .join(runs, runs.c.id == job_events.c.run_id)
        .where(chosen, job_events.c.verb == Verb.HOLD, job_events.c.actor == "worker")
    )
    return connection.execute(held_at).scalar() or 0.0


def _is_one_cause(rows: list[Row[tuple[object, ...]]]) -> bool:
    causes = {(row.outcome, row.exit_code, row.signal, re.sub(r"\d+", "#", row.reason or "")) for row in rows}
    return len(causes) == 1 and all(row.outcome in _FAILED and (row.real_s or 0.0) <= AT_ONCE_S for row in rows)
