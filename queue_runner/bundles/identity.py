"""The identity of the jobs and runs of a bundle in all queues, and the content that no later bundle may change.

A later bundle of a submission may add runs; it changes nothing of what an earlier one brought.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from queue_runner.bundles import question
from queue_runner.bundles.parts import OF_RUN
from queue_runner.bundles.scratch import Scratch
from queue_runner.spec import JobSpec

Row = Mapping[str, Any]

KEPT = (
    *("number", "repeat", "attempt", "outcome", "exit_code", "signal", "reason", "created_at", "claimed_at"),
    *("started_at", "ended_at", "replaces"),
)
"""Columns of a run that are the same in every queue."""
_TEXTS = frozenset({"reason", "text"})


def of_job(group: Row, job: Row) -> str:
    """Return what names a job in all queues: its number and the moments of its submission, to the microsecond."""
    return _hash([group["id"], group["created_at"], job["id"], job["created_at"]])


def of_question(spec: JobSpec) -> str:
    """Return the sha256 of what a job asks: of fields that travel and are not at their default, so that one that is
    added later changes no hash that is stored."""
    default, asked = JobSpec(kind="", name="").fields(), spec.fields()
    return _hash({name: asked[name] for name in question.FIELDS if asked[name] != default[name]})


def of_content(content: Scratch, run: Row) -> str:
    """Return the sha256 of where and how the run ended and of all that it measured: without what its owner may edit,
    and without prose, which another mpsq may clean in another way."""
    found = hashlib.sha256()
    kept = [name for name in KEPT if name not in _TEXTS]
    found.update(_json([run[name] for name in (*kept, "machine_hash", "software_hash")]))
    for part in OF_RUN:
        if part.name != "taints":  # judged anew
            told = [at for at, name in enumerate(part.names) if name not in _TEXTS]
            for row in content.rows(part, run["id"]):
                found.update(_json([part.name, *(row[at] for at in told)]))
    return found.hexdigest()


def machines(content: Scratch) -> dict[int, str]:
    """Return, by submission, the machine of the first run to end that names one: also that of runs which never started.
    Runs that a later bundle adds end later, and leave it as it is."""
    rows = content.connection.execute(
        "SELECT j.group_id, r.machine_hash FROM runs r JOIN jobs j ON j.id = r.job_id"
        " WHERE r.machine_hash IS NOT NULL ORDER BY r.ended_at IS NOT NULL, r.ended_at DESC, r.id DESC"
    )
    return {row["group_id"]: row["machine_hash"] for row in rows}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _hash(value: Any) -> str:
    return hashlib.sha256(_json(value)).hexdigest()
