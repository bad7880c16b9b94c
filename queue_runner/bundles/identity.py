"""The identity of the jobs and runs of a bundle in all queues, and the content that no later bundle may change.

A later bundle of a submission may add runs; it changes nothing of what an earlier one brought.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from queue_runner.bundles import question
from queue_runner.bundles.parts import OF_RUN, BundleGroup, BundleJob, BundleRun
from queue_runner.bundles.scratch import Scratch
from queue_runner.spec import JobSpec
from queue_runner.store.read import tuples

KEPT = (
    *("number", "repeat", "attempt", "outcome", "exit_code", "signal", "reason", "created_at", "claimed_at"),
    *("started_at", "ended_at"),
)
"""Columns of a run that are the same in every queue."""
_TEXTS = frozenset({"reason", "text"})


def of_job(group: BundleGroup, job: BundleJob) -> str:
    """Return the hash that names a job in all queues: of its number and of the moments of its submission."""
    return _hash([group.id, group.created_at, job.id, job.created_at])


def of_question(spec: JobSpec) -> str:
    """Return the sha256 of the fields of a job that travel and are not at their default, without those that were
    added later: no stored hash changes."""
    default, fields = JobSpec(kind="", name="").fields(), spec.fields()
    names = question.FIELDS.keys() - question.ADDED
    return _hash({name: fields[name] for name in names if fields[name] != default[name]})


def of_content(content: Scratch, run: BundleRun) -> str:
    """Return the sha256 of the end of a run and of all its measurements: without fields that its owner may edit, and
    without prose, which another mpsq may clean in another way."""
    names = [name for name in KEPT if name not in _TEXTS]
    values = [getattr(run, name) for name in names]
    # None stands for a column that earlier versions of mpsq had: their hashes stay valid
    digest = hashlib.sha256(_json([*values, None, run.machine_hash, run.software_hash]))
    for part in OF_RUN:
        if part.name != "taints":  # judged anew
            numbers = [at for at, name in enumerate(part.names) if name not in _TEXTS]
            for row in content.rows(part, run.id):
                digest.update(_json([part.name, *(row[at] for at in numbers)]))
    return digest.hexdigest()


def machines(content: Scratch) -> dict[int, str]:
    """Return, by submission, the machine of the first run to end that names one: also that of runs which never started.
    Runs that a later bundle adds end later, and leave it as it is."""
    sql = (
        "SELECT j.group_id, r.machine_hash FROM runs r JOIN jobs j ON j.id = r.job_id"
        " WHERE r.machine_hash IS NOT NULL ORDER BY r.ended_at IS NOT NULL, r.ended_at DESC, r.id DESC"
    )
    return dict(tuples(content.connection, sql))


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _hash(value: Any) -> str:
    return hashlib.sha256(_json(value)).hexdigest()
