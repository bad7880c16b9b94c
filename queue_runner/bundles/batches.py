"""The way of measurements from bundles into the store: small transactions, so that others may write between two."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from queue_runner.analysis.summary import Summary
from queue_runner.bundles.rows import MEASURED
from queue_runner.host import failpoints
from queue_runner.store.engine import Connection, Engine, writing

BATCH_S = 0.2
"""Seconds that a transaction aims at."""
_ROWS = 20_000, 1000, 200_000
"""Rows of the first transaction, and of any."""
_PAUSE_S = 0.02
"""Between two transactions: a writer that waits looks every few milliseconds."""

SUMMARY = [field.name for field in fields(Summary) if field.name != "course"]
"""The stored fields of a summary."""
_COLUMNS: dict[str, Sequence[str]] = {
    **{table.name: table.columns for table in MEASURED},
    "ingests": [*(name for table in MEASURED if table.name == "ingests" for name in table.columns), "tail_hash"],
    "summaries": ["run_id", *SUMMARY],
    "taints": ["run_id", "kind", "severity", "detail"],
}

Rows = dict[str, list[Sequence[Any]]]


class Batches:
    """Rows that wait to be stored, by table."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: Rows = {}
        self._most_rows = _ROWS[0]

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def has_room(self, rows: Mapping[str, Sequence[Any]]) -> bool:
        """Return whether these rows and those that wait are one transaction."""
        return sum(map(len, (*self._waiting.values(), *rows.values()))) <= self._most_rows

    def add(self, run_id: int, rows: Mapping[str, Sequence[Any]]) -> None:
        """Add rows of a run, which is their first column, under its id here."""
        for table, some in rows.items():
            after = ("",) if table == "ingests" else ()
            self._waiting.setdefault(table, []).extend((run_id, *row[1:], *after) for row in some)

    def write(self, in_each: Callable[[Connection, bool], None] = lambda *_: None) -> None:
        """Store what waits. `in_each` is called in each transaction, with whether it is the last one: after a crash
        before that, all are repeated."""
        while True:
            rows, self._waiting = self._next()
            with writing(self._engine) as connection:
                begin = time.monotonic()
                in_each(connection, not self._waiting)
                for table, some in rows.items():
                    names = ", ".join(f'"{name}"' for name in _COLUMNS[table])
                    marks = ", ".join("?" * len(_COLUMNS[table]))
                    connection.change_all(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", some)
                failpoints.reach("merge.before_commit")
            factor = min(2.0, max(0.5, BATCH_S / max(time.monotonic() - begin, 1e-3)))
            self._most_rows = int(min(max(self._most_rows * factor, _ROWS[1]), _ROWS[2]))
            failpoints.reach("merge.batch")
            if not self._waiting:
                return
            time.sleep(_PAUSE_S)

    def _next(self) -> tuple[Rows, Rows]:
        """Return the rows of the next transaction, and those that wait on."""
        now: Rows = {}
        later: Rows = {}
        n_left = self._most_rows
        for table, rows in self._waiting.items():
            now[table], after = rows[:n_left], rows[n_left:]
            n_left -= len(now[table])
            if after:
                later[table] = after
        return now, later
