"""Wait until what the user named has ended. A job is as good as the last attempt of each of its repeats."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from queue_runner import change, units
from queue_runner.errors import WaitTimeout
from queue_runner.model import Outcome, Selector, State
from queue_runner.paths import Layout
from queue_runner.store import read

_POLL_S = 0.1

Row = Mapping[str, Any]


def until_done(
    layout: Layout, selectors: Sequence[Selector], timeout_s: float | None, on_waiting: Callable[[], None]
) -> list[Row]:
    """Rows of v_run of all that `selectors` name, once none of them can change any more.

    `on_waiting` is called once, when there is something to wait for.

    Raises: UsageError (names nothing), WaitTimeout (after `timeout_s` seconds).
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with read.reading(layout.db) as connection:
        version = None
        while True:
            # another connection's commit changes data_version: without one there is nothing new to look at
            newest = connection.execute("PRAGMA data_version").fetchone()["data_version"]
            if newest != version:
                version = newest
                rows = read.select(connection, selectors)
                if not left(rows):
                    return list(rows)
                on_waiting()
                on_waiting = _nothing
            if deadline is not None and time.monotonic() >= deadline:
                waits = f"{len(left(rows))} of {len(rows)} runs have not ended after {units.duration(timeout_s)}"
                raise WaitTimeout(waits, "mpsq status shows them")
            time.sleep(_POLL_S)


def until_idle(layout: Layout, timeout_s: float | None) -> None:
    """Return once nothing runs. Raises: WaitTimeout (after `timeout_s` seconds)."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not change.idle(layout):
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(f"a run has not ended after {units.duration(timeout_s)}", "mpsq status shows it")
        time.sleep(_POLL_S)


def _nothing() -> None:
    pass


def left(rows: Sequence[Row]) -> list[Row]:
    """The runs that have not ended."""
    return [row for row in rows if row["state"] != State.DONE]


def last_attempts(rows: Sequence[Row]) -> list[Row]:
    """For each repeat of each job the attempt that counts: the last."""
    last: dict[tuple[int, int], Row] = {}
    for row in rows:
        key = (row["job_id"], row["repeat"])
        if key not in last or row["attempt"] > last[key]["attempt"]:
            last[key] = row
    return list(last.values())


def failed(rows: Sequence[Row]) -> list[Row]:
    """The last attempts that ended in anything but SUCCEEDED."""
    return [r for r in last_attempts(rows) if r["state"] == State.DONE and r["outcome"] != Outcome.SUCCEEDED]
