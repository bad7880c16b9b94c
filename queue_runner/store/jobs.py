"""The only writer of state: one function per verb, each a compare-and-set along model.TRANSITIONS.

Every function takes an open transaction of `engine.writing`, so that a transition, its event and related rows are
stored together or not at all.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from queue_runner.lanes import is_remote
from queue_runner.model import DEFAULT_LANE, PREFLIGHT, TRANSITIONS, Condition, Ending, Outcome, RunId, State, Verb
from queue_runner.spec import EnvironmentJson, JobSpec, NewJob, Terms
from queue_runner.store import hot_sql
from queue_runner.store.engine import Connection

if TYPE_CHECKING:
    from queue_runner.source.snapshot import Snapshot

T = TypeVar("T")

_BATCH = 1000
"""Rows of one statement."""
PREFLIGHT_LIMIT_S = 900.0
"""Time limit of a preflight. Its single iteration takes seconds; compiling the largest models takes minutes."""


class StateConflict(Exception):
    """Raised when another process changed the run first: it is not in a source state of the verb."""


class Claimed(Struct, frozen=True):
    """A run that the worker has claimed, with everything that its start needs."""

    run_id: int
    id: RunId
    spec: JobSpec
    token: str
    boot_id: str
    lane: str = DEFAULT_LANE
    repeat: int = 1  # known where it starts

    @classmethod
    def of(cls, run_id: int, id: RunId, spec_json: str, token: str, boot_id: str, lane: str) -> Claimed:
        """Return a run of a job with this specification: a preflight runs less of it."""
        return cls(run_id, id, _of_run(JobSpec.from_json(spec_json), id.number), token, boot_id, lane)


class Following(Struct, frozen=True):
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
    connection.change(
        hot_sql.ADD_EVENT, _event(time.time(), job_id, run_id, actor, verb, source, target, ending, reason)
    )


def _event(
    at: float,
    job_id: int | None,
    run_id: int | None,
    actor: str,
    verb: str,
    source: str | None,
    target: str | None,
    ending: Ending | None,
    reason: str,
) -> dict[str, Any]:
    return {
        "at": at,
        "job_id": job_id,
        "run_id": run_id,
        "actor": actor,
        "verb": str(verb),
        "from_state": source,
        "to_state": target,
        "outcome": str(ending) if ending else None,
        "reason": reason or (ending.reason if ending else "") or None,
    }


_MOVED = (
    *("outcome", "exit_code", "signal", "reason", "ended_at", "cancel_requested_at", "blocked_reason"),
    *("lane", "claimed_at", "paused_at", "token", "boot_id"),
)
"""The columns that hot_sql.RUN_TO_MOVE reads after job and state, and MOVE writes."""


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
    """Apply one row of the transition table to one run. `columns` are among _MOVED.

    Raises: StateConflict when the run is not in a source state of the verb.
    """
    transition = TRANSITIONS[verb]
    row = connection.row(hot_sql.RUN_TO_MOVE, {"run_id": run_id})
    if row is None:
        raise LookupError(f"there is no run {run_id}")
    job_id, source, *before = row
    if source not in transition.sources:
        raise StateConflict(f"run {run_id} is {source}: {verb} does not apply")
    if unknown := columns.keys() - {*_MOVED}:
        raise TypeError(f"a transition cannot change {', '.join(sorted(unknown))}")
    values = {**dict(zip(_MOVED, before, strict=True)), **columns, **_columns(ending)}
    if connection.change(hot_sql.MOVE, {**values, "run_id": run_id, "source": source, "state": transition.target}) != 1:
        raise StateConflict(f"run {run_id} was changed by another process during {verb}")
    record(
        connection,
        job_id=job_id,
        run_id=run_id,
        actor=actor,
        verb=verb,
        source=source,
        target=transition.target,
        ending=ending,
        reason=reason,
    )


def move_all(
    connection: Connection,
    run_ids: Collection[int],
    verb: Verb,
    *,
    actor: str,
    reason: str = "",
    ending: Ending | None = None,
    ended_at: float | None = None,
    blocked_reason: str | None = None,
) -> None:
    """Apply one row of the transition table to those of these runs that are in a source state of the verb, by two
    statements: a group may have thousands."""
    transition = TRANSITIONS[verb]
    chosen = {
        "ids": json.dumps(list(run_ids)),
        "sources": json.dumps([source for source in transition.sources if source]),
    }
    event = _event(time.time(), None, None, actor, verb, None, transition.target, ending, reason)
    connection.change(hot_sql.ADD_EVENTS, {**event, **chosen})
    values = {"exit_code": None, "outcome": None, "signal": None, "reason": None, **_columns(ending)}
    values |= {"state": transition.target, "ended_at": ended_at, "blocked_reason": blocked_reason}
    connection.change(hot_sql.MOVE_ALL, {**values, **chosen})


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
    return int(connection.value(hot_sql.ADD_GROUP, {"created_at": time.time(), "title": title, "seed": seed}))


def add_job(connection: Connection, group_id: int, job: NewJob) -> int:
    """Create a job without runs; return its id."""
    return _add_jobs(connection, group_id, [job], EnvironmentJson()).start


def _add_jobs(connection: Connection, group_id: int, new: Sequence[NewJob], environments: EnvironmentJson) -> range:
    """Create jobs without runs, many by one statement; return their ids."""
    last = connection.value("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'") or 0
    ids = range(last + 1, last + 1 + len(new))  # the write lock is held: nobody else takes them
    now = time.time()
    numbered = list(zip(ids, new, strict=True))
    connection.change_all(hot_sql.ADD_JOB, (_row(id, group_id, now, job, environments) for id, job in numbered))
    tags = ({"job_id": id, "tag": tag} for id, job in numbered for tag in sorted(set(job.terms.tags)))
    connection.change_all(hot_sql.ADD_TAG, tags)
    add_dependencies(connection, ((id, on, how) for id, job in numbered for on, how in job.terms.after))
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
        "snapshot_hash": None if spec.kind == "import" else spec.snapshot,  # its code stayed where it ran
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
    elsewhere: dict[int, JobSpec] = {}
    head, last = places(connection)
    now = time.time()
    ids: list[int] = []
    starts: list[tuple[Verb, float | None]] = []
    for batch in batches(new, _BATCH):
        elsewhere |= {index: job.spec for index, job in enumerate(batch, start=len(ids)) if job.spec.on}
        ids += (added := _add_jobs(connection, group_id, batch, environments))
        starts += [(_submitting(job), job.terms.not_before_at) for job in batch]
        events = (
            _event(now, id, None, actor, _submitting(job), None, TRANSITIONS[_submitting(job)].target, None, title)
            for id, job in zip(added, batch, strict=True)
        )
        connection.change_all(hot_sql.ADD_EVENT, events)

    def row(index: int, position: int, number: int) -> dict[str, Any]:
        return {
            "job_id": ids[index],
            "number": number,
            "repeat": max(number, 1),
            "attempt": min(number, 1),
            "lane": lane_of(elsewhere[index], group_id, max(number, 1)) if index in elsewhere else DEFAULT_LANE,
            "position": position,
            "state": TRANSITIONS[starts[index][0]].target,
            "created_at": now,
            "not_before_at": starts[index][1],
        }

    tries = (row(index, place, PREFLIGHT) for place, index in enumerate(tried, start=head - len(tried)))
    connection.change_all(hot_sql.ADD_FIRST_RUN, tries)
    repeats = (row(index, place, repeat) for place, (index, repeat) in enumerate(order, start=last + 1))
    connection.change_all(hot_sql.ADD_FIRST_RUN, repeats)
    return group_id, ids


def save_snapshot(connection: Connection, snapshot: Snapshot) -> None:
    """Store the code that jobs run; the same content is stored once."""
    revision = snapshot.revision
    values = {
        "hash": snapshot.hash,
        "kind": snapshot.kind,
        "created_at": time.time(),
        "git_commit": (revision.commit or None) if revision else None,
        "git_branch": revision.branch if revision else None,
        "git_dirty": revision.dirty if revision else None,
        "diff": revision.diff if revision else None,
        "tree_hash": snapshot.tree_hash,
        "copied": snapshot.copied,
        "left_out_json": json.dumps(dict(snapshot.left_out)) if snapshot.left_out else None,
    }
    connection.change(hot_sql.ADD_SNAPSHOT, values)


def places(connection: Connection) -> tuple[int, int]:
    """Return the first and the last position in the queue; 1 and 0 if it is empty."""
    first, last = connection.rows(hot_sql.PLACES)[0]
    return (1, 0) if first is None else (first, last)


def lane_of(spec: JobSpec, group_id: int, repeat: int) -> str:
    """Return the lane of a job's run in this round: this machine's, or that of a task. The rounds of the jobs that a
    group sends to one target with the same options are distributed over its tasks in turn."""
    if not spec.on:
        return DEFAULT_LANE
    options = json.dumps(dict(spec.on), sort_keys=True)
    task = hashlib.sha256(f"{options} {(repeat - 1) % spec.tasks}".encode()).hexdigest()[:6]
    return f"{spec.on['to']}-g{group_id}-{task}"


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most this size."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def add_run(connection: Connection, job_id: int, *, position: int, **columns: Any) -> int:
    """Add a run to a job: the first attempt of its first repeat, queued, unless `columns` say otherwise. Return its
    id. A lane of this machine is taken when the run is claimed, and only then."""
    if unknown := columns.keys() - {*_RUN}:
        raise TypeError(f"runs have no column {', '.join(sorted(unknown))}")
    values: dict[str, Any] = dict.fromkeys(_RUN) | {
        "number": 1,
        "repeat": 1,
        "attempt": 1,
        "state": State.QUEUED,
        "created_at": time.time(),
        "lane": DEFAULT_LANE,
        **columns,
    }
    values["lane"] = values["lane"] if is_remote(values["lane"]) else DEFAULT_LANE
    return int(connection.value(hot_sql.ADD_RUN, {**values, "job_id": job_id, "position": position}))


def add_ended_runs(connection: Connection, runs: Sequence[Mapping[str, Any]], reasons: Sequence[str]) -> None:
    """Add runs that ended elsewhere, with the ids that were kept for them: columns of each by name. `reasons` say for
    the history where each comes from."""
    names = ("id", "job_id", "position", *_RUN)
    columns = dict.fromkeys(names) | {"state": State.DONE, "lane": DEFAULT_LANE}
    sql = f"INSERT INTO runs ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"
    connection.change_all(sql, ({**columns, **run} for run in runs))
    now = time.time()
    events = (
        _event(now, run["job_id"], run["id"], "user", Verb.IMPORT, None, State.DONE, None, reason)
        for run, reason in zip(runs, reasons, strict=True)
    )
    connection.change_all(hot_sql.ADD_EVENT, events)


_RUN = (
    *("number", "repeat", "attempt", "lane", "state", "created_at", "started_at", *_MOVED),
    *("machine_hash", "software_hash", "not_before_at", "resumed_from"),
)


def add_probe(connection: Connection, like: int, spec: JobSpec, reason: str) -> RunId:
    """Queue one more probe of a search (--find-max), ahead of all waiting runs, on the terms of the job `like`. Return
    the name of its run."""
    terms_row = connection.rows(hot_sql.TERMS_OF_JOB, {"job_id": like})[0]
    group_id, priority, note, deadline_at, retries, backoff_s, retry_on, schedule_id = terms_row
    terms = Terms(
        priority=priority,
        tags=tuple(connection.column(hot_sql.TAGS_OF_JOB, {"job_id": like})),
        note=note,
        deadline_at=deadline_at,
        retries=retries,
        backoff_s=backoff_s or 0.0,
        retry_on=tuple((retry_on or "failed").split(",")),
        schedule_id=schedule_id,
    )
    job_id = add_job(connection, group_id, NewJob(spec, 1, terms))
    add_run(connection, job_id, position=places(connection)[0] - 1)
    record(connection, job_id=job_id, actor="worker", verb=Verb.SUBMIT, target=State.QUEUED, reason=reason)
    return RunId(job_id, 1)


def add_dependencies(connection: Connection, pairs: Iterable[tuple[int, int, Condition]]) -> None:
    """Add dependencies: (id, id of the job that it waits for, condition on that job). The caller must refuse cycles and
    existing dependencies."""
    rows = ({"job_id": job, "on_job_id": on, "condition": condition} for job, on, condition in pairs)
    connection.change_all(hot_sql.ADD_DEPENDENCY, rows)


def _submitting(job: NewJob) -> Verb:
    return Verb.SUBMIT_HELD if job.terms.hold else Verb.SUBMIT


def claimed(connection: Connection, run_id: int, lane: str, token: str, boot_id: str, now: float) -> Claimed | None:
    """Move a QUEUED run to RUNNING on a lane, in the transaction that found that it may start; None if it is not
    QUEUED."""
    values = {"run_id": run_id, "claimed_at": now, "lane": lane, "token": token, "boot_id": boot_id}
    row = connection.row(hot_sql.CLAIM, values)
    if row is None:
        return None
    job, number, repeat = row
    record(
        connection,
        job_id=job,
        run_id=run_id,
        actor="worker",
        verb=Verb.CLAIM,
        source=State.QUEUED,
        target=State.RUNNING,
        reason="" if lane == DEFAULT_LANE else f"on {lane}",
    )
    spec = _of_run(spec_of(connection, job), number)
    return Claimed(run_id, RunId(job, number), spec, token, boot_id, lane, repeat)


def spec_of(connection: Connection, job: int) -> JobSpec:
    """Return the specification of a job."""
    return JobSpec.from_json(connection.value(hot_sql.SPEC_OF_JOB, {"job_id": job}))


def running(connection: Connection, lane: str) -> Claimed | None:
    """Return the run that is RUNNING on this lane in the database: at most one, as the unique index ensures."""
    row = connection.row(hot_sql.RUNNING, {"this_lane": lane})
    if row is None:
        return None
    run_id, job, number, token, boot_id, spec_json = row
    return Claimed.of(run_id, RunId(job, number), spec_json, token, boot_id, lane)


def last_event(connection: Connection) -> int:
    """Return a number that grows with every entry of the history."""
    return connection.value(hot_sql.LAST_EVENT) or 0


def name_of(connection: Connection, run_id: int) -> RunId:
    """Return the name of a run."""
    return RunId(*connection.rows(hot_sql.NAME_OF_RUN, {"run_id": run_id})[0])


def here(connection: Connection) -> list[str]:
    """Return the lanes of this machine on which a run is RUNNING."""
    return connection.column(hot_sql.LANES_IN_USE)


def _of_run(spec: JobSpec, number: int) -> JobSpec:
    return spec.for_preflight(PREFLIGHT_LIMIT_S) if number == PREFLIGHT else spec


class Unended(Struct, frozen=True):
    """A run that is not DONE. A node may have started one that has a token."""

    run_id: int
    id: RunId
    state: State
    token: str | None


def request_cancel(connection: Connection, run_ids: Sequence[int], actor: str) -> list[Unended]:
    """Request cancellation: waiting runs are DONE(CANCELLED) at once, a running one is marked for its warden.

    Return each run that was not yet DONE, as it was before.
    """
    unended = [
        Unended(run_id, RunId(job, number), State(state), token)
        for run_id, job, number, state, token in connection.rows(hot_sql.UNENDED, {"ids": json.dumps(list(run_ids))})
    ]
    now = time.time()
    for run in unended:
        if run.state is State.RUNNING or run.token is not None:
            connection.change(hot_sql.REQUEST_CANCEL, {"run_id": run.run_id, "now": now})
            record(connection, job_id=run.id.job, run_id=run.run_id, actor=actor, verb="cancel requested")
        else:
            ending = Ending(Outcome.CANCELLED, reason="cancelled before it started")
            move(connection, run.run_id, Verb.CANCEL, actor=actor, ending=ending, cancel_requested_at=now, ended_at=now)
    return unended


def take_over_hold(connection: Connection, run_id: int) -> bool:
    """Turn a hold by mpsq, which has a reason, into one by the user. Return whether mpsq held the run."""
    return connection.change(hot_sql.TAKE_OVER_HOLD, {"run_id": run_id}) > 0


def request_suspend(connection: Connection, run_id: int, suspended: bool, actor: str) -> bool:
    """Request that a running run be suspended, or continued. Return whether that is new; False if it is not RUNNING.

    A run that was suspended and then could not be started waits again, and keeps the request until it is withdrawn.
    """
    statement = hot_sql.SUSPEND if suspended else hot_sql.CONTINUE
    if connection.change(statement, {"run_id": run_id, **({"now": time.time()} if suspended else {})}) == 0:
        return False
    verb = "suspend" if suspended else "continue"
    record(connection, job_id=name_of(connection, run_id).job, run_id=run_id, actor=actor, verb=verb)
    return True


def unclaim(connection: Connection, run_id: int, reason: str) -> bool:
    """Requeue a run that never started; if its cancellation was requested meanwhile, it is CANCELLED instead. Return
    whether it is queued again."""
    lane = connection.value(hot_sql.LANE_OF_RUN, {"run_id": run_id})
    values: dict[str, Any] = {"claimed_at": None, "token": None, "boot_id": None}
    values["lane"] = lane if is_remote(lane) else DEFAULT_LANE
    move(connection, run_id, Verb.UNCLAIM, actor="worker", reason=reason, **values)
    if not cancel_requested(connection, run_id):
        return True
    ending = Ending(Outcome.CANCELLED, reason="cancelled before it started")
    move(connection, run_id, Verb.CANCEL, actor="worker", ending=ending, ended_at=time.time())
    return False


def suspend_requested(connection: Connection, run_id: int) -> bool:
    """Return whether suspension of the run is requested."""
    return connection.value(hot_sql.PAUSED_AT, {"run_id": run_id}) is not None


def was_started(connection: Connection, run_id: int) -> bool:
    """Return whether the start marker of this run was ever read, whatever became of its folder since."""
    return connection.value(hot_sql.STARTED_AT, {"run_id": run_id}) is not None


def cancel_requested(connection: Connection, run_id: int) -> bool:
    """Return whether cancellation of this run was requested."""
    return connection.value(hot_sql.CANCEL_REQUESTED_AT, {"run_id": run_id}) is not None


def is_checked(connection: Connection, job_id: int, lane: str) -> bool:
    """Return whether the device of this lane has computed the CPU's loss of the first batch in a run of this job."""
    return bool(connection.rows(hot_sql.CHECKED_RUN, {"job_id": job_id, "this_lane": lane}))


