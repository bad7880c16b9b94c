"""The only writer of state: one function per verb, each a compare-and-set along model.TRANSITIONS.

Every function takes an open transaction of `engine.writing`, so that a transition, its event and related rows are
stored together or not at all.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, and_, func, insert, literal, select, update

from queue_runner.lanes import REMOTE_GLOB, is_remote
from queue_runner.model import DEFAULT_LANE, PREFLIGHT, TRANSITIONS, Condition, Ending, Outcome, RunId, State, Verb
from queue_runner.spec import EnvironmentJson, JobSpec, NewJob
from queue_runner.store.ready import MAY_START
from queue_runner.store.schema import dependencies, groups, job_events, job_tags, jobs, runs

T = TypeVar("T")

_BATCH = 1000
"""Rows of one statement."""
PREFLIGHT_LIMIT_S = 900.0
"""Time limit of a preflight. Its single iteration takes seconds; compiling the largest models takes minutes."""


class StateConflict(Exception):
    """An error: the run was not in a source state of the verb, since another process acted first."""


@dataclass(frozen=True)
class Claimed:
    """A run that the worker has claimed: what is needed to start it."""

    run_id: int
    id: RunId
    spec: JobSpec
    token: str
    boot_id: str
    lane: str = DEFAULT_LANE


@dataclass(frozen=True)
class Following:
    """The run that is next on a lane, not claimed yet."""

    run_id: int
    id: RunId
    spec: JobSpec

    @classmethod
    def of(cls, run_id: int, id: RunId, spec: JobSpec) -> Following:
        """Return a run of a job: a preflight runs less of it."""
        return cls(run_id, id, _of_run(spec, id.number))


def record(
    connection: Connection,
    *,
    job_id: int,
    actor: str,
    verb: Verb | str,
    run_id: int | None = None,
    source: str | None = None,
    target: str | None = None,
    ending: Ending | None = None,
    reason: str = "",
) -> None:
    """Append an entry to the history: who did what and why."""
    connection.execute(
        insert(job_events).values(
            at=time.time(),
            job_id=job_id,
            run_id=run_id,
            actor=actor,
            verb=str(verb),
            from_state=source,
            to_state=target,
            outcome=str(ending) if ending else None,
            reason=reason or None,
        )
    )


def move(
    connection: Connection,
    run_id: int,
    verb: Verb,
    *,
    actor: str,
    reason: str = "",
    ending: Ending | None = None,
    **columns: Any,
) -> None:
    """Apply one row of the transition table to one run.

    Raises: StateConflict when the run is not in a source state of the verb.
    """
    transition = TRANSITIONS[verb]
    row = connection.execute(select(runs.c.state, runs.c.job_id).where(runs.c.id == run_id)).one()
    if row.state not in transition.sources:
        raise StateConflict(f"run {run_id} is {row.state}: {verb} does not apply")
    columns |= _columns(ending)
    changed = connection.execute(
        update(runs).where(runs.c.id == run_id, runs.c.state == row.state).values(state=transition.target, **columns)
    )
    if changed.rowcount != 1:
        raise StateConflict(f"run {run_id} was changed by another process during {verb}")
    record(
        connection,
        job_id=row.job_id,
        run_id=run_id,
        actor=actor,
        verb=verb,
        source=row.state,
        target=transition.target,
        ending=ending,
        reason=reason or (ending.reason if ending else ""),
    )


def move_all(
    connection: Connection,
    chosen: ColumnElement[bool],
    verb: Verb,
    *,
    actor: str,
    reason: str = "",
    ending: Ending | None = None,
    **columns: Any,
) -> None:
    """Apply one row of the transition table to every run for which `chosen` holds and which is in a source state of the
    verb, by two statements: a group may have thousands."""
    transition = TRANSITIONS[verb]
    fits = and_(chosen, runs.c.state.in_([state for state in transition.sources if state is not None]))
    entry = {
        "at": time.time(),
        "actor": actor,
        "verb": str(verb),
        "to_state": transition.target,
        "outcome": str(ending) if ending else None,
        "reason": reason or (ending.reason if ending else "") or None,
    }
    values = [literal(value).label(name) for name, value in entry.items()]
    entries = select(runs.c.job_id, runs.c.id, runs.c.state, *values).where(fits)
    connection.execute(insert(job_events).from_select(["job_id", "run_id", "from_state", *entry], entries))
    connection.execute(update(runs).where(fits).values(state=transition.target, **columns, **_columns(ending)))


def _columns(ending: Ending | None) -> dict[str, Any]:
    if ending is None:
        return {}
    return {
        "outcome": ending.outcome,
        "exit_code": ending.exit_code,
        "signal": ending.signal,
        "reason": ending.reason or None,
    }


def add_group(connection: Connection, title: str, seed: int) -> int:
    """Create a group; return its id, the 4 of g4."""
    statement = insert(groups).values(created_at=time.time(), title=title, seed=seed).returning(groups.c.id)
    return int(connection.execute(statement).scalar_one())


def add_job(connection: Connection, group_id: int, job: NewJob) -> int:
    """Create a job without runs; return its id."""
    return _add_jobs(connection, group_id, [job], EnvironmentJson()).start


def _add_jobs(connection: Connection, group_id: int, new: Sequence[NewJob], environments: EnvironmentJson) -> range:
    """Create jobs without runs, many by one statement; return their ids."""
    last = connection.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'").scalar() or 0
    ids = range(last + 1, last + 1 + len(new))  # the write lock is held: nobody else takes them
    now = time.time()
    _insert(connection, jobs, [_row(id, group_id, now, job, environments) for id, job in zip(ids, new, strict=True)])
    tags = [{"job_id": id, "tag": tag} for id, job in zip(ids, new, strict=True) for tag in sorted(set(job.terms.tags))]
    if tags:
        connection.execute(insert(job_tags), tags)
    add_dependencies(
        connection, ((id, on, how) for id, job in zip(ids, new, strict=True) for on, how in job.terms.after)
    )
    return ids


def _row(id: int, group_id: int, now: float, job: NewJob, environments: EnvironmentJson) -> dict[str, Any]:
    spec, terms = job.spec, job.terms
    return {
        "id": id,
        "group_id": group_id,
        "created_at": now,
        "name": spec.name,
        "kind": spec.kind,
        "workload": spec.workload,
        "framework": spec.framework,
        "device": spec.device,
        "compile": spec.compile,
        "dtype": spec.dtype,
        "config": spec.config,
        "spec_json": spec.to_json(environments),
        "spec_hash": spec.content_hash(),
        "snapshot_hash": spec.snapshot,
        "priority": terms.priority,
        "lane": spec.lane or DEFAULT_LANE,
        "note": terms.note,
        "deadline_at": terms.deadline_at,
        "retries": terms.retries,
        "backoff_s": terms.backoff_s,
        "retry_on": ",".join(terms.retry_on),
        "rerun_of": terms.rerun_of,
        "schedule_id": terms.schedule_id,
    }


def submit(
    connection: Connection,
    title: str,
    seed: int,
    new: Iterable[NewJob],
    order: Iterable[tuple[int, int]],
    actor: str = "user",
    tried: Collection[int] = (),
) -> tuple[int, list[int]]:
    """Store a group of jobs and queue their runs in `order`: pairs of (index into `new`, repeat from 1). The jobs
    `tried` (indexes) get a preflight each, ahead of all waiting runs.

    Return the group's id and the ids of the jobs, in the order of `new`. Only a batch of jobs is in memory at once.
    """
    group_id = add_group(connection, title, seed)
    environments = EnvironmentJson()
    lanes_: list[str] = []
    left = runs.c.state != State.DONE
    ends = select(func.coalesce(func.min(runs.c.position), 1), func.coalesce(func.max(runs.c.position), 0)).where(left)
    head, last = connection.execute(ends).one()
    now = time.time()
    ids: list[int] = []
    starts: list[tuple[Verb, float | None]] = []
    for batch in _batches(new):
        ids += (added := _add_jobs(connection, group_id, batch, environments))
        starts += [(_submitting(job), job.terms.not_before_at) for job in batch]
        lanes_ += [lane_of(job.spec, group_id) for job in batch]
        events = [
            {
                "at": now,
                "job_id": id,
                "actor": actor,
                "verb": _submitting(job),
                "to_state": TRANSITIONS[_submitting(job)].target,
                "reason": title,
            }
            for id, job in zip(added, batch, strict=True)
        ]
        _insert(connection, job_events, events)

    def row(index: int, position: int, number: int) -> dict[str, Any]:
        return {
            "job_id": ids[index],
            "number": number,
            "repeat": max(number, 1),
            "attempt": min(number, 1),
            "lane": lanes_[index],
            "position": position,
            "state": TRANSITIONS[starts[index][0]].target,
            "created_at": now,
            "not_before_at": starts[index][1],
        }

    for trials in _batches(enumerate(tried, start=head - len(tried))):
        _insert(connection, runs, [row(index, place, PREFLIGHT) for place, index in trials])
    for turns in _batches(enumerate(order, start=last + 1)):
        _insert(connection, runs, [row(index, place, repeat) for place, (index, repeat) in turns])
    return group_id, ids


def lane_of(spec: JobSpec, group_id: int) -> str:
    """Return the lane of a job's runs: this machine's, or one of their own for what a group sends to one target with
    the same options."""
    if not spec.on:
        return DEFAULT_LANE
    options = hashlib.sha256(json.dumps(dict(spec.on), sort_keys=True).encode()).hexdigest()[:6]
    return f"{spec.on['to']}-g{group_id}-{options}"


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that all have the same columns in one order, by the driver: SQLAlchemy copies each three times."""
    marks = ", ".join("?" * len(rows[0]))
    statement = f"INSERT INTO {table.name} ({', '.join(rows[0])}) VALUES ({marks})"
    connection.exec_driver_sql(statement, [tuple(row.values()) for row in rows])


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, _BATCH)):
        yield batch


