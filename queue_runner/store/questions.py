"""The questions that jobs ask, so that a report of the newest ones need not read all history. Standard library only."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence

from msgspec import Struct

from queue_runner.model import PREFLIGHT
from queue_runner.store import read

QUESTION_OF = (
    "CASE WHEN {job}kind = 'import' AND json_extract({job}spec_json, '$.merged.kind') IS NULL THEN 'import'"
    " ELSE {job}name || char(10) || COALESCE({job}config, '') || char(10)"
    " || COALESCE(json_extract({job}spec_json, '$.params'), '') END"
)
"""QUESTION of a table: {job} is its name with a dot."""
QUESTION = QUESTION_OF.format(job="")
"""What jobs have in common that reports may compare, on the table jobs: all but device, mode, dtype and framework.
Imported logs share one question, because only their content names their command. jobs has an index of it."""
_WIDEN = 8
"""How many times as many questions are read when the newest ones hold too few comparisons."""
_NEWEST = (
    f"SELECT r.id AS run_id, {QUESTION} AS question FROM runs r JOIN jobs j ON j.id = r.job_id"
    f" WHERE r.number <> {PREFLIGHT} ORDER BY r.id DESC"
)
_RELATED = f"""
WITH RECURSIVE related(question) AS (
    SELECT value FROM json_each(?)
    UNION
    SELECT {QUESTION_OF.format(job="b.")}
    FROM related JOIN jobs a ON {QUESTION_OF.format(job="a.")} = question JOIN jobs b ON b.group_id = a.group_id
    WHERE b.workload IS a.workload OR 'command' IN (a.kind, b.kind)
)
SELECT id AS job_id, question FROM related JOIN jobs ON {QUESTION} = question
"""
"""A submission that sweeps a setting compares jobs of several questions, and other submissions add to each."""


class NewestQuestions(Struct, frozen=True):
    """The jobs of the newest questions. Every question not among them is older than the run `since_run`."""

    jobs: Sequence[int]
    since_run: int
    n_older: int
    """number of questions that are not among them"""


def newest(connection: sqlite3.Connection, n: int) -> Iterator[NewestQuestions]:
    """Yield the jobs of the `n` newest questions, then of more each time, until only all of them would be left."""
    (total,) = read.tuples(connection, f"SELECT COUNT(DISTINCT {QUESTION}) FROM jobs").fetchone()
    while n < total:
        since_runs: dict[str, int] = {}
        for run_id, question in read.tuples(connection, _NEWEST):
            since_runs.setdefault(question, run_id)
            if len(since_runs) == n:
                break
        related = read.tuples(connection, _RELATED, [json.dumps(list(since_runs))]).fetchall()
        n_older = total - len({question for _, question in related})
        if not n_older or len(since_runs) < n:
            return
        yield NewestQuestions([job for job, _ in related], min(since_runs.values()), n_older)
        n *= _WIDEN
