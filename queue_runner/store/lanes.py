"""The lane's row: why nothing may start on it. A lane that was never blocked nor paused has none."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from queue_runner.lanes import REMOTE_GLOB
from queue_runner.model import DEFAULT_LANE, Obstacle
from queue_runner.store.schema import lanes


@dataclass(frozen=True)
class Blocked:
    """Why nothing starts on a lane: in words, and where a program has to know it, by its kind. `run_id` is the run for
    which it is kept free, `next_try_at` (Unix seconds) when a target that does not answer is asked again."""

    reason: str
    kind: Obstacle | None = None
    run_id: int | None = None
    next_try_at: float | None = None


def block(connection: Connection, lane: str, found: Blocked | None) -> None:
    """Set the reason why nothing may start on the lane, or (None) clear it."""
    columns = {
        "blocked_reason": found and found.reason,
        "blocked_at": time.time() if found else None,
        "blocked_kind": found and found.kind,
        "blocked_for": found and found.run_id,
        "next_try_at": found and found.next_try_at,
    }
    _set(connection, lane, **columns)


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
