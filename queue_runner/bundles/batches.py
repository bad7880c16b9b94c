"""The way of measurements from bundles into the store: small transactions, so that others may write between two."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from queue_runner.analysis.summary import Summary
from queue_runner.bundles.rows import MEASURED
from queue_runner.host import failpoints
from queue_runner.store.engine import Connection, Engine, writing

BATCH_S = 0.2
"""Seconds after which a transaction takes no further piece, however busy the machine is."""
_PIECE_ROWS = 2000
_WAITING_ROWS = 20_000
"""Rows that wait before they are written, unless one run has more: a transaction, after which runs are assessed for
longer than it took, while others may write."""
_PAUSE_S = 0.05
"""Between two transactions of one run: a writer that waits looks every few milliseconds."""

SUMMARY = [field.name for field in fields(Summary) if field.name != "course"]
"""The stored fields of a summary."""
_COLUMNS: dict[str, Sequence[str]] = {
    **{table.name: table.columns for table in MEASURED},
    "ingests": [*(name for table in MEASURED if table.name == "ingests" for name in table.columns), "tail_hash"],
    "summaries": ["run_id", *SUMMARY],
    "taints": ["run_id", "kind", "severity", "detail"],
}


class Batches:
    """Rows that wait to be stored, by table."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[str, deque[Sequence[Any]]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def has_room(self, rows: Mapping[str, Sequence[Any]]) -> bool:
        """Return whether these rows may wait with the others."""
        return sum(map(len, (*self._waiting.values(), *rows.values()))) <= _WAITING_ROWS

    def add(self, run_id: int, rows: Mapping[str, Sequence[Any]]) -> None:
        """Add rows of a run, which is their first column, under its id here."""
        for table, some in rows.items():
            after = ("",) if table == "ingests" else ()
            self._waiting.setdefault(table, deque()).extend((run_id, *row[1:], *after) for row in some)

    def write(self, in_each: Callable[[Connection, bool], None] = lambda *_: None) -> None:
        """Store what waits. `in_each` is called in each transaction, with whether it is the last one: after a crash
        before that, all are repeated."""
        while True:
            with writing(self._engine) as connection:
                begin = time.monotonic()
                for table, rows in self._pieces():
                    names = ", ".join(f'"{name}"' for name in _COLUMNS[table])
                    marks = ", ".join("?" * len(_COLUMNS[table]))
                    connection.change_all(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", rows)
                    if time.monotonic() - begin >= BATCH_S:
                        break
                is_last = not any(self._waiting.values())
                in_each(connection, is_last)
                failpoints.reach("merge.before_commit")
            failpoints.reach("merge.batch")
            if is_last:
                self._waiting.clear()
                return
            time.sleep(_PAUSE_S)

    def _pieces(self) -> Iterator[tuple[str, list[Sequence[Any]]]]:
        """Take the rows that wait, a few of a table at a time."""
        for table, rows in self._waiting.items():
            while rows:
                yield table, [rows.popleft() for _ in range(min(_PIECE_ROWS, len(rows)))]
