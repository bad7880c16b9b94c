"""Calls of hooks: recorded in the transaction that gives the reason for them, started at most once.

pending -> running -> ok | failed | timed_out | lost. A call is `running` before its process is started, so that it is
never started twice: after a worker dies in between, the next one finds the call running and marks it lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, update

from queue_runner import redact
from queue_runner.model import Outcome, State
from queue_runner.store import ready
from queue_runner.store.schema import hook_runs, runs

NOTIFY = "notify"


@dataclass(frozen=True)
class Orders:
    """The hooks to call: command lines ("" for none), and which of done, failed and idle notify the desktop."""

    done: str = ""
    failed: str = ""
    idle: str = ""
    notify: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Call:
    """A call of a hook. `kind` is done, failed, idle or notify; `run_id` is None for idle. The secrets of `command` are
    hidden: it is in the database, and so in its backups."""

    id: int
    kind: str
    run_id: int | None
    command: str


def note_end(
    connection: Connection, run_id: int, outcome: Outcome, orders: Orders, *, if_failed_only: bool = False
) -> None:
    """Order the calls for the end of a run, and for an empty queue when nothing is left to run. A cancelled run calls
    nothing: the user who cancelled it knows."""
    if outcome is not Outcome.CANCELLED and not (if_failed_only and outcome is Outcome.SUCCEEDED):
        _order(connection, "done" if outcome is Outcome.SUCCEEDED else "failed", run_id, orders)
    note_idle(connection, orders)


def note_idle(connection: Connection, orders: Orders) -> None:
    """Order the idle call when nothing runs and no waiting run starts without user action. To be called when a run has
    left the queue in this transaction."""
    running = select(runs.c.id).where(runs.c.state == State.RUNNING).limit(1)
    if connection.execute(running).first() is not None:
        return
    behind = ready.behind_held(connection)
    queued = select(runs.c.job_id).where(runs.c.state == State.QUEUED).distinct()
    left = connection.execute(queued if behind else queued.limit(1)).scalars().all()
    if behind.keys() >= set(left):
        _order(connection, "idle", None, orders)


def _order(connection: Connection, event: str, run_id: int | None, orders: Orders) -> None:
    command = redact.redact_script(getattr(orders, event))
    wanted = [(event, command)] if command else []
    if event in orders.notify:
        wanted.append((NOTIFY, event))
    rows = [
        {"at": time.time(), "kind": kind, "run_id": run_id, "command": command, "state": "pending"}
        for kind, command in wanted
    ]
    if rows:
        connection.execute(insert(hook_runs), rows)


def first_pending(connection: Connection, after: int) -> int | None:
    """Return the id of the first pending call after `after`."""
    pending = select(func.min(hook_runs.c.id)).where(hook_runs.c.id > after, hook_runs.c.state == "pending")
    found: int | None = connection.execute(pending).scalar_one()
    return found


def newest(connection: Connection) -> int:
    """Return the id of the newest call; 0 where there is none."""
    return int(connection.execute(select(func.coalesce(func.max(hook_runs.c.id), 0))).scalar_one())


def take(connection: Connection, call_id: int) -> Call | None:
    """Mark a call as running, before it is started. Return None when it is no longer pending."""
    row = connection.execute(
        update(hook_runs)
        .where(hook_runs.c.id == call_id, hook_runs.c.state == "pending")
        .values(state="running")
        .returning(hook_runs.c.id, hook_runs.c.kind, hook_runs.c.run_id, hook_runs.c.command)
    ).one_or_none()
    return None if row is None else Call(row.id, row.kind, row.run_id, row.command)


def end(
    connection: Connection, call_id: int, state: str, *, exit_code: int | None, dur_s: float | None, output: str
) -> None:
    """Store the result of a running call; do nothing when its job has been deleted meanwhile."""
    connection.execute(
        update(hook_runs)
        .where(hook_runs.c.id == call_id, hook_runs.c.state == "running")
        .values(state=state, exit_code=exit_code, dur_s=dur_s, output=output or None)
    )


def running(connection: Connection) -> Sequence[int]:
    """Return the running calls; in a worker that has just begun, those left behind by its predecessor."""
    return connection.execute(select(hook_runs.c.id).where(hook_runs.c.state == "running")).scalars().all()
