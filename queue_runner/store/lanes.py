"""The lane's row: why nothing may start on it. A lane that was never blocked nor paused has none."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from queue_runner.lanes import REMOTE_GLOB
from queue_runner.model import DEFAULT_LANE
from queue_runner.store.schema import lanes


def block(connection: Connection, lane: str, reason: str | None) -> None:
    """Set the reason why nothing may start on the lane, or (None) clear it."""
    _set(connection, lane, blocked_reason=reason, blocked_at=time.time() if reason else None)


def pause(connection: Connection, lane: str, reason: str | None) -> bool:
    """Pause the lane, so that nothing starts on it until it is resumed; None resumes it. Return whether that is new."""
    row = state(connection, lane)
    paused = row is not None and row["paused_at"] is not None
    if paused == (reason is not None) and (row is None or row["paused_reason"] == reason):
        return False
    since = row["paused_at"] if row is not None and paused else time.time()
    _set(connection, lane, paused_reason=reason, paused_at=since if reason is not None else None)
    return True


def keep(connection: Connection, names: Collection[str]) -> None:
    """Have a row for each of these lanes of this machine, and for no other that nobody has paused."""
    gone = (lanes.c.name != DEFAULT_LANE, lanes.c.name.op("NOT GLOB")(REMOTE_GLOB), lanes.c.paused_at.is_(None))
    connection.execute(delete(lanes).where(*gone, lanes.c.name.not_in(names)))
    for name in names:
        if state(connection, name) is None:
            connection.execute(insert(lanes).values(name=name))


def state(connection: Connection, lane: str) -> RowMapping | None:
    """Return the lane's row, if it was ever blocked or paused."""
    return connection.execute(select(lanes).where(lanes.c.name == lane)).mappings().one_or_none()


def _set(connection: Connection, lane: str, **columns: Any) -> None:
    changed = connection.execute(update(lanes).where(lanes.c.name == lane).values(**columns))
    if changed.rowcount == 0:
        connection.execute(insert(lanes).values(name=lane, **columns))
