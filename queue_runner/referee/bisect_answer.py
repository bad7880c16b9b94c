"""The answer of a bisection, in words and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.intervals import Judgement
from queue_runner.referee.bisect_search import StoredSearch, VersionSearch
from queue_runner.referee.bisect_versions import Version
from queue_runner.referee.bisection import CannotTell, NamedStep, VersionPair


def of(search: VersionSearch, so_far: StoredSearch, missing: Mapping[int, str]) -> BisectAnswer | VersionPair | None:
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
