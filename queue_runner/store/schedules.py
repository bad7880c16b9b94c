"""The table of schedules. `next_at` is the earliest time not yet handled; NULL is a paused schedule.

Every function takes an open transaction: the update of a schedule and the jobs that it submits are stored together.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields

from sqlalchemy import delete, func, insert, select, update

from queue_runner.store.engine import Connection
from queue_runner.store.schema import schedules


@dataclass(frozen=True)
class StoredCommand:
    """A schedule, and the command line of `mpsq submit` that it runs: its words as JSON, its folder, its interpreter
    (None for that of the worker) and the file with its environment."""

    id: int | None
    name: str
    cron: str
    timezone: str
    title: str
    next_at: float | None
    command_json: str
    cwd: str
    python: str | None
    env_file: str


_COLUMNS = [schedules.c[field.name] for field in fields(StoredCommand)]


def add(connection: Connection, new: StoredCommand) -> int:
    """Create a schedule, whose name is free; return its id."""
    statement = insert(schedules).values(created_at=time.time(), **asdict(new))
    return int(connection.execute(statement.returning(schedules.c.id)).scalar_one())


def remove(connection: Connection, id: int) -> None:
    """Delete a schedule; the jobs that it submitted stay."""
    connection.execute(delete(schedules).where(schedules.c.id == id))


def set_next(connection: Connection, id: int, next_at: float | None) -> None:
    """Set the next submission to `next_at` (Unix seconds), or pause (None)."""
    connection.execute(update(schedules).where(schedules.c.id == id).values(next_at=next_at))


def commands(connection: Connection, due_at: float | None = None) -> list[StoredCommand]:
    """Return all schedules by id; those due at `due_at` (Unix seconds), if given, the longest overdue first."""
    statement = select(*_COLUMNS).order_by(schedules.c.id)
    if due_at is not None:
        statement = select(*_COLUMNS).where(schedules.c.next_at <= due_at).order_by(schedules.c.next_at, schedules.c.id)
    return [StoredCommand(**row._mapping) for row in connection.execute(statement)]


def next_at(connection: Connection, now: float) -> float | None:
    """Return the first time after `now` (Unix seconds) at which a schedule is due."""
    soonest: float | None = connection.execute(
        select(func.min(schedules.c.next_at)).where(schedules.c.next_at > now)
    ).scalar_one()
    return soonest


def advance(
    connection: Connection, id: int, due_at: float | None, next_at: float | None, group: int | None, error: str | None
) -> bool:
    """Advance a schedule that is due at `due_at`, with the group that it submitted or the error that prevented it.
    Return False if it was handled, changed or removed meanwhile."""
    values: dict[str, object] = {"next_at": next_at, "last_error": error}
    if group is not None:
        values |= {"last_at": time.time(), "last_group_id": group}
    due = schedules.c.id == id, schedules.c.next_at == due_at
    return connection.execute(update(schedules).where(*due).values(values)).rowcount == 1