def add_run(connection: Connection, job_id: int, *, position: int, **columns: Any) -> int:
    """Add a run to a job: the first attempt of its first repeat, queued, unless `columns` say otherwise. Return its
    id. A lane of this machine is taken when the run is claimed, and only then."""
    first = {"number": 1, "repeat": 1, "attempt": 1, "state": State.QUEUED}
    values = {**first, "created_at": time.time(), **columns}
    values["lane"] = lane if is_remote(lane := values.get("lane", DEFAULT_LANE)) else DEFAULT_LANE
    statement = insert(runs).values(job_id=job_id, position=position, **values)
    return int(connection.execute(statement.returning(runs.c.id)).scalar_one())


def add_dependencies(connection: Connection, pairs: Iterable[tuple[int, int, Condition]]) -> None:
    """Add dependencies: (id, id of the job that it waits for, condition on that job). The caller must refuse cycles and
    existing dependencies."""
    rows = [{"job_id": job, "on_job_id": on, "condition": condition} for job, on, condition in pairs]
    if rows:
        connection.execute(insert(dependencies), rows)


def _submitting(job: NewJob) -> Verb:
    return Verb.SUBMIT_HELD if job.terms.hold else Verb.SUBMIT


_FOLLOWING = (
    select(runs.c.id, runs.c.job_id, runs.c.number, jobs.c.spec_json)
    .join(jobs, jobs.c.id == runs.c.job_id)
    .where(*MAY_START)
    .order_by(jobs.c.priority.desc(), runs.c.position, runs.c.id)
    .limit(1)
)


