"""The values of each page, from what monitor/ returns for the same question on the command line."""

from __future__ import annotations

import shlex
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import tables, units
from queue_runner.errors import UsageError
from queue_runner.model import Outcome, Row, Selector, State, parse_selector
from queue_runner.monitor import eta, job_table, listing, logs, show, show_text, status_text, watch, why
from queue_runner.monitor.status import Observation, Status
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.times import clock

WAITING = 100
"""Number of waiting runs on the first page; the history has all."""
PAGE = 100
"""Number of jobs on a page of the history, unless asked otherwise."""
PAGE_MOST = 10_000
PATIENCE_S = 3.0
"""How long a page waits for a database that somebody has locked, before it says so."""

Values = dict[str, Any]

STATES = ("queued", "held", "running", *(outcome.value.lower() for outcome in Outcome))


def queue(layout: Layout) -> Values:
    """Return the values of the first page. Raises: MpsqError if there is no queue to read."""
    looks = watch.look_again(layout, WAITING, PATIENCE_S)
    try:
        seen = next(looks)
    finally:
        looks.close()
    assert seen is not None  # the first look always finds something
    return queue_parts(seen)


def queue_parts(seen: Observation) -> Values:
    """Return what the parts of the first page show."""
    found = seen.status
    now = time.time()
    return {
        "facts": _facts(found),
        "running": _running(found, seen.newest_s),
        "waiting": [_waiting(row, place, found, now) for place, row in enumerate(found.waiting, start=1)],
        "waiting_count": found.waiting_count,
        "ended": [_ended(row, now) for row in found.ended],
    }


def _facts(found: Status) -> list[tuple[str, str]]:
    facts = [*status_text.lane(found), ("waiting", status_text.waiting_count(found)), *status_text.plan(found)]
    return [*facts, *status_text.hooks(found), ("disk", status_text.disk(found.disk))]


def _running(found: Status, newest_s: Sequence[float]) -> Values | None:
    row, at = found.running, found.progress
    if row is None:
        return None
    shown = named(row) | {"trouble": status_text.trouble(found), "suspended": row["paused_at"] is not None}
    if at is not None:
        shown |= {
            "done": at.iters,
            "planned": at.planned_iters,
            "facts": [
                ("phase", at.phase),
                (
                    "iteration",
                    f"{units.count(at.iters)}{f' of {units.count(at.planned_iters)}' if at.planned_iters else ''}",
                ),
                ("per iteration", f"{units.ms(at.median_s)} ms" if at.median_s is not None else None),
                ("loss", units.loss(at.loss) if at.loss is not None else None),
                ("so far", units.duration(at.elapsed_s)),
                ("remaining", f"about {units.duration(at.left_s)} of training" if at.left_s else None),
            ],
        }
    return shown | {"spark": spark(newest_s)}


def spark(times_s: Sequence[float]) -> Values | None:
    """Return the newest iterations' times as points of a line in a box of 100 x 100; None for fewer than two."""
    if len(times_s) < 2:
        return None
    low, high = min(times_s), max(times_s)
    span = max(high - low, 0.05 * high) or 1.0  # the noise of a steady run is a flat line, as in status --watch
    step, top = 100 / (len(times_s) - 1), (low + high + span) / 2
    points = " ".join(f"{n * step:.2f},{(top - t) / span * 100:.2f}" for n, t in enumerate(times_s))
    return {"points": points, "n": len(times_s), "low": units.short_duration(low), "high": units.short_duration(high)}


def named(row: Row) -> Values:
    """Return what every page says of a run, from its row of v_run."""
    item = listing.run_object(row)
    return {
        "run": item["run"],
        "job": item["job_id"],
        "group": item["group_id"],
        "name": item["name"],
        "asks": listing.question(item),
        "ending": listing.ending(row),
        "kind": kind_of(row),
        "invalid": bool(listing.mark(row)),
        "held": row["state"] == State.HELD,
    }


def kind_of(row: Mapping[str, Any]) -> str:
    """Return the class of a state or an outcome for its colour: the word itself is always there too."""
    if row.get("outcome") is None:
        return {"RUNNING": "running", "HELD": "held"}.get(row["state"], "")
    return listing.style(row)


def _waiting(row: Row, place: int, found: Status, now: float) -> Values:
    reason = found.reasons[row["run_id"]]
    goes_on = status_text.goes_on(found)
    return named(row) | {
        "place": place,
        "waits": reason.short,
        "why": reason.sentence,
        "starts": eta.clock(found.eta.turns.get(row["run"]), now) if goes_on else units.MISSING,
    }


def _ended(row: Row, now: float) -> Values:
    return named(row) | {
        "took": units.duration(row["real_s"]),
        "ago": f"{units.duration(now - row['ended_at'])} ago" if row["ended_at"] else units.MISSING,
    }


