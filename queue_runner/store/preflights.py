"""Preflights in the store: the questions that need none, and the record of one that has ended."""

from __future__ import annotations

import json
from collections.abc import Sequence

from queue_runner.model import PREFLIGHT, Ending, Outcome, Verb
from queue_runner.spec import JobSpec
from queue_runner.store import jobs
from queue_runner.store.engine import Connection

Question = tuple[str, ...]
"""A question with the environment and the code that would answer it."""

_SUCCEEDED = """
SELECT DISTINCT j.spec_hash, COALESCE(j.snapshot_hash, ''), json_extract(j.spec_json, '$.python'),
    COALESCE(json_extract(j.spec_json, '$.packages'), '{}')
FROM jobs j JOIN runs r ON r.job_id = j.id
WHERE j.spec_hash IN (SELECT value FROM json_each(?)) AND r.outcome = 'SUCCEEDED' AND r.number <> ?
AND r.machine_hash IS (SELECT machine_hash FROM runs WHERE machine_hash IS NOT NULL
    AND job_id NOT IN (SELECT job_id FROM merged_jobs) ORDER BY id DESC LIMIT 1)
"""


def question(spec: JobSpec) -> Question:
    """Return what a run must have answered for this job to need no preflight: the question, with the same code,
    interpreter and packages."""
    return spec.content_hash(), spec.snapshot or "", spec.python, json.dumps(dict(spec.packages), sort_keys=True)


def proven(connection: Connection, specs: Sequence[JobSpec]) -> set[Question]:
    """Return the questions of these that a run has answered on this machine."""
    if connection.row("SELECT 1 FROM runs WHERE outcome = 'SUCCEEDED' LIMIT 1") is None:
        return set()  # a new queue: no question of a long file has to be looked up
    hashes = sorted({spec.content_hash() for spec in specs})
    rows = connection.rows(_SUCCEEDED, (json.dumps(hashes), PREFLIGHT))
    return {
        (hash, code, python, json.dumps(json.loads(packages), sort_keys=True)) for hash, code, python, packages in rows
    }


def forget_points(connection: Connection, run_id: int) -> None:
    """Remove the iterations and other numbers of a preflight: it counts in no statistic. Its hello, notes and end
    stay."""
    for table in ("iterations", "phases", "evals", "metrics"):
        connection.change(f"DELETE FROM {table} WHERE run_id = ?", [run_id])


def skip(connection: Connection, job_id: int, ending: Ending, now: float) -> int:
    """Skip the waiting runs of a job whose preflight ended so that none of them can work. Return their number."""
    waiting = connection.column("SELECT id FROM runs WHERE job_id = ? AND state IN ('QUEUED', 'HELD')", [job_id])
    reason = f"preflight: {ending}" + (f": {ending.reason}" if ending.reason else "")
    skipped = Ending(Outcome.SKIPPED, reason=reason)
    jobs.move_all(connection, waiting, Verb.SKIP, actor="worker", ending=skipped, ended_at=now)
    return len(waiting)
