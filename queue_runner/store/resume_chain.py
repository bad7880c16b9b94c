"""Chains of runs that resume from each other's checkpoints: their order, and which iterations were done twice."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

_CHAIN = """
WITH RECURSIVE
    up(id) AS (
        SELECT ? UNION SELECT r.resumed_from FROM runs r JOIN up ON r.id = up.id WHERE r.resumed_from IS NOT NULL),
    down(id) AS (SELECT min(id) FROM up UNION SELECT r.id FROM runs r JOIN down ON r.resumed_from = down.id)
SELECT r.id AS run_id, r.job_id || '.' || r.number AS run, r.resumed_from,
    (SELECT min(i) FROM iterations WHERE run_id = r.id) AS first_i,
    (SELECT max(i) FROM iterations WHERE run_id = r.id) AS last_i
FROM runs r JOIN down ON down.id = r.id ORDER BY r.id
"""


@dataclass(frozen=True)
class Segment:
    """One run of a chain. `first_i` and `last_i` are None where no iteration is stored."""

    run_id: int
    run: str
    resumed_from: int | None
    first_i: int | None
    last_i: int | None


def chain(connection: sqlite3.Connection, run_id: int) -> list[Segment]:
    """Return the resume chain that contains `run_id`, the first run first; only that run where none was resumed."""
    return [Segment(**row) for row in connection.execute(_CHAIN, [run_id])]


def redone(segments: list[Segment], run_id: int) -> list[Segment]:
    """Return the later segments that began within the iterations of this run, which are thus done a second time."""
    later, found = {run_id}, []
    for segment in segments:
        if segment.resumed_from in later:
            later.add(segment.run_id)
            if segment.first_i is not None:
                found.append(segment)
    return found
