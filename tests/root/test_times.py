"""Times of day where clocks change, and a worker whose clock is set back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from queue_runner import config_file
from queue_runner.errors import UsageError
from queue_runner.host import locks
from queue_runner.paths import Layout
from queue_runner.times import parse_time
from queue_runner.worker import main_loop

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., float]]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield lambda text, fold=0: datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("now", "said", "then"),
    [
        (("2026-10-25 02:45", 0), "02:30", ("2026-10-25 02:30", 1)),  # clocks show it once more
        (("2026-10-25 02:15", 0), "02:30", ("2026-10-25 02:30", 0)),
        (("2026-10-25 02:15", 1), "02:30", ("2026-10-25 02:30", 1)),
        (("2026-10-25 02:45", 1), "02:30", ("2026-10-26 02:30", 0)),
        (("2026-10-24 23:00", 0), "02:30", ("2026-10-25 02:30", 0)),
        (("2026-03-29 03:10", 0), "02:30", ("2026-03-30 02:30", 0)),
        (("2026-03-28 03:10", 0), "03:00", ("2026-03-29 03:00", 0)),
        (("2026-11-21 22:31", 0), "22:30", ("2026-11-22 22:30", 0)),
    ],
)
def test_the_next_time_that_clocks_show_it(
    berlin: Callable[..., float], now: tuple[str, int], said: str, then: tuple[str, int]
) -> None:
    assert parse_time(said, berlin(*now)) == berlin(*then)


def test_a_time_that_clocks_leave_out(berlin: Callable[..., float]) -> None:
    for now, said in (("2026-03-29 01:00", "02:30"), ("2026-03-28 12:00", "2026-03-29 02:30")):
        with pytest.raises(UsageError, match="does not exist: the clocks change then"):
            parse_time(said, berlin(now))


def test_a_worker_whose_clock_is_set_back_does_not_sit_out_the_difference(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = locks.try_lock(locks.worker_lock_path(layout.home))
    assert held is not None
    manager = main_loop.ServiceManager()
    worker = main_loop.Worker(layout, config_file.load(layout.config), held, manager, until_idle=True)
    jobs = worker._scheduler
    jobs.add_job(lambda: None, "interval", seconds=1, id="step")
    jobs.start(paused=True)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 3600)
    jobs.modify_job("step", next_run_time=datetime.fromtimestamp(wall() + 3600, UTC))
    worker._look_at_the_clock()
    due = jobs.get_job("step").next_run_time
    assert due <= datetime.now(UTC)
    worker._look_at_the_clock()  # it acts once
    assert jobs.get_job("step").next_run_time == due
    jobs.shutdown()
    held.close()
