"""The table of schedules. `next_at` is the earliest time not yet handled; NULL is a paused schedule.

Every function takes an open transaction: the update of a schedule and the jobs that it submits are stored together.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, func, insert, select, update

from queue_runner.store.engine import Connection
from queue_runner.store.schema import schedules


def add(connection: Connection, **columns: Any) -> int:
    """Create a schedule; return its id. The caller has checked that the name is free."""
    statement = insert(schedules).values(created_at=time.time(), **columns)
    return int(connection.execute(statement.returning(schedules.c.id)).scalar_one())


def remove(connection: Connection, id: int) -> None:
    """Delete a schedule; the jobs that it submitted stay."""
    connection.execute(delete(schedules).where(schedules.c.id == id))


def set_next(connection: Connection, id: int, next_at: float | None) -> None:
    """Set the next submission to `next_at` (Unix seconds), or pause (None)."""
    connection.execute(update(schedules).where(schedules.c.id == id).values(next_at=next_at))


def every(connection: Connection) -> list[dict[str, Any]]:
    """Return all rows, by id."""
    return [dict(row) for row in connection.execute(select(schedules).order_by(schedules.c.id)).mappings()]


def due(connection: Connection, now: float) -> list[dict[str, Any]]:
    """Return the rows that are due, the longest overdue first."""
    statement = select(schedules).where(schedules.c.next_at <= now).order_by(schedules.c.next_at, schedules.c.id)
    return [dict(row) for row in connection.execute(statement).mappings()]


def next_at(connection: Connection, now: float) -> float | None:
    """Return the first time after `now` (Unix seconds) at which a schedule is due."""
    soonest = select(func.min(schedules.c.next_at)).where(schedules.c.next_at > now)
    found: float | None = connection.execute(soonest).scalar_one()
    return found


def answer(connection: Connection, row: Mapping[str, Any], next_at: float | None, **columns: Any) -> bool:
    """Advance a schedule from the time at which `row` is due. False: it was handled, changed or removed meanwhile.

    `columns` are last_at and last_error.
    """
    changed = connection.execute(
        update(schedules)
        .where(schedules.c.id == row["id"], schedules.c.next_at == row["next_at"])
        .values(next_at=next_at, **columns)
    )
    return changed.rowcount == 1


def note_group(connection: Connection, id: int, group_id: int) -> None:
    """Record the group that it submitted last."""
    connection.execute(update(schedules).where(schedules.c.id == id).values(last_group_id=group_id))
