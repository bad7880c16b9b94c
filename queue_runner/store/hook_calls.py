"""Calls of hooks: recorded in the transaction that gives the reason for them, started at most once.

pending -> running -> ok | failed | timed_out | lost. A call is `running` before its process is started, so that it is
never started twice: after a worker dies in between, the next one finds the call running and marks it lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from queue_runner import redact
from queue_runner.model import Outcome
from queue_runner.store import hot_sql, ready
from queue_runner.store.engine import Connection

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
    if connection.row(hot_sql.ANY_RUNNING) is not None:
        return
    behind = ready.behind_held(connection)
    if behind.keys() >= set(connection.column(hot_sql.ALL_QUEUED_JOBS)):
        _order(connection, "idle", None, orders)


def _order(connection: Connection, event: str, run_id: int | None, orders: Orders) -> None:
    command = redact.redact([getattr(orders, event)])[0]
    calls = [(event, command)] if command else []
    if event in orders.notify:
        calls.append((NOTIFY, event))
    for kind, command in calls:
        connection.change(hot_sql.ADD_CALL, {"at": time.time(), "kind": kind, "run_id": run_id, "command": command})


def first_pending(connection: Connection, after: int) -> int | None:
    """Return the id of the first pending call after `after`."""
    first: int | None = connection.value(hot_sql.FIRST_PENDING_CALL, {"after": after})
    return first


def newest(connection: Connection) -> int:
    """Return the id of the newest call; 0 where there is none."""
    return connection.value(hot_sql.NEWEST_CALL) or 0


def take(connection: Connection, call_id: int) -> Call | None:
    """Mark a call as running, before it is started. Return None when it is no longer pending."""
    row = connection.row(hot_sql.TAKE_CALL, {"call_id": call_id})
    return Call(*row) if row else None


def end(
    connection: Connection, call_id: int, state: str, *, exit_code: int | None, dur_s: float | None, output: str
) -> None:
    """Store the result of a running call; do nothing when its job has been deleted meanwhile."""
    values = {"call_id": call_id, "state": state, "exit_code": exit_code, "dur_s": dur_s, "output": output or None}
    connection.change(hot_sql.END_CALL, values)


def running(connection: Connection) -> Sequence[int]:
    """Return the running calls; in a worker that has just begun, those left behind by its predecessor."""
    return connection.column(hot_sql.RUNNING_CALLS)
