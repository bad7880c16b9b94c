"""Delete jobs that have ended: hide them and remove their files, or take them out of the database altogether.

The database comes first, in one transaction; the files follow. A crash between the two leaves files of a job that is
hidden, or of none: `mpsq gc` removes both, and so does deleting again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queue_runner import failpoints
from queue_runner.errors import UsageError
from queue_runner.host import trash
from queue_runner.model import Selector
from queue_runner.paths import Layout


@dataclass(frozen=True)
class Deleted:
    """`jobs` by id; `stuck` are sentences on files that could not be removed."""

    jobs: tuple[int, ...]
    freed_bytes: int
    stuck: tuple[str, ...]


def delete(layout: Layout, selectors: Sequence[Selector], *, results: bool) -> Deleted:
    """Delete every job that is named, or none of them. With `results` their numbers go as well.

    Raises: UsageError (names nothing, or a single run), MpsqError for a job that has not ended or that is needed.
    """
    from queue_runner.store import delete as removal
    from queue_runner.store import resolve
    from queue_runner.store.engine import open_engine, writing
    from queue_runner.store.read import reading

    for selector in selectors:
        if selector.number is not None:
            raise UsageError(
                f"{selector.text} is a run of job {selector.job}", f"jobs are deleted whole: {selector.job}"
            )
    with reading(layout.db):
        pass  # says that there is no queue, or that its schema is another
    engine = open_engine(layout.db, check=False)
    with writing(engine) as connection:
        job_ids = sorted({id for selector in selectors for id in resolve.job_ids(connection, selector)})
        names = removal.hide(connection, job_ids, actor="user")
        if results:
            removal.erase(connection, job_ids)
    engine.dispose()
    failpoints.reach("delete.committed")
    freed, stuck = 0, []
    for name in names:
        folder = layout.run_dir(name)
        size = trash.used_bytes(folder)
        try:
            trash.remove_gently([folder])
            freed += size
        except OSError as error:
            stuck.append(f"run {name}: {error.filename or folder}: {error.strerror or error}")
    return Deleted(tuple(job_ids), freed, tuple(stuck))
