"""A user's SELECT over the views and tables: nothing but reading, within limits of time, rows and memory.

The connection is read-only. SQLite's authorizer (sqlite.org/c3ref/set_authorizer.html) refuses a statement that would
write to another file, too, before any of it runs.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from queue_runner import units
from queue_runner.errors import DamageError, UsageError, did_you_mean
from queue_runner.store.read import DAMAGE

LIMIT_S = 10.0
MOST_ROWS = 10_000
MOST_BYTES = 64 << 20
"""Size of all values of the result, and the most that one value or an intermediate text may have."""
_STEPS = 1000
"""Instructions of SQLite's virtual machine between two looks at the clock."""
_MODULES = frozenset({"json_each", "json_tree", "pragma_table_info", "pragma_table_xinfo", "pragma_table_list"})
"""Table-valued functions that only read."""
_PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list"})
_READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)
"""Action codes of what only reads; Python lets no function load an extension."""


class Answer(Struct, frozen=True):
    """The rows of a query. `columns` are unique: a second `n` is `n_2`. `cut` is the limit that was reached, if any."""

    columns: Sequence[str]
    rows: Sequence[dict[str, Any]]
    cut: str = ""


def ask(connection: sqlite3.Connection, query: str, *, limit_s: float = LIMIT_S, most_rows: int = MOST_ROWS) -> Answer:
    """Run one SELECT on a connection that store.read.reading opened, which serves for nothing else afterwards.

    Values other than texts and numbers are in hexadecimal.

    Raises: UsageError for a query that is invalid, does more than read, or takes longer than `limit_s` seconds.
    """
    connection.row_factory = None
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    for module in _MODULES:  # SQLite makes them at first use, by what looks like a write to the authorizer
        connection.execute(f"SELECT 1 FROM {module} LIMIT 0")
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000)
    connection.set_authorizer(_authorized)
    ends_at = time.monotonic() + limit_s
    connection.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS)
    try:
        return _fetch(connection.execute(query), ends_at, most_rows)
    except _TooLong:
        raise _too_long(limit_s) from None
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:  # ValueError: a NUL in the query
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT:
            raise _too_long(limit_s) from error
        if any(sign in str(error) for sign in DAMAGE):
            raise DamageError(f"the database is damaged: {error}", "mpsq db check shows the damage") from error
        raise _explained(error, names) from error


class _TooLong(Exception):
    pass


def _fetch(cursor: sqlite3.Cursor, ends_at: float, most_rows: int) -> Answer:
    if cursor.description is None:
        raise UsageError(
            "the query is empty or returns nothing", 'for example mpsq db sql "SELECT run, median_s FROM v_run"'
        )
    columns = _unique([column[0] for column in cursor.description])
    rows: list[dict[str, Any]] = []
    n_bytes = 0
    for values in cursor:
        if time.monotonic() > ends_at:
            raise _TooLong
        n_bytes += sum(len(value) if isinstance(value, str | bytes) else 8 for value in values)
        if len(rows) == most_rows or n_bytes > MOST_BYTES:
            limit = f"{units.size(MOST_BYTES)} of values" if n_bytes > MOST_BYTES else units.counted(most_rows, "row")
            return Answer(columns, rows, limit)
        shown = (value.hex() if isinstance(value, bytes) else value for value in values)
        rows.append(dict(zip(columns, shown, strict=True)))
    return Answer(columns, rows)


def _unique(names: Sequence[str]) -> list[str]:
    unique: list[str] = []
    for name in names:
        free, n = name, 1
        while free in unique:
            n += 1
            free = f"{name}_{n}"
        unique.append(free)
    return unique


def _authorized(action: int, first: str | None, *_: str | None) -> int:
    """Decide about an action that a statement would take."""
    reads = action in _READS or (action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _PRAGMAS)
    return sqlite3.SQLITE_OK if reads else sqlite3.SQLITE_DENY


def _too_long(limit_s: float) -> UsageError:
    return UsageError(
        f"the query took longer than {units.duration(limit_s)} and was stopped",
        "select fewer runs, for example WHERE group_id = 4, or give it more time with --timeout",
    )


def _explained(error: Exception, names: set[str]) -> UsageError:
    text = str(error)
    if "not authorized" in text or "prohibited" in text:
        return UsageError(
            f"this query would do more than read ({text})", "use one SELECT over the views and tables of docs/schema.md"
        )
    if "no such table: " in text:
        views = ", ".join(sorted(name for name in names if name.startswith("v_")))
        return UsageError(text, did_you_mean(text.rpartition(" ")[2], names, f"the views are {views}"))
    if "one statement at a time" in text:
        return UsageError("there is more than one statement", "run one SELECT at a time")
    if "too big" in text:
        return UsageError(f"a value is larger than {units.size(MOST_BYTES)}", "select less")
    return UsageError(f"SQLite does not accept the query: {text}", "docs/schema.md has the views and their columns")
