"""Parsing and formatting of times of day, in the time zone of the machine."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from queue_runner.errors import UsageError
from queue_runner.units import parse_duration

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_HINT = 'write a time as 22:30, "2026-11-22 06:00", +2h or an ISO time with its offset'
_DAY_S = 86_400.0


def parse_time(text: str, now: float, option: str = "--at") -> float:
    """Parse `22:30` (the next one), `2026-11-22 06:00`, `+2h` or an ISO time to Unix seconds.

    Times without an offset are local. Raises: UsageError for anything else, for a time in the past, and for one
    skipped by a clock change.
    """
    words = text.strip()
    if words.startswith("+"):
        return now + parse_duration(words[1:], option)
    if match := re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", words):
        hour, minute, second = (int(part or 0) for part in match.groups())
        at = _next(now, (hour, minute, second), f"{option} {text}")
    else:
        try:
            moment = datetime.fromisoformat(words)
        except ValueError as error:
            raise UsageError(f"{option} {text} is not a time", _HINT) from error
        if moment.tzinfo is None and re.fullmatch(r"[\d-]+", words):
            raise UsageError(f"{option} {text} has a day but no time", _HINT)
        at = _seconds(moment, f"{option} {text}")
    if at < now - 60:  # a time within the current minute means now
        raise UsageError(f"{option} {text} is in the past", _HINT)
    return at


def _next(now: float, time_of_day: tuple[int, int, int], text: str) -> float:
    today = datetime.fromtimestamp(now)
    hour, minute, second = time_of_day
    try:
        moment = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
    except ValueError as error:
        raise UsageError(f"{text} is not a time", _HINT) from error
    if moment >= today:
        return _seconds(moment, text)
    once_more = moment.replace(fold=1).timestamp()  # later than the first only in the hour repeated by a clock change
    return once_more if once_more >= now else _seconds(moment + timedelta(days=1), text)


def _seconds(moment: datetime, text: str) -> float:
    try:
        at = moment.timestamp()
        again = datetime.fromtimestamp(at, moment.tzinfo)
    except (OverflowError, OSError, ValueError) as error:
        raise UsageError(f"{text} is not a time", _HINT) from error
    if moment.tzinfo is None and again.replace(tzinfo=None) != moment:
        raise UsageError(f"{text} does not exist: the clocks change then", "give a time an hour later")
    return at


def clock(at: float, now: float | None = None, zone: ZoneInfo | None = None) -> str:
    """Format a time of day as precisely as needed: `22:30`, `Sun 06:00`, `2026-12-24 06:00`; local without a zone."""
    now = time.time() if now is None else now
    moment, today = datetime.fromtimestamp(at, zone), datetime.fromtimestamp(now, zone)
    if moment.date() == today.date():
        return f"{moment:%H:%M}"
    if 0 < at - now < 6 * _DAY_S:
        return f"{moment:%a %H:%M}"
    return f"{moment:%Y-%m-%d %H:%M}"


def stamp(at: float) -> str:
    """Format a time with its day and second: `2026-11-22 06:00:00`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def zone(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name. Raises: UsageError when there is none."""
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # unknown, malformed, a folder
        raise UsageError(
            f'unknown time zone "{name}"', "give an IANA name, such as --timezone Europe/Berlin"
        ) from error


def local_zone() -> str | None:
    """Return the IANA name of the machine's time zone; None if it cannot be determined."""
    import tzlocal

    try:
        name = tzlocal.get_localzone_name()
        return zone(name).key if name else None
    except (ValueError, LookupError, OSError, UsageError):
        return None
