"""Jobs behind held ones: for the worker and for readers, who do without SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Sequence

UNDECIDED = "SELECT job_id, on_job_id FROM v_dependency WHERE verdict = 'undecided'"
"""Pairs of a job and one that it waits for."""


def behind(held: Collection[int], undecided: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the jobs that wait, even indirectly, for a `held` one, and that; `undecided` has the rows of UNDECIDED."""
    found: dict[int, int] = {}
    while more := {job: found.get(on, on) for job, on in undecided if job not in found and (on in found or on in held)}:
        found |= more
    return found
