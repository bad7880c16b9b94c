"""Why a run is in its state: one sentence, and the next step. For every state and every outcome."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import queue_state, units
from queue_runner.model import Outcome, Selector, State
from queue_runner.paths import Layout
from queue_runner.queue_state import START_A_WORKER, QueueState
from queue_runner.rundir import RunDir
from queue_runner.store import read

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Around:
    """What is true beside the run itself. `ahead` are the runs that will start before it, the running one first."""

    queue: QueueState
    ahead: tuple[str, ...] = ()
    supervised: bool = False
    ended: bool = False  # its warden has written how it ended, and no worker has stored that yet
    requeued: str | None = None  # why it came back to the queue


@dataclass(frozen=True)
class Why:
    """`run` is 12.3. `next_step` is empty where nothing is left to do."""

    run: str
    sentence: str
    next_step: str


def explain(row: Row, around: Around) -> Why:
    """The reason of one row of v_run, in words."""
    state = State(row["state"])
    if state is State.DONE:
        sentence, step = _done(row)
        if row.get("deleted_at"):
            sentence, step = f"{sentence}; its files were deleted", "" if row["outcome"] != "SUCCEEDED" else step
    elif state is State.RUNNING:
        sentence, step = _running(row, around)
    elif state is State.HELD:
        sentence, step = "it is held back: nothing starts it until it is released", "let it go, or mpsq cancel it"
    else:
        sentence, step = _queued(row, around)
    return Why(row["run"], f"run {row['run']} {_IS[state]}: {sentence}", step.format(run=row["run"], job=row["job_id"]))


_IS = {State.HELD: "is held", State.QUEUED: "waits", State.RUNNING: "is running", State.DONE: "has ended"}


def _queued(row: Row, around: Around) -> tuple[str, str]:
    back = f" (it came back to the queue: {around.requeued})" if around.requeued else ""
    if row["blocked_reason"]:
        return row["blocked_reason"] + back, "mpsq status shows what it waits for"
    if not around.queue.worker:
        return "no worker runs this queue" + back, START_A_WORKER
    if around.queue.blocked_reason:
        return f"the lane is blocked: {around.queue.blocked_reason}" + back, "mpsq status shows when it is free again"
    if around.queue.paused_at:
        return "the lane is paused" + back, "resume it"
    if not around.ahead:
        return "it is next and starts at once" + back, "mpsq logs {run} -f follows it"
    if len(around.ahead) == 1:
        return f"run {around.ahead[0]} is before it" + back, "mpsq status; a higher --priority at submit goes first"
    more = len(around.ahead) - 1
    others = "1 more run is" if more == 1 else f"{units.count(more)} more runs are"
    return (
        f"run {around.ahead[0]} and {others} before it" + back,
        "mpsq status shows the order; a higher --priority at submit goes first",
    )


def _running(row: Row, around: Around) -> tuple[str, str]:
    if row["cancel_requested_at"]:
        if around.queue.worker or around.supervised:
            return "its end was asked for and is under way", "mpsq wait {run}"
        return "its end was asked for, and no worker is there to record it", START_A_WORKER
    if around.ended and not around.queue.worker:
        return "it has finished, and no worker is there to record how", START_A_WORKER
    if around.queue.blocked_reason and not around.supervised:
        return around.queue.blocked_reason, "mpsq status shows when the lane is free again"
    if not around.queue.worker:
        if around.supervised:
            return "it goes on under its warden, and no worker is there to record it", START_A_WORKER
        return "neither a warden nor a worker watches it: the next worker finds out how it ended", START_A_WORKER
    return "the worker started it and it has not ended", "mpsq logs {run} -f follows it; mpsq cancel {run} ends it"


_LOGS = "mpsq logs {run} --both shows what it wrote"


def _done(row: Row) -> tuple[str, str]:
    reason = row["reason"] or ""
    told = f": {reason}" if reason else ""
    outcome = Outcome(row["outcome"])
    ran = f" after {units.duration(row['real_s'])}" if row["real_s"] is not None else ""
    match outcome:
        case Outcome.SUCCEEDED:
            if row["taints"] and not row["valid"]:
                taints = row["taints"].replace(",", ", ")
                return f"it succeeded{ran}, but its numbers are not valid ({taints})", "mpsq show {run} says why"
            return f"it succeeded{ran}", "mpsq report reads its numbers"
        case Outcome.FAILED:
            return f"it failed with exit code {row['exit_code']}{ran}{told}", _LOGS
        case Outcome.KILLED:
            return f"signal {row['signal']} killed it{ran}{told}", _LOGS + "; the system's log may say who"
        case Outcome.SPAWN_FAILED:
            return (
                f"it could not be started{told}",
                "mpsq show {run} has its command and folder; mend them and submit again",
            )
        case Outcome.DEVICE_UNAVAILABLE:
            return f"its device is not there{told}", "mpsq doctor tries every device"
        case Outcome.TIMED_OUT:
            return f"it took longer than --timeout allows{told}", "submit it again with a longer --timeout"
        case Outcome.STALLED:
            return f"it said nothing for too long{ran}{told}", _LOGS
        case Outcome.OUT_OF_MEMORY:
            return f"it ran out of memory{ran}{told}", "submit it smaller: a smaller batch, or gradient accumulation"
        case Outcome.OUTPUT_LIMIT:
            return (
                f"it wrote more than allowed{ran}{told}",
                "let it write less, or raise output_limit_bytes: mpsq config list",
            )
        case Outcome.CODE_CHANGED:
            return f"its code is no longer what was submitted{told}", "submit it again"
        case Outcome.CANCELLED:
            return f"it was cancelled{ran}{told}", "submit it again if it was a mistake"
        case Outcome.SKIPPED:
            return f"it was skipped{told}", "see why what it waited for did not happen"
        case Outcome.LOST:
            return f"it was lost{told}", "submit it again; what it wrote until then is kept: mpsq logs {run}"


def of(layout: Layout, connection: sqlite3.Connection, selector: Selector) -> list[Why]:
    """The reasons of what the user named: of the run, or of the one run of each job that tells most.

    Raises: UsageError when it names nothing.
    """
    rows = read.select(connection, [selector])
    queue = queue_state.look(layout, connection)
    chosen = rows if selector.number is not None else [_telling(group) for group in _by_job(rows)]
    order = [row["run"] for row in read.queue(connection) if row["state"] != State.HELD]
    return [explain(row, _around(layout, connection, row, queue, order)) for row in chosen]


def _by_job(rows: Sequence[Row]) -> list[list[Row]]:
    jobs: dict[int, list[Row]] = {}
    for row in rows:
        jobs.setdefault(row["job_id"], []).append(row)
    return list(jobs.values())


def _telling(rows: Sequence[Row]) -> Row:
    """Of a job's runs the one that a user asks about: the running one, else one that did not succeed, else the next."""

    def rank(row: Row) -> tuple[int, int]:
        if row["state"] == State.RUNNING:
            return 0, row["number"]
        if row["state"] == State.DONE and row["outcome"] != Outcome.SUCCEEDED:
            return 1, -row["number"]
        if row["state"] != State.DONE:
            return 2, row["number"]
        return 3, -row["number"]

    return min(rows, key=rank)


def _around(
    layout: Layout, connection: sqlite3.Connection, row: Row, queue: QueueState, order: Sequence[str]
) -> Around:
    name = row["run"]
    folder = RunDir(layout.runs / name)
    back = [e for e in read.events(connection, row["job_id"]) if e["run"] == name and e["verb"] == "unclaim"]
    return Around(
        queue,
        ahead=tuple(order[: order.index(name)]) if name in order else (),
        supervised=row["state"] == State.RUNNING and queue_state.is_supervised(folder),
        ended=row["state"] == State.RUNNING and folder.exit() is not None,
        requeued=back[-1]["reason"] if back and row["state"] == State.QUEUED else None,
    )
