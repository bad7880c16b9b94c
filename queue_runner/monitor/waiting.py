"""Reasons why runs wait, in words: the reader's side of `store/ready.py`, from the same view."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from queue_runner import units
from queue_runner.analysis.grouping import by_key
from queue_runner.lanes import is_remote, parts, short
from queue_runner.model import DEFAULT_LANE, Condition, Obstacle, Row, State
from queue_runner.monitor import blocks
from queue_runner.monitor.queue_state import START_A_WORKER, QueueState
from queue_runner.store.ready import UNDECIDED, behind
from queue_runner.times import clock

_UNMET = (
    "SELECT job_id, on_job_id, condition, verdict FROM v_dependency WHERE verdict <> 'met'"
    " AND job_id IN (SELECT job_id FROM runs WHERE state IN ('QUEUED', 'HELD')) ORDER BY job_id, on_job_id"
)
_HELD_BY_MPSQ = "SELECT DISTINCT job_id FROM runs WHERE state = 'HELD' AND blocked_reason IS NOT NULL"
_BOUND = (
    "SELECT DISTINCT j.id, j.lane FROM jobs j JOIN runs r ON r.job_id = j.id WHERE r.state = 'QUEUED' AND j.lane <> ?"
)
_WISH = {Condition.OK: "succeed", Condition.ANY: "end", Condition.FAIL: "fail"}


@dataclass(frozen=True)
class Reason:
    """The reason why a run has not started. `short` is for a column of a table; `next_step` may be empty."""

    kind: str
    short: str
    sentence: str
    next_step: str


def with_stops(connection: sqlite3.Connection, rows: Sequence[Row]) -> list[Row]:
    """Return rows of v_run with `stopped`: why mpsq, not a user, keeps a run from starting until runs are released;
    else None."""
    stuck: dict[int, int] = {}
    if any(row["state"] == State.QUEUED for row in rows):
        held = {row["job_id"] for row in connection.execute(_HELD_BY_MPSQ)}
        undecided = connection.execute(UNDECIDED) if held else ()
        stuck = behind(held, [(row["job_id"], row["on_job_id"]) for row in undecided])
    return [{**row, "stopped": _stopped(row, stuck)} for row in rows]


def _stopped(row: Row, stuck: Mapping[int, int]) -> str | None:
    if row["state"] == State.HELD:
        reason: str | None = row["blocked_reason"]
        return reason
    if row["state"] == State.QUEUED and row["job_id"] in stuck:
        return f"it waits for job {stuck[row['job_id']]}, which mpsq holds"
    return None


def reasons(connection: sqlite3.Connection, queue: QueueState, rows: Sequence[Row], now: float) -> dict[int, Reason]:
    """Return, by run id, a reason for every row of `rows` that has not started. They are those of store.read.queue, or
    their outline; the number of queries does not grow with them."""
    by_run: dict[int, Reason] = {}
    ahead = [row["run"] for row in rows if row["state"] == State.RUNNING and not is_remote(row["lane"])]
    bound = {row["id"]: row["lane"] for row in connection.execute(_BOUND, [DEFAULT_LANE])} if queue.lanes else {}
    unmet = by_key(connection.execute(_UNMET), lambda edge: edge["job_id"])
    for row in rows:
        if row["state"] not in (State.HELD, State.QUEUED):
            continue
        job = row["job_id"]
        reason = _of_itself(row, unmet.get(job, ()), now) or _elsewhere(connection, row, queue)
        reason = reason or _of_lane(row, queue, bound.get(job, ""))
        by_run[row["run_id"]] = reason or _of_the_queue(row, queue, ahead)
        if reason is None:
            ahead.append(row["run"])
    return by_run


def _of_itself(row: Row, unmet: Sequence[Row], now: float) -> Reason | None:
    job = row["job_id"]
    if row["state"] == State.HELD:
        sentence = f"{row['blocked_reason']}; " if row["blocked_reason"] else ""
        sentence += "it does not start until it is released"
        return Reason("held", "its release", sentence, f"mpsq resume {job} releases it, mpsq cancel {job} cancels it")
    if row["deadline_at"] is not None and row["deadline_at"] <= now:
        return Reason("deadline", "nothing: too late", "its --deadline has passed: it will be skipped", "")
    impossible = [edge["on_job_id"] for edge in unmet if edge["verdict"] == "impossible"]
    if impossible:
        on = impossible[0]
        return Reason("dependency", f"nothing: job {on}", f"job {on} did not end as required: it will be skipped", "")
    if unmet:
        return _of_others(job, unmet)
    if row["not_before_at"] is not None and row["not_before_at"] > now:
        at = clock(row["not_before_at"], now)
        left = units.duration(row["not_before_at"] - now)
        if row["attempt"] > 1:
            return Reason("time", f"{at} (back-off)", f"it will be retried at {at}, in {left}", "")
        return Reason("time", at, f"it is scheduled for {at}, in {left}", f"mpsq edit {job} --no-at removes the time")
    return None


def _elsewhere(connection: sqlite3.Connection, row: Row, queue: QueueState) -> Reason | None:
    if not (said := blocks.of(connection, row)):
        return None
    if not queue.worker:
        return Reason("worker", "a worker", "no worker runs this queue: nothing is sent", START_A_WORKER)
    if row["cancel_requested_at"]:
        said = f"its cancellation was requested and is in progress ({said})"
    return Reason("remote", said, said, f"mpsq cancel {row['job_id']} cancels it")


def _of_lane(row: Row, queue: QueueState, bound: str) -> Reason | None:
    """Return the reason that a run has by the lane that its submission is bound to, or by needing several."""
    if not queue.worker or queue.paused_at:
        return None
    if queue.blocked_reason and queue.blocked_kind is Obstacle.RESERVED and queue.blocked_for == row["run_id"]:
        said = queue.blocked_reason.removeprefix(f"run {row['run']} ")
        return Reason("turn", "the lanes to be free", f"it {said}", "mpsq status shows the lanes")
    for lane in queue.lanes:
        if lane.name not in parts(bound):
            continue
        if lane.paused_at:
            step = f"mpsq resume --lane {short(lane.name)} resumes it"
            return Reason("paused", "mpsq resume --lane", f"its submission is bound to lane {lane.name}, paused", step)
        if lane.running is not None:
            on = lane.running["run"]
            said = f"its submission is bound to lane {lane.name}, which run {on} has"
            return Reason("turn", f"lane {short(lane.name)}, run {on}", said, "mpsq status shows the lanes")
    return None


def _of_others(job: int, unmet: Sequence[Row]) -> Reason:
    first, more = unmet[0], len(unmet) - 1
    others = f" and {more} more" if more else ""
    wish = _WISH[Condition(first["condition"])]
    return Reason(
        "dependency",
        f"job {first['on_job_id']} to {wish}{others}",
        f"job {first['on_job_id']} must {wish} first" + (f"; it also waits for {more} more" if more else ""),
        f"mpsq why {first['on_job_id']}; mpsq edit {job} --no-after removes the dependencies",
    )


def _of_the_queue(row: Row, queue: QueueState, ahead: Sequence[str]) -> Reason:
    run = row["run"]
    if row["blocked_reason"]:
        return Reason("blocked", row["blocked_reason"], row["blocked_reason"], "mpsq status shows what it waits for")
    if queue.paused_at:
        why = f": {queue.paused_reason}" if queue.paused_reason else ""
        return Reason("paused", "mpsq resume", f"the lane is paused{why}", "mpsq resume resumes it")
    if not queue.worker:
        return Reason("worker", "a worker", "no worker runs this queue", START_A_WORKER)
    if queue.blocked_reason:
        step = "mpsq status shows when it is free again"
        if queue.blocked_kind is Obstacle.GATE:
            step += "; what is submitted with --no-gate starts on a busy machine, too"
        return Reason("blocked", "the lane", f"the lane is blocked: {queue.blocked_reason}", step)
    if not ahead:
        return Reason("next", "nothing: next", "it is next and starts immediately", f"mpsq logs {run} -f follows it")
    more = len(ahead) - 1
    others = {0: " is", 1: " and 1 more run are"}.get(more, f" and {units.count(more)} more runs are")
    step = f"mpsq status shows the order; mpsq edit {row['job_id']} --top changes it"
    return Reason("turn", f"its turn, after {ahead[-1]}", f"run {ahead[0]}{others} before it", step)
