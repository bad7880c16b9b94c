"""Delete jobs that have ended: hide them and remove their files, or remove them from the database as well.

The database is changed first, in one transaction; the files follow. A crash between the two leaves files of a hidden or
a removed job: `mpsq gc` removes both, and so does deleting again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Struct

from queue_runner import extensions
from queue_runner.errors import UsageError
from queue_runner.host import failpoints, reserve, trash
from queue_runner.model import Selector
from queue_runner.paths import Layout


class Deleted(Struct, frozen=True):
    """The result of a deletion. `jobs` by id, `already` of them deleted before; `stuck` are sentences on files that
    could not be removed."""

    jobs: tuple[int, ...]
    freed_bytes: int
    stuck: tuple[str, ...]
    already: int = 0


def delete(layout: Layout, selectors: Sequence[Selector], *, results: bool) -> Deleted:
    """Delete every selected job, or none of them. With `results` their numbers are deleted as well.

    Raises: UsageError (no match, a single run, or results that a contest counts), MpsqError for a job that has not
    ended or that is needed.
    """
    from queue_runner.store import private_files, removal, resolve
    from queue_runner.store.engine import open_engine, writing
    from queue_runner.store.read import reading

    for selector in selectors:
        if selector.number is not None:
            raise UsageError(
                f"{selector.text} is a run of job {selector.job}", f"delete the whole job: mpsq delete {selector.job}"
            )
    reserve.release(layout)  # before the first look, which on some disks needs space too
    with reading(layout.db):
        pass  # reports a missing queue or another schema
    checks = extensions.erasure_checks() if results else []
    engine = open_engine(layout.db, check=False)
    with writing(engine) as connection:
        job_ids = sorted({id for selector in selectors for id in resolve.job_ids(connection, selector)})
        already = connection.value(
            "SELECT count(*) FROM jobs WHERE deleted_at IS NOT NULL AND id IN (SELECT value FROM json_each(?))",
            [json.dumps(job_ids)],
        )
        names = removal.hide(connection, job_ids, actor="user")
        if results:
            for check in checks:
                check(connection, job_ids)
            removal.erase(connection, job_ids)
    failpoints.reach("delete.committed")
    private_files.forget_secrets(engine, layout)
    engine.dispose()
    freed, stuck = 0, []
    for name in names:
        folder = layout.run_dir(name)
        size = trash.used_bytes(folder)
        try:
            trash.remove_gently([folder])
            freed += size
        except OSError as error:
            stuck.append(f"run {name}: {error.filename or folder}: {error.strerror or error}")
    return Deleted(tuple(job_ids), freed, tuple(stuck), already)
