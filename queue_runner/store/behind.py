"""Jobs behind held ones: for the worker and for readers, who do without SQLAlchemy."""

from __future__ import annotations

from collections.abc import Collection, Sequence

UNDECIDED = """
SELECT job_id, on_job_id FROM v_dependency WHERE verdict = 'undecided'
UNION SELECT d.job_id, s.id FROM v_dependency d
JOIN jobs o ON o.id = d.on_job_id JOIN jobs w ON w.id = d.job_id JOIN jobs s ON s.group_id = o.group_id
WHERE d.verdict = 'undecided' AND w.group_id <> o.group_id AND json_extract(o.spec_json, '$.until_valid')
AND EXISTS (SELECT 1 FROM runs WHERE job_id = s.id AND state <> 'DONE')
"""
"""Pairs of a job and one that it waits for: with --until-valid also of those in the group of that."""


def behind(held: Collection[int], undecided: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the jobs that wait, even indirectly, for a `held` one, and that; `undecided` has the rows of UNDECIDED."""
    found: dict[int, int] = {}
    while more := {job: found.get(on, on) for job, on in undecided if job not in found and (on in found or on in held)}:
        found |= more
    return found
