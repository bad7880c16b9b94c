"""Cron lines against tables written by hand, and against a search that tries every minute."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from queue_runner.errors import UsageError
from queue_runner.submit.cron import Cron

Fits = Callable[[datetime], bool]

LINES: dict[str, Fits] = {
    "0 2 * * *": lambda t: (t.hour, t.minute) == (2, 0),
    "*/15 * * * *": lambda t: t.minute in (0, 15, 30, 45),
    "7-59/20 9-17 * * 1-5": lambda t: t.minute in (7, 27, 47) and 9 <= t.hour <= 17 and t.strftime("%a")[0] != "S",
    "0 6 * * 0": lambda t: (t.hour, t.minute) == (6, 0) and t.strftime("%a") == "Sun",
    "0 6 * * 7": lambda t: (t.hour, t.minute) == (6, 0) and t.strftime("%a") == "Sun",
    "0 6 * * SUN": lambda t: (t.hour, t.minute) == (6, 0) and t.strftime("%a") == "Sun",
    "0 6 * * 1": lambda t: (t.hour, t.minute) == (6, 0) and t.strftime("%a") == "Mon",
    "0 6 * * 5-7": lambda t: (t.hour, t.minute) == (6, 0) and t.strftime("%a") in ("Fri", "Sat", "Sun"),
    "0 6 * * fri-sun": lambda t: (t.hour, t.minute) == (6, 0) and t.strftime("%a") in ("Fri", "Sat", "Sun"),
    "0 6 * * 5-0,sun-0": lambda t: (t.hour, t.minute) == (6, 0) and t.strftime("%a") in ("Fri", "Sat", "Sun"),
    "0 6 * * 0-2": lambda t: (t.hour, t.minute) == (6, 0) and t.strftime("%a") in ("Sun", "Mon", "Tue"),
    "0 6 * * tue,Thu,6": lambda t: (t.hour, t.minute) == (6, 0) and t.strftime("%a") in ("Tue", "Thu", "Sat"),
    "30 4 1,15 * fri": lambda t: (t.hour, t.minute) == (4, 30) and (t.day in (1, 15) or t.strftime("%a") == "Fri"),
    "0 0 13 * *": lambda t: (t.hour, t.minute, t.day) == (0, 0, 13),
    "0 0 */10 * sun": lambda t: (t.hour, t.minute) == (0, 0) and t.day % 10 == 1 and t.strftime("%a") == "Sun",
    "0 0 10 * */2": lambda t: (t.hour, t.minute, t.day) == (0, 0, 10) and t.strftime("%w") in "0246",
    "0 12 1 jan-mar *": lambda t: (t.hour, t.minute, t.day) == (12, 0, 1) and t.month <= 3,
    "@weekly": lambda t: (t.hour, t.minute) == (0, 0) and t.strftime("%a") == "Sun",
    "@monthly": lambda t: (t.hour, t.minute, t.day) == (0, 0, 1),
}
START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTES = [START + timedelta(minutes=n) for n in range(1, 75 * 24 * 60)]


@pytest.mark.parametrize("line", LINES)
def test_every_minute_that_fits_and_no_other(line: str) -> None:
    wanted = [minute.timestamp() for minute in MINUTES if minute.minute % 5 in (0, 2) and LINES[line](minute)][:200]
    assert list(islice(Cron(line, "UTC").times_after(START.timestamp()), len(wanted))) == wanted
    assert wanted


CHANGES = [
    # the clocks of Berlin go from 2:00 to 3:00 on 29 March 2026, and from 3:00 back to 2:00 on 25 October
    ("Europe/Berlin", "30 2 * * *", "2026-03-28 12:00", ["29 03:00+02", "30 02:30+02"]),
    ("Europe/Berlin", "15,45 2 * * *", "2026-03-28 12:00", ["29 03:00+02", "30 02:15+02", "30 02:45+02"]),
    ("Europe/Berlin", "0 2,3 * * *", "2026-03-28 12:00", ["29 03:00+02", "30 02:00+02", "30 03:00+02"]),
    ("Europe/Berlin", "*/30 * * * *", "2026-03-29 01:15", ["29 01:30+01", "29 03:00+02", "29 03:30+02"]),
    ("Europe/Berlin", "30 2 * * *", "2026-10-24 12:00", ["25 02:30+02", "26 02:30+01"]),
    ("Europe/Berlin", "0 3 * * *", "2026-10-24 12:00", ["25 03:00+01", "26 03:00+01"]),
    (
        "Europe/Berlin",
        "*/30 * * * *",
        "2026-10-25 01:45",
        ["25 02:00+02", "25 02:30+02", "25 02:00+01", "25 02:30+01", "25 03:00+01"],
    ),
    ("America/New_York", "30 1 * * sun", "2026-10-31 12:00", ["01 01:30-04", "08 01:30-05"]),
    # the clocks of Lord Howe move by half an hour
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03 12:00", ["04 02:30+11", "05 02:15+11"]),
    # Samoa had no 30 December 2011
    ("Pacific/Apia", "0 6 29-31 12 *", "2011-12-29 00:00", ["29 06:00-10", "31 00:00+14", "31 06:00+14"]),
]


@pytest.mark.parametrize(("zone", "line", "start", "wanted"), CHANGES)
def test_a_time_that_the_clocks_leave_out_or_repeat_comes_once(
    zone: str, line: str, start: str, wanted: list[str]
) -> None:
    at = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)).timestamp()
    cron = Cron(line, zone)
    found = [datetime.fromtimestamp(t, ZoneInfo(zone)) for t in islice(cron.times_after(at), len(wanted))]
    assert [f"{t:%d %H:%M%z}"[:-2] for t in found] == wanted


def test_from_whichever_second_the_next_time_is_the_same() -> None:
    cron = Cron("15,45 2 * * *", "Europe/Berlin")
    for night in ("2026-03-28 23:00", "2026-10-24 23:00"):
        start = datetime.fromisoformat(night).replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
        times = list(islice(cron.times_after(start), 4))
        for second in range(int(start), int(times[-1]), 431):
            assert cron.next_after(second) == next(t for t in times if t > second)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "it has 0 fields"),
        ("0 2 * *", "it has 4 fields"),
        ("0 0 2 * * *", "it has 6 fields"),
        ("@reboot", "it has 1 field$"),
        ("9" * 5000 + " * * * *", "a cron line of 5,008 characters is too long"),
        ("60 * * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 0 0 * *", "bad day-of-month"),
        ("0 0 1 13 *", "bad month"),
        ("0 0 * * 8", "bad day-of-week"),
        ("0 0 * * someday", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("30-10 * * * *", "bad minute"),
        ("0 0 * * fri-tue", "bad day-of-week"),
        ("1,,2 * * * *", "bad minute"),
        ("-1 * * * *", "bad minute"),
        ("0 0 30 feb *", "bad day-of-month"),
        ("0 0 31 4,6 *", "bad day-of-month"),
    ],
)
def test_what_is_no_cron_line(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Cron(line, "UTC")


@pytest.mark.parametrize("name", ["", "Mars/Phobos", "Europe", "../Berlin", "/etc/passwd", "local"])
def test_what_is_no_time_zone(name: str) -> None:
    with pytest.raises(UsageError, match="unknown time zone"):
        Cron("0 2 * * *", name)


def test_a_day_that_comes_every_28_years() -> None:
    times = islice(Cron("0 0 29 2 */7", "UTC").times_after(START.timestamp()), 2)
    assert [datetime.fromtimestamp(t, UTC).year for t in times] == [2032, 2060]
