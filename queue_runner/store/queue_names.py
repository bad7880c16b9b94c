"""Names of what the queue holds, for completion: read in milliseconds, with the standard library only.

Errors are not explained: a database that is absent, damaged, newer or busy raises sqlite3.Error, which the caller
suppresses.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

_BUSY_S = 0.1
_JOBS, _GROUPS, _TAGS = 50, 20, 200
"""The most names offered, the newest."""

Named = tuple[str, str]


@contextmanager
def opened(db: Path) -> Iterator[sqlite3.Connection]:
    """Open a read-only connection that never waits for a lock. Raises: sqlite3.Error."""
    with closing(sqlite3.connect(f"file:{quote(bytes(db))}?mode=ro", uri=True, timeout=_BUSY_S)) as connection:
        yield connection


def jobs(connection: sqlite3.Connection, begin: str, states: Sequence[str] | None) -> list[Named]:
    """Return jobs whose id begins with `begin` and that have a run in one of `states`, the newest first."""
    rows = connection.execute(
        f"""
        SELECT j.id, j.name, j.config, j.device, CASE j.compile WHEN 1 THEN
                COALESCE(NULLIF(json_extract(j.spec_json, '$.compile_mode'), ''), 'compiled') WHEN 0 THEN 'eager' END,
            (SELECT group_concat(DISTINCT CASE state WHEN 'DONE' THEN outcome ELSE state END)
             FROM runs WHERE job_id = j.id)
        FROM jobs j
        WHERE j.deleted_at IS NULL AND CAST(j.id AS TEXT) LIKE ? || '%' {_with_a_run(states)}
        ORDER BY j.id DESC LIMIT {_JOBS}
        """,
        [begin if begin.isdecimal() else "" if not begin else "-", *(states or ())],
    )
    return [(str(id), " ".join(str(word) for word in about if word)) for id, *about in rows]


def _with_a_run(states: Sequence[str] | None) -> str:
    if states is None:
        return ""
    marks = ", ".join("?" * len(states))
    if "DONE" in states:  # nearly all jobs: fastest to check each, the newest first
        return f"AND EXISTS (SELECT 1 FROM runs WHERE job_id = j.id AND state IN ({marks}))"
    return f"AND j.id IN (SELECT job_id FROM runs WHERE state IN ({marks}))"  # few: one scan of all runs


def runs(connection: sqlite3.Connection, job: str, states: Sequence[str] | None) -> list[Named]:
    """Return the runs of a job as 12.3, in their order."""
    rows = connection.execute("SELECT number, state, outcome FROM runs WHERE job_id = ? ORDER BY number", [job])
    return [(f"{job}.{n}", outcome or state) for n, state, outcome in rows if states is None or state in states]


def groups(connection: sqlite3.Connection, begin: str) -> list[Named]:
    """Return groups as g4 with their titles, the newest first, and @last where there is one."""
    rows = connection.execute(
        f"SELECT id, title FROM groups WHERE 'g' || id LIKE ? || '%' ORDER BY id DESC LIMIT {_GROUPS}", [begin]
    )
    names = [(f"g{id}", title) for id, title in rows]
    return [*names, ("@last", "the newest group")] if names or begin else names


def names(connection: sqlite3.Connection, begin: str) -> list[Named]:
    """Return the names of jobs that begin so, the newest first."""
    rows = connection.execute(
        "SELECT name, count(*) FROM jobs WHERE deleted_at IS NULL AND instr(name, ?) = 1"
        f" GROUP BY name ORDER BY max(id) DESC LIMIT {_GROUPS}",
        [begin],
    )
    return [(name, f"{count} job{'s' * (count > 1)}") for name, count in rows]


def tags(connection: sqlite3.Connection) -> list[Named]:
    """Return tags, those of the newest jobs first."""
    rows = connection.execute(
        f"SELECT tag, count(*) FROM job_tags GROUP BY tag ORDER BY max(job_id) DESC, tag LIMIT {_TAGS}"
    )
    return [(tag, f"{count} job{'s' * (count > 1)}") for tag, count in rows]


def schedules(connection: sqlite3.Connection) -> list[Named]:
    """Return schedules by name."""
    rows = connection.execute("SELECT name, cron, title FROM schedules ORDER BY name")
    return [(name, f"{cron}  {title}") for name, cron, title in rows]
