"""Cron lines as in crontab(5), and their next times: cronsim, which follows Debian's cron.

At a change of the clocks a time that is skipped comes at once, and one that occurs twice is used the first time only.
Where the hour or minute begins with `*`, the schedule runs by the clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

from queue_runner.errors import UsageError
from queue_runner.times import zone
from queue_runner.units import counted

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
_TO_SUNDAY = re.compile(r"\b([1-6]|mon|tue|wed|thu|fri|sat)-(?:sun|0)(?=[,/]|$)")
"""A range of days that ends with Sunday, such as fri-sun or 5-0; in other fields no range ends with 0."""
MOST_CHARACTERS = 200
"""Longest line: more than any crontab needs, and still short enough for a list."""


class Cron:
    """A cron line and its time zone. Raises: UsageError for an invalid line, or a time that never comes."""

    def __init__(self, line: str, timezone: str) -> None:
        self.zone = zone(timezone)
        if len(line) > MOST_CHARACTERS:
            raise UsageError(f"a cron line of {len(line):,} characters is too long", _HINT)
        text = line.strip().lower()
        self._line = _TO_SUNDAY.sub(r"\1-7", _SHORT.get(text, text))
        if (count := len(self._line.split())) != 5:
            raise UsageError(f'"{line}" is not a cron line: it has {counted(count, "field")}', _HINT)
        try:
            never = self.next_after(0.0) is None
        except CronSimError as error:
            raise UsageError(f'"{line}" is not a cron line: {str(error).lower()}', _HINT) from error
        if never:
            raise UsageError(f'"{line}" never occurs', "correct the day or the month")

    def next_after(self, at: float) -> float | None:
        """Return the first time (Unix seconds) after `at`; None if none comes within 50 years."""
        return next(self.times_after(at), None)

    def times_after(self, at: float) -> Iterator[float]:
        """Yield the times (Unix seconds) after `at` in order."""
        now = datetime.fromtimestamp(at, UTC).astimezone(self.zone)
        times = (moment.timestamp() for moment in CronSim(self._line, now))
        return (
            time for time in times if time > at
        )  # in an hour that the clock repeats, those of its first pass come too
