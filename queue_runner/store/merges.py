"""Merges in parts: what the runs of a bundle measured is stored first, under ids that are kept for them; the runs
themselves, which make it visible, come in one last transaction. Every reader finds measurements by their run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from queue_runner.errors import MpsqError
from queue_runner.store.engine import Connection, Engine, writing

OF_RUN = {
    **dict.fromkeys(("hellos", "exits", "summaries"), "run_id"),
    **{"ingests": "run_id, source", "conditions": "run_id, at", "taints": "run_id, kind"},
    **dict.fromkeys(("notes", "phases", "iterations"), "run_id, offset"),
    **{"evals": "run_id, offset, metric", "metrics": "run_id, offset, name"},
}
"""Tables of what runs measured, with their keys."""
_REMOVED_AT_ONCE = 20_000
"""Rows: some 50 ms."""
_ABANDONED_S = 86_400.0
_COLUMNS = "bundle_hash, plan_hash, first_run_id, n_runs, n_stored"


class Merge(Struct, frozen=True):
    """A merge that has not ended: run k of its bundle, from 0, gets the id first_run_id + k."""

    bundle_hash: str
    plan_hash: str
    first_run_id: int
    n_runs: int
    n_stored: int = 0


def find(connection: Connection, bundle_hash: str) -> Merge | None:
    """Return the merge of a bundle that was interrupted."""
    row = connection.row(f"SELECT {_COLUMNS} FROM merges WHERE bundle_hash = ?", [bundle_hash])
    return None if row is None else Merge(*row)


def begin(connection: Connection, bundle_hash: str, plan_hash: str, n_runs: int) -> Merge:
    """Keep ids for the runs of a bundle."""
    connection.change(
        "INSERT INTO sqlite_sequence SELECT 'runs', 0 WHERE 'runs' NOT IN (SELECT name FROM sqlite_sequence)"
    )
    last = connection.value("SELECT seq FROM sqlite_sequence WHERE name = 'runs'")
    connection.change("UPDATE sqlite_sequence SET seq = seq + ? WHERE name = 'runs'", [n_runs])
    merge = Merge(bundle_hash, plan_hash, last + 1, n_runs)
    values = (bundle_hash, plan_hash, merge.first_run_id, n_runs, 0, time.time())
    connection.change("INSERT INTO merges VALUES (?, ?, ?, ?, ?, ?)", values)
    return merge


def advance(connection: Connection, merge: Merge, n_stored: int) -> Merge:
    """Record that the measurements of so many runs are stored. Raises: MpsqError where the merge is not there any more,
    as after mpsq db restore."""
    sql = f"UPDATE merges SET n_stored = ?, at = ? WHERE ({_COLUMNS}) = (?, ?, ?, ?, ?)"
    known = (merge.bundle_hash, merge.plan_hash, merge.first_run_id, merge.n_runs, merge.n_stored)
    if connection.change(sql, (n_stored, time.time(), *known)) != 1:
        raise MpsqError("the database was replaced while a bundle was merged", "import the bundle again")
    return replace(merge, n_stored=n_stored)


def end(connection: Connection, merge: Merge) -> None:
    """Forget a merge: its runs are stored in this transaction, or nothing is left of it."""
    advance(connection, merge, merge.n_stored)
    connection.change("DELETE FROM merges WHERE bundle_hash = ?", [merge.bundle_hash])


def undo(engine: Engine, merge: Merge) -> None:
    """Remove what an interrupted merge has stored."""
    remove(engine, merge.first_run_id, merge.first_run_id + merge.n_runs - 1)
    with writing(engine) as connection:
        end(connection, merge)


def remove(engine: Engine, first_run_id: int, last_run_id: int) -> None:
    """Remove what these runs measured, in small transactions."""
    remaining = [*OF_RUN.items()]
    while remaining:
        with writing(engine) as connection:
            n_left = _REMOVED_AT_ONCE
            while remaining and n_left:
                table, keys = remaining[0]
                some = f"SELECT {keys} FROM {table} WHERE run_id BETWEEN ? AND ? LIMIT {n_left}"
                sql = f"DELETE FROM {table} WHERE ({keys}) IN ({some})"
                n_left -= connection.change(sql, (first_run_id, last_run_id))
                if n_left:
                    remaining.pop(0)


def abandoned(rows: Callable[[str], Iterable[tuple[Any, ...]]], now: float) -> list[Merge]:
    """Return the merges that nobody has continued for a day, by what returns the rows of a query."""
    return [Merge(*row) for row in rows(f"SELECT {_COLUMNS} FROM merges WHERE abs(at - {now}) > {_ABANDONED_S}")]


def dangling(rows: Callable[[str], Iterable[tuple[Any, ...]]]) -> list[str]:
    """Return the tables with references to nothing, by what returns the rows of a query. What a merge has stored that
    has not ended is in order."""
    tables = {row[0] for row in rows("PRAGMA foreign_key_check")}
    if not tables or not {*rows("SELECT 1 FROM sqlite_master WHERE name = 'merges'")}:
        return sorted(tables)
    sql = (
        "SELECT 1 FROM {} AS t WHERE run_id NOT IN (SELECT id FROM runs) AND NOT EXISTS"
        " (SELECT 1 FROM merges WHERE t.run_id BETWEEN first_run_id AND first_run_id + n_runs - 1) LIMIT 1"
    )
    return sorted(table for table in tables if table not in OF_RUN or {*rows(sql.format(table))})
