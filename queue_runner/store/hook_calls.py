"""Calls of hooks: written down in the transaction that gives the reason for them, started at most once.

pending -> running -> ok | failed | timed_out | lost. A call is `running` before its process is started, so that a
worker that dies in between never starts it a second time: the next one finds it running, and calls it lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, update

from queue_runner.model import Outcome, State
from queue_runner.store.schema import hook_runs, runs

NOTIFY = "notify"


@dataclass(frozen=True)
class Orders:
    """What to call when: command lines ("" for none), and which of done, failed and idle are told on the desktop."""

    done: str = ""
    failed: str = ""
    idle: str = ""
    notify: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Call:
    """One call of a hook. `kind` is done, failed, idle or notify; `run_id` is None for idle."""

    id: int
    kind: str
    run_id: int | None
    command: str


def note_end(connection: Connection, run_id: int, outcome: Outcome, orders: Orders) -> None:
    """Order what is to be called now that a run has ended, and when nothing is left to run. A run that was cancelled
    calls nothing: whoever cancelled it knows."""
    if outcome is not Outcome.CANCELLED:
        _order(connection, "done" if outcome is Outcome.SUCCEEDED else "failed", run_id, orders)
    note_idle(connection, orders)


def note_idle(connection: Connection, orders: Orders) -> None:
    """Order what is to be called when nothing runs and nothing waits that would start by itself; for when a run has
    left the queue in this transaction."""
    left = select(runs.c.id).where(runs.c.state.in_((State.RUNNING, State.QUEUED))).limit(1)
    if connection.execute(left).first() is None:
        _order(connection, "idle", None, orders)


def _order(connection: Connection, event: str, run_id: int | None, orders: Orders) -> None:
    wanted = [(event, getattr(orders, event))] if getattr(orders, event) else []
    if event in orders.notify:
        wanted.append((NOTIFY, event))
    rows = [
        {"at": time.time(), "kind": kind, "run_id": run_id, "command": command, "state": "pending"}
        for kind, command in wanted
    ]
    if rows:
        connection.execute(insert(hook_runs), rows)


def first_pending(connection: Connection, after: int) -> int | None:
    """The id of the first call behind `after` that is to be made."""
    pending = select(func.min(hook_runs.c.id)).where(hook_runs.c.id > after, hook_runs.c.state == "pending")
    found: int | None = connection.execute(pending).scalar_one()
    return found


def newest(connection: Connection) -> int:
    """The id of the newest call; 0 where there is none."""
    return int(connection.execute(select(func.coalesce(func.max(hook_runs.c.id), 0))).scalar_one())


def take(connection: Connection, call_id: int) -> Call | None:
    """Mark a call as running, before it is started. None when it is not pending any more."""
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
    """Store what came of a call that runs; nothing happens when its job has been deleted meanwhile."""
    connection.execute(
        update(hook_runs)
        .where(hook_runs.c.id == call_id, hook_runs.c.state == "running")
        .values(state=state, exit_code=exit_code, dur_s=dur_s, output=output or None)
    )


def running(connection: Connection) -> Sequence[int]:
    """The calls that run; in a worker that has just begun, those that another one left behind."""
    return connection.execute(select(hook_runs.c.id).where(hook_runs.c.state == "running")).scalars().all()
