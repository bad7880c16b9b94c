"""A bisection as submissions: one of a few rounds of two versions after the other. They are all that is stored, so the
same command goes on from them."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from queue_runner.analysis.rounds import SAME_WITHIN
from queue_runner.errors import MpsqError
from queue_runner.monitor import answers
from queue_runner.paths import Layout
from queue_runner.referee import request
from queue_runner.referee.bisect_goal import NAME, Query
from queue_runner.referee.bisect_versions import Version
from queue_runner.referee.bisection import Bisection, VersionPair
from queue_runner.referee.trees import Tree
from queue_runner.spec import OF_TIME, JobSpec, Until
from queue_runner.store import read
from queue_runner.submit import plan as submit
from queue_runner.submit.plan import Plan

BUDGET_S = 8 * 3600.0
"""The default of --budget: a night."""

_GROUPS = """
SELECT g.id, g.until, g.closed_at IS NULL, COALESCE(g.closed_why, ''),
    max(COALESCE(max(r.ended_at) - min(r.started_at), 0), 0),
    (SELECT spec_json FROM jobs WHERE group_id = g.id ORDER BY id LIMIT 1)
FROM groups g JOIN jobs j ON j.group_id = g.id JOIN runs r ON r.job_id = j.id
WHERE CASE WHEN g.until LIKE 'bisect {%' THEN json_extract(substr(g.until, 8), '$.key') END = ?
GROUP BY g.id ORDER BY g.id
"""


class VersionSearch(Struct, frozen=True):
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


class StoredSearch(Struct, frozen=True):
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
    skipped: Mapping[int, str] = field(default_factory=dict)


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
    state = StoredSearch(secrets.token_hex(4), Bisection(last, margin=search.margin))
    if anew or not read.is_there(layout.db):
        return state
    with read.reading(layout.db) as connection:
        rows = read.tuples(connection, _GROUPS, [search.key]).fetchall()
        queries = [Query.from_goal(row[1]) for row in rows]
        for (group, goal, is_open, why, elapsed_s, spec), query in zip(rows, queries, strict=True):
            if query.begun != queries[-1].begun:
                continue
            families = answers.of_group(connection, group)
            bisection, skipped = state.bisection, dict(state.skipped)
            if broken := query.failure(families):
                version, reason = broken
                if version in (None, 0, last):
                    again = f"mpsq retry g{group} && mpsq wait g{group}, then repeat the command"
                    raise MpsqError(reason, f"{again}; --anew begins again")
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


def plan(search: VersionSearch, so_far: StoredSearch, pair: VersionPair, environments: Sequence[str]) -> Plan:
    """Return the plan of the first round of two versions, in their environments if any. Raises: UsageError."""
    both = [search.versions[number] for number in (pair.older, pair.newer)]
    rows: dict[str, dict[str, Any]] = {version.name: {"cwd": str(search.cwd)} for version in both}
    title = f"bisect {search.versions[0].name} to {search.versions[-1].name}"
    fields, code = {"title": title, **search.fields}, {}
    if environments:
        fields.pop("python", None)
        code = request.code_of(Tree("", search.cwd, job=so_far.spec))
        for version, name in zip(both, environments, strict=True):
            rows[version.name]["env_name"] = name
    planned = request.plan_of_two("bisect", rows, [code, code], fields, search.metric, search.budget_s)
    query = Query(
        search.key,
        so_far.begun,
        pair.older,
        pair.newer,
        (both[0].name, both[1].name),
        search.metric,
        so_far.bisection,
    )
    until = Until(query.to_goal(NAME), search.budget_s - so_far.elapsed_s)
    return replace(
        submit.in_rounds(planned, until, first=1),
        commits={at: version.identity for at, version in enumerate(both) if version.is_commit},
    )