@dataclass(frozen=True)
class Search:
    """What the history is asked for. `before` is the id of a job: only older ones."""

    text: str = ""
    state: str = ""
    tag: str = ""
    before: int | None = None
    n: int = PAGE


def read_search(given: Mapping[str, str]) -> Search:
    """Return what the address of a page asks for. Raises: UsageError."""
    return Search(
        given.get("q", "").strip(),
        given.get("state", ""),
        given.get("tag", "").strip(),
        whole(given["before"], "before") if given.get("before") else None,
        min(max(whole(given.get("n") or str(PAGE), "n"), 1), PAGE_MOST),
    )


def whole(text: str, name: str) -> int:
    """Return a whole number of an address. Raises: UsageError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise UsageError(f'{name} cannot be "{text}"', "use a whole number")
    return int(text)


def history(layout: Layout, wanted: Search) -> Values:
    """Return the values of a page of the history, the newest job first. Raises: UsageError, MpsqError (store)."""
    selectors, text = _selectors(wanted.text)
    filter = listing.Filter(
        selectors,
        wanted.state or None,
        (wanted.tag,) if wanted.tag else (),
        wanted.n + 1,
        before=wanted.before,
        text=text,
    )
    with read.reading(layout.db, patience_s=PATIENCE_S) as connection:
        jobs = listing.jobs(connection, filter)
    more = len(jobs) > wanted.n
    jobs = jobs[1:] if more else jobs
    now = time.time()
    return {
        "jobs": [_job(job, now) for job in reversed(jobs)],
        "older": jobs[0]["job"] if more else None,
        "asked": wanted,
        "states": STATES,
        "filtered": bool(wanted.text or wanted.state or wanted.tag),
    }


def _selectors(text: str) -> tuple[tuple[Selector, ...], str | None]:
    """Return ids as selectors; any other text is looked for."""
    try:
        return (parse_selector(text),), None
    except UsageError:
        return (), text or None


def _job(job: Row, now: float) -> Values:
    runs = job["runs"]
    ended = [run["ended_at"] for run in runs if run["ended_at"] is not None]
    kind = listing.job_style(job) or {"RUNNING": "running", "HELD": "held"}.get(job["state"], "")
    command = tables.elide(shlex.join(job["command"]), job_table.MOST_COMMAND) if job["command"] else ""
    return {
        "job": job["job"],
        "group": job["group_id"],
        "name": job["name"],
        "asks": listing.question(job) or command,
        "took": units.duration(listing.took(runs)),
        "tags": job["tags"],
        "ending": listing.job_ending(job),
        "kind": kind,
        "ok": f"{job['succeeded']}/{job['repeats']}",
        "per_iteration": f"{units.ms(job['median_s'])} ms" if job["median_s"] is not None else units.MISSING,
        "invalid": [run["run"] for run in runs if not run["valid"] and run["taints"]],
        "when": clock(max(ended, default=job["created_at"]), now),
    }


def job(layout: Layout, text: str) -> Values:
    """Return the values of the page of a job, or of one of its runs. Raises: UsageError, MpsqError (store)."""
    selector = parse_selector(text)
    with read.reading(layout.db, patience_s=PATIENCE_S) as connection:
        whole = Selector(str(selector.job), job=selector.job) if selector.job is not None else selector
        rows = read.select(connection, [whole])
        chosen = [row for row in rows if selector.number in (None, row["number"])]
        if not chosen:
            raise read.names_nothing(selector)
        row = logs.choose(chosen)
        rows = [other for other in rows if other["job_id"] == row["job_id"]]
        one = show.details(layout, connection, row)
        explained = why.explain_all(layout, connection, [parse_selector(row["run"])])[0]
        course = _course(connection, row)
    return {
        "one": one,
        "shown": show_text.facts(one),
        "at": named(row),
        "why": explained,
        **course,
        "runs": [_run(other, row) for other in rows],
    }


def _course(connection: sqlite3.Connection, row: Row) -> Values:
    """Return the charts of what happened during a run: its phases, and what the machine did meanwhile."""
    from queue_runner.pages import run_records, timeline  # the statistics of reports are loaded when they are used
    from queue_runner.reports._common.document import Options, Result

    options = Options(selectors=(parse_selector(row["run"]),), include_invalid=True)
    found = run_records.gather(Result((), ()), connection, options)
    bars, bar_ticks = timeline.bars(found)
    courses, _ = timeline.courses(found)
    return {"bars": bars, "bar_ticks": bar_ticks, "courses": courses}


def _run(row: Row, chosen: Row) -> Values:
    return named(row) | {
        "chosen": row["run"] == chosen["run"],
        "repeat": row["repeat"],
        "attempt": row["attempt"],
        "took": units.duration(row["real_s"]),
        "per_iteration": units.ms_plus_minus(row["median_s"], row["mad_s"]),
        "taints": (row["taints"] or "").replace(",", ", "),
        "started": clock(row["started_at"]) if row["started_at"] else units.MISSING,
    }
