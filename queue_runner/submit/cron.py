"""Cron lines as in crontab(5), and their next times. APScheduler's triggers search the calendar.

Differences from APScheduler are handled here: its week begins with Monday = 0 (crontab: Sunday = 0 and 7), and it
requires every field to match, whereas crontab accepts a day that matches either day-of-month or day-of-week when
neither begins with `*` (so `0 0 */2 * mon` requires both, as in every cron since Vixie's).

The search uses the wall clock, as if there were no clock changes; each time found is then converted to real time. A
time skipped by a clock change is delayed by the length of the jump; one that occurs twice is used the first time only,
except where the hour is `*` or `*/n`: such a schedule runs every hour of the clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from queue_runner.errors import UsageError
from queue_runner.times import zone

_HINT = 'five fields: minute, hour, day of month, month, day of week, as in "0 2 * * *" (2:00 every night)'
_SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MOST_CHARACTERS = 200
"""Longest line: more than any crontab needs, and still short enough for a list."""
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MOST_SHIFT = timedelta(hours=3)
"""Upper bound of the clock changes in tzdata since cron was written."""


@dataclass(frozen=True)
class _Field:
    """One of the five fields: its name, its bounds, and the names of its numbers (from `first` on)."""

    name: str
    first: int
    last: int
    words: tuple[str, ...] = ()


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


class Cron:
    """A cron line and its time zone. Raises: UsageError for an invalid line, or a time that never comes."""

    def __init__(self, line: str, timezone: str) -> None:
        self.zone = zone(timezone)
        if len(line) > MOST_CHARACTERS:
            raise UsageError(f"a cron line of {len(line):,} characters is too long", _HINT)
        texts = _SHORT.get(line.strip().lower(), line).lower().split()
        if len(texts) != len(_FIELDS):
            raise UsageError(f'"{line}" is not a cron line: it has {len(texts)} field{"s" * (len(texts) != 1)}', _HINT)
        minutes, hours, days, months, weekdays = (_read(f, t) for f, t in zip(_FIELDS, texts, strict=True))
        either = not texts[2].startswith("*") and not texts[4].startswith("*")
        if not either and not any(day <= _LONGEST[month - 1] for day in days for month in months):
            raise UsageError(
                f'"{line}" never occurs: no such month has a day {min(days)}', "correct the day or the month"
            )
        self._by_the_clock = texts[1].startswith("*")
        at = {"hour": _list(hours), "minute": _list(minutes), "second": "0", "month": _list(months), "timezone": UTC}
        of_week = _list({(day - 1) % 7 for day in weekdays})
        if either:
            self._wall = OrTrigger([CronTrigger(day=_list(days), **at), CronTrigger(day_of_week=of_week, **at)])
        else:
            self._wall = CronTrigger(day=_list(days), day_of_week=of_week, **at)
        if self.next_after(0.0) is None:
            raise UsageError(f'"{line}" never occurs', _HINT)

    def next_after(self, at: float) -> float | None:
        """Return the first time (Unix seconds) after `at`; None if the calendar ends before."""
        now = datetime.fromtimestamp(at, UTC)
        wall = now.astimezone(self.zone).replace(tzinfo=UTC)
        before, after = ((now + shift).astimezone(self.zone).utcoffset() for shift in (-_MOST_SHIFT, _MOST_SHIFT))
        if before != after:
            wall -= _MOST_SHIFT  # a wall time shown before, or skipped, may still be due
        best: datetime | None = None
        for moment in self._walls_after(wall):
            first, *again = self._real(moment)
            later = [real for real in (first, *again) if real > now]
            best = min([*later, *([best] if best else [])], default=None)
            if first > now:
                break
        return best.timestamp() if best else None

    def times_after(self, at: float) -> Iterator[float]:
        """Yield the times (Unix seconds) after `at` in order, while there are any."""
        following = self.next_after(at)
        while following is not None:
            yield following
            following = self.next_after(following)

    def _walls_after(self, wall: datetime) -> Iterator[datetime]:
        """Yield the wall times that match the line, in ascending order."""
        while True:
            found = self._wall.get_next_fire_time(None, wall + timedelta(microseconds=1))
            if found is None:
                return
            yield found
            wall = found

    def _real(self, wall: datetime) -> list[datetime]:
        """Return the real times at which the clock shows `wall`: one, or both where repetition counts."""
        first, second = (wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        return [first, second] if self._by_the_clock and second > first else [first]


def _list(numbers: set[int]) -> str:
    return ",".join(str(number) for number in sorted(numbers))


def _read(field: _Field, text: str) -> set[int]:
    """Return the numbers that a field matches."""
    return {number for part in text.split(",") for number in _part(field, part)}


def _part(field: _Field, part: str) -> range:
    match = re.fullmatch(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", part, flags=re.ASCII)
    if match is None:
        raise UsageError(
            f'cron: {field.name} "{part}" cannot be understood', "write it like *, 5, 1-5, 1,3, */15 or 1-5/2"
        )
    star, low, high, step = match.groups()
    if star:
        first, last = field.first, 6 if field.last == 7 else field.last
    else:
        first = last = _number(field, low)
        if high is not None:
            last = _number(field, high)
            if field.last == 7 and last == 0 < first:
                last = 7  # fri-sun
        elif step is not None:
            raise UsageError(f'cron: {field.name} "{part}" has a step but no range', f"write {low}-{field.last}/{step}")
    if step is not None and int(step) == 0:
        raise UsageError(f'cron: {field.name} "{part}" has a step of 0', "give 1 or more")
    if last < first:
        raise UsageError(f'cron: {field.name} "{part}" runs backwards', "write it as two ranges separated by a comma")
    return range(first, last + 1, int(step or 1))


def _number(field: _Field, word: str) -> int:
    if word in field.words:
        return field.first + field.words.index(word)
    if not word.isdecimal() or not field.first <= int(word) <= field.last:
        names = f" or {field.words[0]}-{field.words[-1]}" if field.words else ""
        raise UsageError(f'cron: unknown {field.name} "{word}"', f"use {field.first}-{field.last}{names}")
    return int(word)
