"""Wait until the selected runs have ended. A job counts by the last attempt of each of its repeats."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.validity import disturbance
from queue_runner.errors import WaitedJobFailed, WaitTimeout
from queue_runner.model import Outcome, Row, Selector, State
from queue_runner.monitor import blocks, listing, waiting
from queue_runner.monitor.attempts import last_attempts
from queue_runner.monitor.queue_state import idle
from queue_runner.paths import Layout
from queue_runner.store import read

_POLL_S = 0.1


def until_done(
    layout: Layout,
    selectors: Sequence[Selector],
    timeout_s: float | None,
    on_waiting: Callable[[Sequence[Row], Sequence[str]], None],
) -> list[Row]:
    """Wait until none of the runs that `selectors` match can change any more, and return their rows of
    waiting.with_stops.

    A run that will be retried is not the last of its repeat: the retry is stored with its end, and waited for. So is
    the replacement of a disturbed run (--until-valid), which is stored with the end of its group.
    `on_waiting` is called with the rows if there is something to wait for, and whenever one of them changes;
    with them come sentences about targets that do not answer.

    Raises: UsageError (no match), WaitTimeout (after `timeout_s` seconds).
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    with read.reading(layout.db) as connection:
        version, told = None, None
        while True:
            # data_version changes with another connection's commit; without one there is nothing new
            newest = connection.execute("PRAGMA data_version").fetchone()["data_version"]
            if newest != version:
                version = newest
                rows = waiting.with_stops(connection, read.select(connection, selectors))
                if not left(rows) and not _will_be_replaced(connection, selectors, rows):
                    return rows
                silent = blocks.silences(connection, rows)
                states = [*((row["run_id"], row["state"]) for row in rows), *silent.items()]
                if states != told and left(rows):
                    on_waiting(rows, list(silent.values()))
                    told = states
            if deadline is not None and time.monotonic() >= deadline:
                waits = f"{len(left(rows))} of {len(rows)} runs have not ended"
                if not left(rows):
                    waits = "a run that the machine disturbed has not been replaced"
                raise WaitTimeout(f"{waits} after {units.duration(timeout_s)}", "mpsq status shows them")
            time.sleep(_POLL_S)


def until_idle(layout: Layout, timeout_s: float | None, lane: str | None = None) -> None:
    """Return once nothing runs, on this lane if one is given. Raises: WaitTimeout (after `timeout_s` seconds)."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not idle(layout, lane):
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(f"a run has not ended after {units.duration(timeout_s)}", "mpsq status shows it")
        time.sleep(_POLL_S)


def left(rows: Sequence[Row]) -> list[Row]:
    """Return the runs to wait for: those that have not ended, except for what mpsq stopped after failures."""
    return [row for row in rows if row["state"] != State.DONE and row["stopped"] is None]


def _will_be_replaced(connection: sqlite3.Connection, selectors: Sequence[Selector], rows: Sequence[Row]) -> bool:
    """Return whether the end of a group may replace one of its runs, which belongs to a selected job."""
    if all(selector.number is not None for selector in selectors):
        return False  # each is that one run, whatever comes after it
    spoilt = [row for row in last_attempts(rows) if disturbance(row) and _spec(row).get("until_valid")]
    return any(connection.execute(_GOES_ON, [group]).fetchone() for group in {row["group_id"] for row in spoilt})


_GOES_ON = "SELECT 1 FROM v_run WHERE group_id = ? AND state IN ('QUEUED', 'RUNNING') LIMIT 1"


def open_jobs(layout: Layout) -> list[Selector]:
    """Return every job with a run that has not ended. Raises: MpsqError where there is no queue."""
    with read.reading(layout.db) as connection:
        found = connection.execute("SELECT DISTINCT job_id AS job FROM runs WHERE state <> 'DONE' ORDER BY 1")
        return [Selector(str(row["job"]), job=row["job"]) for row in found]


def awaited_sentence(rows: Sequence[Row]) -> str:
    """Return what is waited for, where no id said it."""
    groups = list(dict.fromkeys(f"g{row['group_id']}" for row in rows))
    names = ", ".join(groups[:5]) + (", ..." if len(groups) > 5 else "")
    return f"waiting for {names}: {units.counted(len(left(rows)), 'run')} to end"


def held(rows: Sequence[Row]) -> list[Row]:
    """Return the runs that do not start until they are released."""
    return [row for row in rows if row["state"] == State.HELD]


def held_sentence(rows: Sequence[Row]) -> str:
    """Return a sentence that these runs are held, and how to release them."""
    jobs = list(dict.fromkeys(str(row["job_id"]) for row in rows))
    which = f"run {rows[0]['run']} is"
    if len(rows) > 1:
        which = f"{units.count(len(rows))} runs are"
    names = " ".join(jobs[:5]) + (" ..." if len(jobs) > 5 else "")
    return f"{which} held and will not start until released: mpsq resume {names}"


def failed(rows: Sequence[Row]) -> list[Row]:
    """Return the last attempts that did not end in SUCCEEDED, except probes of --find-max that ran out of memory."""
    bad = [row for row in last_attempts(rows) if row["outcome"] != Outcome.SUCCEEDED]
    return [row for row in bad if row["outcome"] != Outcome.OUT_OF_MEMORY or not is_probe(row)]


def failures(bad: Sequence[Row]) -> list[str]:
    """Return how each of these runs ended; runs that mpsq stopped for one reason are one line."""
    ended = [f"run {row['run']}: {listing.fate(row)}" for row in bad if not row["stopped"]]
    stopped: dict[str, list[str]] = {}
    for row in bad:
        if row["stopped"]:
            stopped.setdefault(f"{row['state']}: {row['stopped']}", []).append(row["run"])
    return ended + [f"{_which(runs)}: {why}" for why, runs in stopped.items()]


def _which(runs: Sequence[str]) -> str:
    if len(runs) == 1:
        return f"run {runs[0]}"
    return f"{units.count(len(runs))} runs ({', '.join(runs[:5])}{', ...' if len(runs) > 5 else ''})"


def refuse_failures(rows: Sequence[Row]) -> None:
    """Raise WaitedJobFailed if a last attempt did not succeed."""
    if not (bad := failed(rows)):
        return
    counted = len(last_attempts(rows))
    told = "the run did not succeed" if counted == 1 else f"none of the {units.count(counted)} runs succeeded"
    if len(bad) < counted:
        told = f"{units.count(len(bad))} of {units.count(counted)} runs did not succeed"
    stops = dict.fromkeys(row["stopped"] for row in bad if row.get("stopped"))
    raise WaitedJobFailed(": ".join([told, *list(stops)[:1]]), f"mpsq why {bad[0]['run']}")


def is_probe(row: Row) -> bool:
    """Return whether a row of v_run is of a job of a search (--find-max)."""
    return bool(_spec(row).get("find_max"))


def _spec(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row.get("spec_json") or "{}")
    return found
