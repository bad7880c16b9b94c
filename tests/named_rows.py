"""Rows of the database by the names of their columns, for assertions about any of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def runs(connection: sqlite3.Connection, condition: str = "1", values: Sequence[Any] = ()) -> list[Row]:
    """Return rows of v_run."""
    return list(connection.execute(f"SELECT * FROM v_run WHERE {condition} ORDER BY job_id, number", values))


def detail(connection: sqlite3.Connection, table: str, run_id: int) -> list[Row]:
    """Return all rows of one run in one of the result tables, in the order of its file."""
    order = {"taints": "severity DESC, kind", "conditions": "at", "ingests": "source"}.get(table, "offset")
    return list(connection.execute(f"SELECT * FROM {table} WHERE run_id = ? ORDER BY {order}", [run_id]))


def events(connection: sqlite3.Connection, job_id: int) -> list[Row]:
    """Return the history of a job, oldest first."""
    return list(connection.execute("SELECT * FROM v_event WHERE job_id = ? ORDER BY id", [job_id]))
