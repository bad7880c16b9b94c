"""What a user named, looked up in the transaction that acts on it. `read.select` does the same for readers."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, func, select

from queue_runner.errors import UsageError
from queue_runner.model import Condition, Selector
from queue_runner.store.schema import groups, job_tags, jobs
from queue_runner.terms import Wanted


class Memory:
    """Looks up what many jobs wait for, each set of names once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[tuple[Wanted, ...], tuple[tuple[int, Condition], ...]] = {}

    def dependencies(self, wanted: Iterable[Wanted]) -> tuple[tuple[int, Condition], ...]:
        """As the function of that name."""
        names = tuple(wanted)
        if names not in self._known:
            self._known[names] = tuple(dependencies(self._connection, names))
        return self._known[names]


def dependencies(connection: Connection, wanted: Iterable[Wanted]) -> list[tuple[int, Condition]]:
    """Ids of the jobs that are to be waited for, each once, and what is wanted of each.

    Raises: UsageError for a name of nothing, and for a job that is to end in two ways.
    """
    found: dict[int, Condition] = {}
    for one in wanted:
        for job_id in job_ids(connection, one.selector):
            if found.setdefault(job_id, one.condition) is not one.condition:
                raise UsageError(
                    f"job {job_id} is waited for in two ways: {found[job_id]} and {one.condition}", "give one of them"
                )
    return sorted(found.items())


def job_ids(connection: Connection, selector: Selector) -> list[int]:
    """The ids of the jobs that a selector names. Raises: UsageError when it names nothing."""
    query = select(jobs.c.id).order_by(jobs.c.id)
    if selector.last:
        query = query.where(jobs.c.group_id == select(func.max(groups.c.id)).scalar_subquery())
    elif selector.group is not None:
        query = query.where(jobs.c.group_id == selector.group)
    elif selector.tag is not None:
        query = query.where(jobs.c.id.in_(select(job_tags.c.job_id).where(job_tags.c.tag == selector.tag)))
    else:
        query = query.where(jobs.c.id == selector.job)
    ids = list(connection.execute(query).scalars())
    if not ids:
        raise UsageError(f"{selector.text} names no job", "mpsq list --all shows every job")
    return ids