def following(connection: Connection, lane: str, now: float) -> Following | None:
    """Return the run that a claim would take."""
    row = connection.execute(_FOLLOWING, {"this_lane": lane, "now": now}).one_or_none()
    return row and Following.of(row.id, RunId(row.job_id, row.number), JobSpec.from_json(row.spec_json))


def claim(
    connection: Connection,
    lane: str,
    token: str,
    boot_id: str,
    now: float | None = None,
    only: int | None = None,
) -> Claimed | None:
    """Claim the next run of the lane that may start: highest priority first, then the first place. None: there is none,
    or it is not the run `only`, which the caller has prepared for.

    The rules are those of `ready.py`: its time has come, its dependencies are met, the lane is not paused.
    """
    now = time.time() if now is None else now
    found = connection.execute(
        _FOLLOWING.with_only_columns(runs.c.id), {"this_lane": lane, "now": now}
    ).scalar_one_or_none()
    if found is None or (only is not None and found != only):
        return None
    return claimed(connection, found, lane, token, boot_id, now)


def claimed(
    connection: Connection, run_id: int, lane: str, token: str, boot_id: str, now: float | None = None
) -> Claimed | None:
    """Move a QUEUED run to RUNNING on a lane, in the transaction that has found it startable; None if it is not
    QUEUED."""
    values = {"lane": lane, "token": token, "boot_id": boot_id, "blocked_reason": None}
    row = connection.execute(
        update(runs)
        .where(runs.c.id == run_id, runs.c.state == State.QUEUED)
        .values(state=State.RUNNING, claimed_at=time.time() if now is None else now, **values)
        .returning(runs.c.id, runs.c.job_id, runs.c.number)
    ).one_or_none()
    if row is None:
        return None
    record(
        connection,
        job_id=row.job_id,
        run_id=row.id,
        actor="worker",
        verb=Verb.CLAIM,
        source=State.QUEUED,
        target=State.RUNNING,
        reason="" if lane == DEFAULT_LANE else f"on {lane}",
    )
    spec_json = connection.execute(select(jobs.c.spec_json).where(jobs.c.id == row.job_id)).scalar_one()
    return Claimed(row.id, RunId(row.job_id, row.number), _spec(spec_json, row.number), token, boot_id, lane)


