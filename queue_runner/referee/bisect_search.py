"""A bisection as submissions: one of a few rounds of two versions after the other. They are all that is stored, so the
same command goes on from them."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from queue_runner.analysis.rounds import SAME_WITHIN
from queue_runner.errors import MpsqError, UsageError
from queue_runner.monitor import answers
from queue_runner.paths import Layout
from queue_runner.referee import request
from queue_runner.referee.bisect_goal import Query
from queue_runner.referee.bisect_versions import Version
from queue_runner.referee.bisection import Bisection, VersionPair
from queue_runner.referee.trees import Tree
from queue_runner.spec import OF_TIME, JobSpec, Until
from queue_runner.store import read
from queue_runner.submit import from_file
from queue_runner.submit import plan as submit
from queue_runner.submit.from_file import Line
from queue_runner.submit.plan import Plan

BUDGET_S = 8 * 3600.0
"""The default of --budget: a night."""

_GROUPS = """
SELECT g.id, g.until, g.closed_at IS NULL, COALESCE(g.closed_why, ''), COALESCE(max(r.ended_at) - min(r.started_at), 0),
    (SELECT spec_json FROM jobs WHERE group_id = g.id ORDER BY id LIMIT 1)
FROM groups g JOIN jobs j ON j.group_id = g.id JOIN runs r ON r.job_id = j.id
WHERE CASE WHEN g.until LIKE 'bisect {%' THEN json_extract(substr(g.until, 8), '$.key') END = ?
GROUP BY g.id ORDER BY g.id
"""


@dataclass(frozen=True, slots=True)
class VersionSearch:
    """A bisection as its command gives it. `metric` is "" for the time, `margin` that of "the same"."""

    versions: Sequence[Version]
    metric: str
    margin: float | None
    budget_s: float
    cwd: Path
    fields: Mapping[str, Any]
    pip: str = ""

    @property
    def key(self) -> str:
        """A hash of all that the command says, but its budget: the same command finds its search by it."""
        parts = [
            [version.identity for version in self.versions],
            str(self.cwd),
            self.metric,
            self.pip,
            dict(self.fields),
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class StoredSearch:
    """The stored part of a search. `groups` are its submissions, `open_group` that of which rounds may follow, with its
    `until`; `last` is the pair of the newest and `last_why` why its rounds ended; `spec` has the code of the first.
    `skipped` says why, by version."""

    begun: str
    bisection: Bisection
    groups: tuple[int, ...] = ()
    open_group: int | None = None
    until: Until | None = None
    last: VersionPair | None = None
    last_why: str = ""
    elapsed_s: float = 0.0
    spec: JobSpec | None = None
    skipped: Mapping[int, str] = ()  # type: ignore[assignment]


def of_command(versions: Sequence[Version], cwd: Path, pip: str, fields: Mapping[str, Any]) -> VersionSearch:
    """Return the search. Raises: UsageError for options that a bisection cannot have."""
    request.refuse(fields, "bisect")
    metric = request.metric_of(fields)
    margins = fields.get("same_within") or {}
    margin = margins.get(metric) if metric else math.log1p(margins.get(OF_TIME, SAME_WITHIN))
    budget_s = fields.get("budget_s") or BUDGET_S
    rest = {name: value for name, value in fields.items() if name not in ("budget_s", "cwd", "title")}
    return VersionSearch(versions, metric, margin, budget_s, cwd, rest, pip)


def stored(layout: Layout, search: VersionSearch, *, anew: bool = False) -> StoredSearch:
    """Return the stored part of a search; with `anew` nothing. Raises: MpsqError where an end of it failed."""
    last = len(search.versions) - 1
    state = StoredSearch(secrets.token_hex(4), Bisection(last, margin=search.margin), skipped={})
    if anew or not read.is_there(layout.db):
        return state
    with read.reading(layout.db) as connection:
        rows = read.tuples(connection, _GROUPS, [search.key]).fetchall()
        queries = [Query.from_json(row[1].partition(" ")[2]) for row in rows]
        for (group, goal, is_open, why, elapsed_s, spec), query in zip(rows, queries, strict=True):
            if query.begun != queries[-1].begun:
                continue
            families = answers.of_group(connection, group)
            bisection, skipped = state.bisection, dict(state.skipped)
            if broken := query.failure(families):
                version, reason = broken
                if version in (None, 0, last):
                    raise MpsqError(reason, "with --anew, the same command tries it again")
                assert version is not None
                skipped[version] = reason
                bisection = bisection.without([version])
            else:
                bisection = replace(bisection, measured=(*bisection.measured, query.measured(families)))
            state = StoredSearch(
                begun=query.begun,
                bisection=bisection,
                groups=(*state.groups, group),
                open_group=group if is_open else None,
                until=Until(goal, search.budget_s),
                last=VersionPair(query.older, query.newer),
                last_why=why,
                elapsed_s=state.elapsed_s + elapsed_s,
                spec=state.spec or JobSpec.from_json(spec),
                skipped=skipped,
            )
    return state


def plan(search: VersionSearch, so_far: StoredSearch, pair: VersionPair, environments: Mapping[int, str]) -> Plan:
    """Return the plan of the first round of two versions. Raises: UsageError."""
    both = [(number, search.versions[number]) for number in (pair.older, pair.newer)]
    lines = [
        Line(version.name, version.name, {"name": version.name, "command": list(search.fields["argv"])})
        for _, version in both
    ]
    for line, (number, _) in zip(lines, both, strict=True):
        assert isinstance(line.content, dict)
        line.content["cwd"] = str(search.cwd)
        if number in environments:
            line.content["env_name"] = environments[number]
    defaults = {name: value for name, value in search.fields.items() if name != "argv"}
    if environments:
        defaults.pop("python", None)
    title = f"bisect {search.versions[0].name} to {search.versions[-1].name}"
    planned = from_file.plan_of(lines, {"title": title, **defaults, "by": search.metric or None})
    if len(planned.jobs) != len(both):
        raise UsageError("an option of mpsq bisect cannot have several values", "give each option one value")
    spec = planned.jobs[0].spec
    changes = {
        "copy": True,
        "seed": request.drawn(),
        "seed_by_round": True,
        "timeout_s": search.budget_s if spec.timeout_s is None else spec.timeout_s,
        "within": (*request.SEALED, "--"),
        **(request.code_of(Tree("", search.cwd, job=so_far.spec)) if environments else {}),
    }
    query = Query(
        search.key,
        so_far.begun,
        pair.older,
        pair.newer,
        (both[0][1].name, both[1][1].name),
        search.metric,
        so_far.bisection,
    )
    jobs = tuple(replace(job, spec=job.spec.changed(**changes), repeats=1) for job in planned.jobs)
    until = Until(query.to_goal(), search.budget_s - so_far.elapsed_s)
    return replace(
        submit.in_rounds(replace(planned, jobs=jobs), until, first=1),
        commits={at: version.identity for at, (_, version) in enumerate(both) if version.is_commit},
    )
