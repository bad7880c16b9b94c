"""The private files of jobs, environments and secret words, and which of them no job needs any more."""

from __future__ import annotations

from pathlib import Path

from queue_runner.host import job_environments, job_secrets
from queue_runner.host.redact import PLACEHOLDER
from queue_runner.paths import Layout
from queue_runner.store.engine import Connection, Engine, looking, writing


def forget_secrets(engine: Engine, layout: Layout) -> None:
    """Remove the environments that no run needs which may still start or be retried, and the secret words that no job
    refers to; a deleted job needs neither.

    A submit writes its files while it has the write lock, which is therefore taken, but only if there is one to remove.
    """
    with looking(engine) as connection:
        if not _unneeded_files(connection, layout):
            return
    with writing(engine) as connection:
        for path in _unneeded_files(connection, layout):
            path.unlink(missing_ok=True)


def _unneeded_files(connection: Connection, layout: Layout) -> list[Path]:
    words, environments = job_secrets.stored(layout), job_environments.files(layout)
    if words:
        texts = connection.column(_HOLDERS)
        needed = {match[0] for text in texts for match in PLACEHOLDER.finditer(text)}
        words = [path for path in words if path.name not in needed]
    if environments:
        needed = set(connection.column(_NEEDED_ENVIRONMENTS))
        environments = [path for path in environments if path.name not in needed]
    return words + environments


_HOLDERS = """
SELECT spec_json AS text FROM jobs WHERE deleted_at IS NULL AND instr(spec_json, '[mpsq-secret-')
UNION ALL SELECT command_json FROM schedules WHERE instr(command_json, '[mpsq-secret-')
"""
"""Texts that contain placeholders of secret words."""
_NEEDED_ENVIRONMENTS = """
SELECT DISTINCT json_extract(spec_json, '$.env_file') FROM jobs WHERE deleted_at IS NULL
AND (id IN (SELECT job_id FROM runs WHERE state <> 'DONE' OR outcome <> 'SUCCEEDED')
OR group_id IN (SELECT id FROM groups WHERE until IS NOT NULL AND closed_at IS NULL))
UNION SELECT env_file FROM schedules
"""
"""Names of the files of jobs that have a run which has not ended, or failed and may be retried, or that may get
further rounds."""
