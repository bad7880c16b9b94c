"""The table of jobs or runs that lists show: what distinguishes each from the others of its submission."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from queue_runner import tables, units
from queue_runner.analysis.grouping import by_key
from queue_runner.model import Outcome, Row
from queue_runner.monitor import listing
from queue_runner.monitor.attempts import last_attempts

MOST_COMMAND = 60
"""Columns of a command line beyond which its middle is left out; mpsq show has all of it."""
_ASKED = ("framework", "device", "compile", "dtype", "config", "gpus", "env_name")


def jobs(found: Sequence[Row], *, colour: bool = False) -> str:
    """Return the table of job objects (listing.jobs)."""
    rows = []
    for job, what in zip(found, _what(found), strict=True):
        counted = [run for run in last_attempts(job["runs"]) if run["outcome"] == Outcome.SUCCEEDED]
        rows.append(
            {
                **job,
                "id": job["job"],
                "what": what,
                "state": listing.job_ending(job),
                "style": listing.job_style(job),
                "n_ok": f"{job['succeeded']}/{job['repeats']}",
                "took_s": listing.took(job["runs"]),
                "mark": next(filter(None, map(listing.mark, counted)), ""),
            }
        )
    return _table(rows, "job", colour)


def runs(found: Sequence[Row], *, colour: bool = False) -> str:
    """Return the table of the runs of job objects."""
    rows = [
        {
            **run,
            "id": run["run"],
            "what": what,
            "state": listing.ending(run),
            "style": listing.style(run),
            "took_s": listing.took([run]),
            "mark": listing.mark(run),
        }
        for job, what in zip(found, _what(found), strict=True)
        for run in job["runs"]
    ]
    return _table(rows, "run", colour)


def _table(rows: Sequence[Row], of: str, colour: bool) -> str:
    columns = [
        tables.Column("id", of, right=of == "job"),
        tables.Column("group_id", "group", words=lambda group: f"g{group}"),
        tables.Column("what", "what", flexible=True),
        tables.Column("n_ok", "ok", right=True),
        tables.Column("state", "state", style=lambda row: row["style"]),
        tables.Column("created_at", "age", words=_age, right=True),
        tables.Column("took_s", "took", words=units.duration, right=True),
        tables.Column("median_s", "ms/iter", words=units.ms, right=True),
        tables.Column("mark", "", style=lambda row: "doubt"),
    ]
    marked = any(row["mark"] for row in rows)
    absent = {"n_ok" if of == "run" else "", "" if any(row["median_s"] for row in rows) else "median_s"}
    shown = [column for column in columns if column.key not in absent and (marked or column.key != "mark")]
    text = tables.table(rows, shown, colour=colour)
    return f"{text}\n{listing.MARK} not valid: mpsq show {of.upper()} says why" if marked else text


def _age(at: float) -> str:
    """Return how long ago a time was, in its largest unit: "3 d", "2 h", "5 min", "12 s"."""
    age_s = max(0.0, time.time() - at)
    for unit, size_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if age_s >= size_s:
            return f"{units.count(int(age_s // size_s))} {unit}"
    return f"{int(age_s)} s"


def _what(found: Sequence[Row]) -> list[str]:
    """Return for each job its name and what distinguishes it from the others of its submission; of a command itself."""
    submissions = by_key(found, lambda job: (job["group_id"], job["kind"]))
    return [_one(job, submissions[job["group_id"], job["kind"]]) for job in found]


def _one(job: Row, others: Sequence[Row]) -> str:
    if job["kind"] == "command" and job["command"]:
        words = job["command"]
        line = tables.elide(shlex.join(words), MOST_COMMAND)
        unsaid = [f"{k}={v}" for k, v in job["sets"].items() if not any(str(v) in word for word in words)]
        named = any(word.rsplit("/", 1)[-1] == job["name"] for word in words)
        return " ".join([line if named else f"{job['name']}: {line}", *unsaid])
    asked = {name: job[name] if _differs(name, others) else None for name in _ASKED}
    alone = len(others) == 1
    sets = {k: v for k, v in job["sets"].items() if alone or len({_value(o["sets"], k) for o in others}) > 1}
    mps = {k: v for k, v in (job["mps"] or {}).items() if alone or len({_value(o["mps"] or {}, k) for o in others}) > 1}
    return " ".join(filter(None, [job["name"], listing.question({**asked, "sets": sets, "mps": mps})]))


def _differs(name: str, others: Sequence[Row]) -> bool:
    return len(others) == 1 or len({str(other[name]) for other in others}) > 1


def _value(settings: Mapping[str, Any], name: str) -> str:
    return str(settings.get(name))
