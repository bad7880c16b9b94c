"""A bisection as submissions: one of a few rounds of two versions after the other. They are all that is stored, so the
same command goes on from them. Last, its answer, in words and as JSON."""

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

from queue_runner import units
from queue_runner.analysis.intervals import Judgement
from queue_runner.analysis.rounds import SAME_WITHIN
from queue_runner.errors import MpsqError
from queue_runner.monitor import answers
from queue_runner.paths import Layout
from queue_runner.referee import request
from queue_runner.referee.bisect_goal import NAME, Query
from queue_runner.referee.bisect_versions import Version
from queue_runner.referee.bisection import Bisection, CannotTell, NamedStep, VersionPair
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


# -- its answer --------------------------------------------------------------------------------------------------------


def answer(
    search: VersionSearch, so_far: StoredSearch, missing: Mapping[int, str]
) -> BisectAnswer | VersionPair | None:
    """Return the answer, or the pair to measure next; None while the newest one still is."""
    if so_far.open_group is not None:
        return None
    bisection = so_far.bisection.without(missing)
    result = bisection.next(so_far.last)
    if isinstance(result, VersionPair):
        if so_far.elapsed_s < search.budget_s:
            return result
        budget = units.duration(search.budget_s)
        why = f"the budget of {budget} is over after {units.counted(bisection.n_rounds, 'round')}"
        result = CannotTell(f"{why}: the same command with a larger --budget continues")
    skipped = {search.versions[number].name: why for number, why in sorted({**so_far.skipped, **missing}.items())}
    likeliest = [search.versions[number].name for number in bisection.likeliest()]
    return BisectAnswer(search, result, so_far.groups, bisection.n_rounds, likeliest, skipped)


class BisectAnswer(Struct, frozen=True):
    """The step, or why there is none, with the submissions and rounds that it stands on. `likeliest` are the versions
    that may be the first of the step, `skipped` those that could not be measured, and why."""

    search: VersionSearch
    result: NamedStep | CannotTell
    groups: tuple[int, ...]
    rounds: int
    likeliest: list[str]
    skipped: Mapping[str, str]

    @property
    def step(self) -> NamedStep | None:
        return self.result if isinstance(self.result, NamedStep) else None

    def text(self) -> str:
        """Return the answer, its size, and where the evidence is, a line each."""
        lines = []
        if isinstance(self.result, NamedStep):
            older, newer = (self.search.versions[number] for number in (self.result.older, self.result.newer))
            gap = [version.name for version in self.search.versions[self.result.older + 1 : self.result.newer]]
            first = f"one of {', '.join([*gap, newer.name])}" if gap else _named(newer)
            lines.append(f"the step is {first}: {self._size(self.result.judgement, older.name)}")
            if self.result.is_part:
                lines.append("  it is smaller than the difference of the ends, so there are others")
        else:
            lines.append(f"cannot tell: {self.result.why}")
            if self.result.ends and self.likeliest:
                lines.append(f"  it is probably one of {', '.join(self.likeliest)}")
        if ends := self.result.ends:
            good, bad = (self.search.versions[number].name for number in (0, -1))
            lines.append(f"  {bad} is {self._size(ends, good)}")
        lines += [f"  skipped {name}: {why}" for name, why in self.skipped.items()]
        groups = " ".join(f"g{group}" for group in self.groups)
        count = units.counted(self.rounds, "round")
        return "\n".join([*lines, f"  {count} of two versions: mpsq report {groups} --html page.html draws them"])

    def _size(self, judged: Judgement, older: str) -> str:
        """Return by how much a version differs from an older one."""
        mean, low, high = judged.mean, judged.low, judged.high
        if name := self.search.metric:
            word = f"{name} {'higher' if mean > 0 else 'lower'}"
            size = f"{units.measured(mean, low, high, sign=True)} ({units.interval(low, high)})"
        else:
            word = "faster" if mean > 0 else "slower"
            ends = math.exp(low), math.exp(high)
            size = f"{units.ratio(math.exp(mean), *ends)} ({units.ratio_interval(*ends).removesuffix(' x')})"
        return f"{word} than {older}, {size} in {units.counted(judged.n, 'round')}"

    def as_json(self) -> dict[str, Any]:
        """Return it as docs/json.md describes."""
        step = self.step
        ends = self.result.ends
        names = [version.name for version in self.search.versions]
        return {
            "answer": "cannot tell" if step is None else "step",
            "why": self.result.why if isinstance(self.result, CannotTell) else "",
            "older": None if step is None else names[step.older],
            "newer": None if step is None else names[step.newer],
            "metric": self.search.metric or None,
            "step": None if step is None else self._change(step.judgement),
            "ends": None if ends is None else self._change(ends),
            "likeliest": self.likeliest,
            "skipped": [{"version": name, "why": why} for name, why in self.skipped.items()],
            "rounds": self.rounds,
            "groups": list(self.groups),
        }

    def _change(self, judged: Judgement) -> dict[str, Any]:
        ends = (judged.mean, judged.low, judged.high)
        change, low, high = ends if self.search.metric else map(math.exp, ends)
        return {"change": change, "low": low, "high": high, "rounds": judged.n}


def _named(version: Version) -> str:
    return f'{version.name} "{version.title}"' if version.title else version.name
