"""`--keep`: which jobs keep their files. `30d`: those that ended since, `last:20`: the newest, `5GB`: the newest that
fit. A job that any rule keeps is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from queue_runner.errors import UsageError
from queue_runner.units import duration, parse_duration, parse_size, size


class JobFiles(Struct, frozen=True):
    """A job that has ended: when, and the size of its files. `ended_at` is 0 if it was never recorded."""

    job: int
    ended_at: float
    size_bytes: int


class Keep(Struct, frozen=True):
    """The rules; None for one that was not given."""

    age_s: float | None = None
    last: int | None = None
    size_bytes: int | None = None

    @property
    def keeps_all(self) -> bool:
        """Whether there is no rule: the files of every job are kept."""
        return self == Keep()

    def dropped(self, jobs: Sequence[JobFiles], now: float) -> dict[int, str]:
        """Return the ids of the jobs whose files no rule keeps, and why."""
        if self.keeps_all:
            return {}
        reasons = {}
        total = 0
        for rank, job in enumerate(sorted(jobs, key=lambda job: (-job.ended_at, -job.job))):
            total += job.size_bytes
            young = self.age_s is not None and now - job.ended_at <= self.age_s
            among = self.last is not None and rank < self.last
            fits = self.size_bytes is not None and total <= self.size_bytes
            if not (young or among or fits):
                reasons[job.job] = self._reason(job, now)
        return reasons

    def _reason(self, job: JobFiles, now: float) -> str:
        reasons = []
        if self.age_s is not None:
            reasons.append(f"ended {duration(now - job.ended_at)} ago")
        if self.last is not None:
            reasons.append(f"not among the last {self.last}")
        if self.size_bytes is not None:
            reasons.append(f"beyond {size(self.size_bytes)}")
        return ", ".join(reasons)


def parse(texts: Sequence[str]) -> Keep:
    """Parse the rules as typed. Raises: UsageError for an invalid text, or two rules of the same kind."""
    rules: dict[str, float] = {}
    for text in texts:
        name, value = _rule(text.strip())
        if name in rules:
            raise UsageError(
                f'--keep "{text}": another --keep sets a rule of this kind',
                "give at most one age, one last:N and one size",
            )
        rules[name] = value
    last, limit = rules.get("last"), rules.get("size_bytes")
    return Keep(rules.get("age_s"), None if last is None else int(last), None if limit is None else int(limit))


def _rule(text: str) -> tuple[str, float]:
    if match := re.fullmatch(r"last:(\d{1,9})", text):
        return "last", int(match[1])
    if not re.fullmatch(r"[\d.]*", text):  # a bare number could be days, jobs or bytes
        for name, read in (("age_s", parse_duration), ("size_bytes", parse_size)):
            try:
                return name, read(text, "--keep")
            except UsageError:
                continue
    raise UsageError(f'--keep "{text}" is not a rule', "write 30d, last:20 or 5GB")