WAITS, QUIET, NOT_QUIET, LEFT = "wait for quiet", "quiet", "not quiet", "no longer next"
"""Verbs of the history of a wait for a quiet machine: it begins; it ends since the machine is quiet, or after the
timeout; it is given up."""


def waits_since(connection: Connection, run_id: int) -> float | None:
    """Return when (Unix seconds) the run's wait for a quiet machine began, also in an earlier worker; None if it does
    not wait. Its newest event tells: a release or an attempt to start it ends the wait."""
    verb, at = connection.row(hot_sql.NEWEST_EVENT_OF_RUN, {"run_id": run_id}) or ("", 0.0)
    return at if verb == WAITS else None


def has_group_started(connection: Connection, run: Following) -> bool:
    """Return whether another run of the submission was started; preflights do not count."""
    return connection.row(_STARTED_IN_GROUP, (run.id.job, run.run_id, PREFLIGHT)) is not None


_STARTED_IN_GROUP = """
SELECT 1 FROM runs r JOIN jobs j ON j.id = r.job_id
WHERE j.group_id = (SELECT group_id FROM jobs WHERE id = ?) AND r.id <> ? AND r.number <> ?
AND r.claimed_at IS NOT NULL LIMIT 1
"""


def group_waited_s(connection: Connection, run: Following, now: float) -> float:
    """Return how long runs of the submission have waited for a quiet machine until `now` (Unix seconds)."""
    return float(connection.value(_GROUP_WAITED, (now, run.id.job, WAITS)))


_GROUP_WAITED = """
SELECT total(max(0, ifnull((
    SELECT later.at FROM job_events later
    WHERE later.job_id = e.job_id AND later.run_id = e.run_id AND later.id > e.id ORDER BY later.id LIMIT 1
), ?) - e.at))
FROM job_events e JOIN jobs j ON j.id = e.job_id
WHERE j.group_id = (SELECT group_id FROM jobs WHERE id = ?) AND e.verb = ?
"""
"""Any other event of its run ends a wait: it passed, was overtaken, held or cancelled."""


def record_wait(connection: Connection, run: Following, verb: str, reason: str) -> None:
    """Append a step of the wait to the run's history; LEFT only if the run still waits."""
    if verb != LEFT or waits_since(connection, run.run_id) is not None:
        record(connection, job_id=run.id.job, run_id=run.run_id, actor="worker", verb=verb, reason=reason)
