"""The table of schedules. `next_at` is the earliest time not yet handled; NULL is a paused schedule.

Every function takes an open transaction: the update of a schedule and the jobs that it submits are stored together.
"""

from __future__ import annotations

import time

from msgspec import Struct
from msgspec.structs import asdict

from queue_runner.store.engine import Connection


class StoredCommand(Struct, frozen=True):
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


_COMMANDS = f"SELECT {', '.join(StoredCommand.__struct_fields__)} FROM schedules"


def add(connection: Connection, new: StoredCommand) -> int:
    """Create a schedule, whose name is free; return its id."""
    values = {**asdict(new), "created_at": time.time()}
    sql = (
        f"INSERT INTO schedules ({', '.join(values)}) VALUES ({', '.join(f':{name}' for name in values)}) RETURNING id"
    )
    return int(connection.value(sql, values))


def remove(connection: Connection, id: int) -> None:
    """Delete a schedule; the jobs that it submitted stay."""
    connection.change("DELETE FROM schedules WHERE id = ?", [id])


def set_next(connection: Connection, id: int, next_at: float | None) -> None:
    """Set the next submission to `next_at` (Unix seconds), or pause (None)."""
    connection.change("UPDATE schedules SET next_at = ? WHERE id = ?", [next_at, id])


def commands(connection: Connection, due_at: float | None = None) -> list[StoredCommand]:
    """Return all schedules by id; those due at `due_at` (Unix seconds), if given, the longest overdue first."""
    if due_at is None:
        return [StoredCommand(*row) for row in connection.rows(f"{_COMMANDS} ORDER BY id")]
    due = connection.rows(f"{_COMMANDS} WHERE next_at <= ? ORDER BY next_at, id", [due_at])
    return [StoredCommand(*row) for row in due]


def next_at(connection: Connection, now: float) -> float | None:
    """Return the first time after `now` (Unix seconds) at which a schedule is due."""
    soonest: float | None = connection.value("SELECT min(next_at) FROM schedules WHERE next_at > ?", [now])
    return soonest


def advance(
    connection: Connection, id: int, due_at: float | None, next_at: float | None, group: int | None, error: str | None
) -> bool:
    """Advance a schedule that is due at `due_at`, with the group that it submitted or the error that prevented it.
    Return False if it was handled, changed or removed meanwhile."""
    sql = (
        "UPDATE schedules SET next_at = ?, last_error = ?, last_group_id = coalesce(?, last_group_id),"
        " last_at = coalesce(?, last_at) WHERE id = ? AND next_at IS ?"
    )
    return connection.change(sql, (next_at, error, group, group and time.time(), id, due_at)) == 1