def running(connection: Connection, lane: str) -> Claimed | None:
    """Return the run that is RUNNING on this lane in the database: at most one, as the unique index ensures."""
    row = connection.execute(
        select(runs.c.id, runs.c.job_id, runs.c.number, runs.c.token, runs.c.boot_id, jobs.c.spec_json)
        .join(jobs, jobs.c.id == runs.c.job_id)
        .where(runs.c.state == State.RUNNING, runs.c.lane == lane)
    ).one_or_none()
    if row is None:
        return None
    return Claimed(
        row.id, RunId(row.job_id, row.number), _spec(row.spec_json, row.number), row.token, row.boot_id, lane
    )


def last_event(connection: Connection) -> int:
    """Return a number that grows with every entry of the history."""
    return int(connection.execute(select(func.max(job_events.c.id))).scalar() or 0)


def name_of(connection: Connection, run_id: int) -> RunId:
    """Return the name of a run."""
    row = connection.execute(select(runs.c.job_id, runs.c.number).where(runs.c.id == run_id)).one()
    return RunId(row.job_id, row.number)


def here(connection: Connection) -> list[str]:
    """Return the lanes of this machine on which a run is RUNNING."""
    there = (runs.c.state == State.RUNNING, runs.c.lane.op("NOT GLOB")(REMOTE_GLOB))
    return list(connection.execute(select(runs.c.lane).where(*there).order_by(runs.c.id)).scalars())


def _spec(spec_json: str, number: int) -> JobSpec:
    return _of_run(JobSpec.from_json(spec_json), number)


def _of_run(spec: JobSpec, number: int) -> JobSpec:
    return spec.for_preflight(PREFLIGHT_LIMIT_S) if number == PREFLIGHT else spec


