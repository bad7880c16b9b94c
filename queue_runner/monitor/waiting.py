"""Reasons why runs wait, in words: the reader's side of `store/ready.py`, from the same view."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.stats import by_key
from queue_runner.host.locks import START_A_WORKER
from queue_runner.lanes import is_remote, kind, needs, parts, short
from queue_runner.model import DEFAULT_LANE, Condition, Obstacle, State
from queue_runner.monitor.queue_state import NO_WORKER, RESUME, QueueState
from queue_runner.monitor.run_view import QueuedRun, stored_spec
from queue_runner.spec import JobSpec
from queue_runner.store import read
from queue_runner.store.read import RemoteLane
from queue_runner.store.ready import UNDECIDED, behind
from queue_runner.times import clock

_UNMET = (
    "SELECT job_id, on_job_id, condition, verdict FROM v_dependency WHERE verdict <> 'met'"
    " AND job_id IN (SELECT job_id FROM runs WHERE state IN ('QUEUED', 'HELD')) ORDER BY job_id, on_job_id"
)
_BOUND = (
    "SELECT DISTINCT j.id, j.lane FROM jobs j JOIN runs r ON r.job_id = j.id WHERE r.state = 'QUEUED' AND j.lane <> ?"
)
_QUEUED = "SELECT DISTINCT j.id, j.spec_json FROM jobs j JOIN runs r ON r.job_id = j.id WHERE r.state = 'QUEUED'"
_WITHOUT = "mpsq edit {job} --after '' removes the dependencies"
_WISH = {Condition.OK: "succeed", Condition.ANY: "end", Condition.FAIL: "fail"}


class Reason(Struct, frozen=True):
    """The reason why a run has not started. `short` is for a column of a table; `next_step` may be empty."""

    kind: str
    short: str
    sentence: str
    next_step: str


class _Edge(Struct, frozen=True):
    """A dependency that is not met."""

    job_id: int
    on_job_id: int
    condition: str
    verdict: str


def stops(connection: sqlite3.Connection, runs: Sequence[QueuedRun]) -> dict[int, str]:
    """Return, by run id, why mpsq (not a user) keeps a run from starting until runs are released."""
    stopped = {run.run_id: run.blocked_reason for run in runs if run.state == State.HELD and run.blocked_reason}
    jobs = behind_held(connection, runs, _BY_MPSQ)
    return stopped | {run_id: f"it waits for job {job}, which mpsq holds" for run_id, job in jobs.items()}


_BY_MPSQ = "blocked_reason IS NOT NULL"
BY_USER = "blocked_reason IS NULL"


def behind_held(connection: sqlite3.Connection, runs: Sequence[QueuedRun], by: str) -> dict[int, int]:
    """Return, by the id of each queued run that waits for a held job, even indirectly, that job. `by` is SQL."""
    queued = [run for run in runs if run.state == State.QUEUED]
    held = (
        {job for (job,) in read.tuples(connection, f"SELECT job_id FROM runs WHERE state = 'HELD' AND {by}")}
        if queued
        else {}
    )
    stuck = behind(held, read.tuples(connection, UNDECIDED).fetchall()) if held else {}
    return {run.run_id: stuck[run.job_id] for run in queued if run.job_id in stuck}


def reasons(
    connection: sqlite3.Connection,
    queue: QueueState,
    runs: Iterable[QueuedRun],
    remote: Mapping[str, RemoteLane],
    now: float,
    only: Set[int] | None = None,
) -> dict[int, Reason]:
    """Return, by run id, a reason for each run that has not started. `runs` are all that have not ended, in queue
    order, and `remote` the lanes of other machines; the number of queries does not grow with them. With `only`, the ids
    of runs, only these get a reason, and no further ones are read then."""
    by_run: dict[int, Reason] = {}
    ahead: list[str] = []
    waiting: set[int] = set()
    bound: dict[int, str] = dict(read.tuples(connection, _BOUND, [DEFAULT_LANE])) if queue.lanes else {}
    is_paused = any(lane.paused_at for lane in queue.lanes)
    specs: dict[int, str] = dict(read.tuples(connection, _QUEUED)) if is_paused else {}
    unmet = by_key((_Edge(*edge) for edge in read.tuples(connection, _UNMET)), lambda edge: edge.job_id)
    for run in runs:
        if run.state == State.RUNNING and not is_remote(run.lane):
            ahead.append(run.run)
        if run.state not in (State.HELD, State.QUEUED):
            continue
        reason = _of_itself(run, unmet.get(run.job_id, ()), now)
        if reason is None and is_remote(run.lane):
            reason = _elsewhere(run, queue, remote[run.lane])
        if reason is None:
            spec = stored_spec(specs[run.job_id]) if run.job_id in specs else None
            reason = _of_lane(run, queue, bound.get(run.job_id, ""), spec)
        if only is None or run.run_id in only:
            any_waits = len(waiting) > (run.job_id in waiting)
            by_run[run.run_id] = reason or _of_the_queue(run, queue, ahead, any_waits)
        if reason is None:
            ahead.append(run.run)
            waiting.add(run.job_id)
        if only is not None and len(by_run) == len(only):
            break
    return by_run


def _of_itself(run: QueuedRun, unmet: Sequence[_Edge], now: float) -> Reason | None:
    job = run.job_id
    if run.state == State.HELD:
        sentence = "it does not start until it is resumed"
        step = f"mpsq resume {job} lets it start; mpsq cancel {job} cancels it"
        if run.blocked_reason:  # by group_guard, the only one who gives a reason
            sentence += f", because {run.blocked_reason}"
            step = f"once the cause is fixed, {step}; mpsq config set hold_after_failures 0 turns this rule off"
        return Reason("held", f"mpsq resume {job}", sentence, step)
    if run.deadline_at is not None and run.deadline_at <= now:
        sentence = "it will be skipped, because its --deadline has passed"
        return Reason("deadline", "being skipped (too late)", sentence, f"mpsq edit {job} --deadline '' removes it")
    impossible = [edge.on_job_id for edge in unmet if edge.verdict == "impossible"]
    if impossible:
        on = impossible[0]
        sentence = f"it will be skipped, because job {on} did not end as required"
        return Reason("dependency", f"being skipped (job {on})", sentence, _WITHOUT.format(job=job))
    if unmet:
        return _of_others(job, unmet)
    if run.not_before_at is not None and run.not_before_at > now:
        at = clock(run.not_before_at, now)
        left = units.rough(run.not_before_at - now)
        if run.attempt > 1:
            step = f"mpsq edit {job} --at '' starts it now"
            return Reason("time", f"{at} (back-off)", f"it will be retried at {at}, in {left}", step)
        return Reason("time", at, f"it is scheduled for {at}, in {left}", f"mpsq edit {job} --at '' removes the time")
    return None


def _elsewhere(run: QueuedRun, queue: QueueState, lane: RemoteLane) -> Reason:
    status = lane.status
    if not queue.worker:
        return Reason("worker", "a worker", f"{NO_WORKER}: nothing is sent", START_A_WORKER)
    if run.cancel_requested_at:
        status = f"its cancellation was requested and is in progress ({status})"
    return Reason("remote", status, status, f"mpsq cancel {run.job_id} cancels it")


def _of_lane(run: QueuedRun, queue: QueueState, bound: str, spec: JobSpec | None = None) -> Reason | None:
    """Return the reason that a run has by the lane that its submission is bound to, by needing several, or, with its
    `spec`, since those that it could use are paused."""
    if not queue.worker or queue.paused_at:
        return None
    if queue.blocked_reason and queue.blocked_kind is Obstacle.RESERVED and queue.blocked_for == run.run_id:
        need = queue.blocked_reason.removeprefix(f"run {run.run} ")
        return Reason("turn", "the lanes to be free", f"it {need}", "mpsq status shows the lanes")
    for lane in queue.lanes:
        if lane.name not in parts(bound):
            continue
        if lane.paused_at:
            return _paused_lane(lane.name, f"its group runs only on lane {lane.name}, which is paused")
        if lane.running is not None:
            on = lane.running.run
            sentence = f"its group runs only on lane {lane.name}, which run {on} occupies"
            return Reason("turn", f"lane {short(lane.name)}, run {on}", sentence, "mpsq status shows the lanes")
    if spec is not None and not bound:
        usable = [lane for lane in queue.lanes if kind(lane.name) == needs(spec)]
        paused = [lane.name for lane in usable if lane.paused_at]
        if len(usable) >= spec.gpus > len(usable) - len(paused):
            return _paused_lane(paused[0], f"the lanes that it could use are paused: {', '.join(paused)}")
    return None


def _paused_lane(lane: str, sentence: str) -> Reason:
    return Reason("paused", f"lane {short(lane)}: paused", sentence, f"mpsq resume --lane {short(lane)} resumes it")


def _of_others(job: int, unmet: Sequence[_Edge]) -> Reason:
    first, more = unmet[0], len(unmet) - 1
    others = f" and {more} more" if more else ""
    wish = _WISH[Condition(first.condition)]
    return Reason(
        "dependency",
        f"job {first.on_job_id} to {wish}{others}",
        f"job {first.on_job_id} must {wish} first"
        + (f", and {units.counted(more, 'more job')} must end as required" if more else ""),
        f"mpsq why {first.on_job_id} says more; {_WITHOUT.format(job=job)}",
    )


def _of_the_queue(run: QueuedRun, queue: QueueState, ahead: Sequence[str], any_waits: bool = False) -> Reason:
    """Return the reason that a run has by the queue: the runs `ahead` of it, and whether one of another job waits."""
    if run.blocked_reason:
        return Reason("blocked", run.blocked_reason, run.blocked_reason, "mpsq status shows what it waits for")
    if queue.paused_at:
        why = f" ({queue.paused_reason})" if queue.paused_reason else ""
        return Reason("paused", "mpsq resume", f"the queue is paused{why}", RESUME)
    if not queue.worker:
        return Reason("worker", "a worker", NO_WORKER, START_A_WORKER)
    gate = queue.blocked_reason if queue.blocked_kind is Obstacle.GATE else None
    if gate and gate.startswith(name := f"run {run.run} waits "):
        step = "mpsq status shows whether the machine is quiet; a job with --no-gate does not wait for it"
        return Reason("gate", "a quiet machine", gate.removeprefix(name), step)
    if queue.blocked_reason and not (gate and ahead):
        step = "it starts by itself when that has changed"
        return Reason("blocked", "the machine", f"nothing can start now: {queue.blocked_reason}", step)
    if not ahead:
        return Reason(
            "next", "nothing, it is next", "it is next and starts immediately", f"mpsq logs {run.run} -f follows it"
        )
    more = len(ahead) - 1
    others = {0: " is", 1: " and 1 more run are"}.get(more, f" and {units.count(more)} more runs are")
    step = "mpsq status shows the order" + (f"; mpsq edit {run.job_id} --top changes it" if any_waits else "")
    sentence = f"run {ahead[0]}{others} before it" + (f"; {gate}" if gate else "")
    is_same_job = ahead[-1].partition(".")[0] == str(run.job_id)
    return Reason("turn", "its turn" if is_same_job else f"its turn, after {ahead[-1]}", sentence, step)