def request_cancel(connection: Connection, run_ids: Sequence[int], actor: str) -> list[RowMapping]:
    """Request cancellation: waiting runs are DONE(CANCELLED) at once, a running one is marked for its warden.

    Return a row (id, job_id, number, state before) for each run that was not yet DONE.
    """
    found = (
        connection.execute(
            select(runs.c.id, runs.c.job_id, runs.c.number, runs.c.state, runs.c.token).where(
                runs.c.id.in_(run_ids), runs.c.state != State.DONE
            )
        )
        .mappings()
        .all()
    )
    now = time.time()
    for row in found:
        if row["state"] == State.RUNNING or row["token"] is not None:  # a node may have started what was sent to it
            connection.execute(
                update(runs)
                .where(runs.c.id == row["id"], runs.c.cancel_requested_at.is_(None))
                .values(cancel_requested_at=now)
            )
            record(connection, job_id=row["job_id"], run_id=row["id"], actor=actor, verb="cancel requested")
        else:
            ending = Ending(Outcome.CANCELLED, reason="cancelled before it started")
            move(connection, row["id"], Verb.CANCEL, actor=actor, ending=ending, cancel_requested_at=now, ended_at=now)
    return list(found)


def own_hold(connection: Connection, run_id: int) -> bool:
    """Turn a hold by mpsq, which has a reason, into one of the user. Return whether it was one."""
    held = (runs.c.id == run_id, runs.c.state == State.HELD, runs.c.blocked_reason.is_not(None))
    return connection.execute(update(runs).where(*held).values(blocked_reason=None)).rowcount > 0


def request_suspend(connection: Connection, run_id: int, suspended: bool, actor: str) -> bool:
    """Request that a running run be suspended, or continued. Return whether that is new; False if it is not RUNNING.

    A run that was suspended and then could not be started waits again, and keeps the request until it is withdrawn.
    """
    if suspended:
        fits = (runs.c.paused_at.is_(None), runs.c.state == State.RUNNING)
    else:
        fits = (runs.c.paused_at.is_not(None), runs.c.state != State.DONE)
    changed = connection.execute(
        update(runs)
        .where(runs.c.id == run_id, *fits)
        .values(paused_at=time.time() if suspended else None)
        .returning(runs.c.job_id)
    ).one_or_none()
    if changed is None:
        return False
    verb = "suspend" if suspended else "continue"
    record(connection, job_id=changed.job_id, run_id=run_id, actor=actor, verb=verb)
    return True


def suspend_requested(connection: Connection, run_id: int) -> bool:
    """Return whether suspension of the run is requested."""
    return connection.execute(select(runs.c.paused_at).where(runs.c.id == run_id)).scalar_one() is not None


def unclaim(connection: Connection, run_id: int, reason: str) -> bool:
    """Requeue a run that never started; if its cancellation was requested meanwhile, it is CANCELLED instead. Return
    whether it is queued again."""
    lane = connection.execute(select(runs.c.lane).where(runs.c.id == run_id)).scalar_one()
    back = lane if is_remote(lane) else DEFAULT_LANE
    values = {"lane": back, "claimed_at": None, "token": None, "boot_id": None}
    move(connection, run_id, Verb.UNCLAIM, actor="worker", reason=reason, ending=None, **values)
    if not cancel_requested(connection, run_id):
        return True
    ending = Ending(Outcome.CANCELLED, reason="cancelled before it started")
    move(connection, run_id, Verb.CANCEL, actor="worker", ending=ending, ended_at=time.time())
    return False


def was_started(connection: Connection, run_id: int) -> bool:
    """Return whether the fence of this run was ever seen, whatever became of its folder since."""
    return connection.execute(select(runs.c.started_at).where(runs.c.id == run_id)).scalar_one() is not None


def cancel_requested(connection: Connection, run_id: int) -> bool:
    """Return whether cancellation of this run was requested."""
    return connection.execute(select(runs.c.cancel_requested_at).where(runs.c.id == run_id)).scalar_one() is not None
