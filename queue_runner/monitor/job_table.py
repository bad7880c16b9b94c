"""The table of jobs or runs that lists show: what distinguishes each from the others of its submission."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import tables, units
from queue_runner.analysis.grouping import by_key
from queue_runner.model import Outcome, Row
from queue_runner.monitor import listing
from queue_runner.monitor.attempts import last_attempts

MOST_COMMAND = 60
"""Columns of a command line beyond which its middle is left out; mpsq show has all of it."""
_ASKED = ("framework", "device", "compile", "dtype", "config", "gpus", "env_name")
_SUMMARY = ("group_id", "kind", "name", "command", "sets", "mps", "created_at", "median_s", *_ASKED)


def jobs(jobs: Iterable[Row], *, colour: bool = False) -> str:
    """Return the table of job objects (listing.each_job), "" if there are none; their runs are not kept."""
    rows = [_summary(job) for job in jobs]
    for row, what in zip(rows, _what(rows), strict=True):
        row["what"] = what
    return _table(rows, "job", colour)


def _summary(job: Row) -> dict[str, Any]:
    counted = [run for run in last_attempts(job["runs"]) if run["outcome"] == Outcome.SUCCEEDED]
    return {name: job[name] for name in _SUMMARY} | {
        "id": job["job"],
        "state": listing.job_ending(job),
        "style": listing.job_style(job),
        "n_ok": f"{job['succeeded']}/{job['repeats']}",
        "took_s": listing.took(job["runs"]),
        "mark": next(filter(None, map(listing.mark, counted)), ""),
    }


def runs(jobs: Iterable[Row], *, colour: bool = False) -> str:
    """Return the table of the runs of job objects, "" if there are none."""
    found = list(jobs)
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


def _table(rows: Sequence[Row], kind: str, colour: bool) -> str:
    if not rows:
        return ""
    columns = [
        tables.Column("id", kind, right=kind == "job"),
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
    absent = {"n_ok" if kind == "run" else "", "" if any(row["median_s"] for row in rows) else "median_s"}
    columns = [column for column in columns if column.key not in absent and (marked or column.key != "mark")]
    text = tables.table(rows, columns, colour=colour)
    return f"{text}\n{listing.MARK} not valid: mpsq show {kind.upper()} says why" if marked else text


def _age(at: float) -> str:
    """Return how long ago a time was, in its largest unit: "3 d", "2 h", "5 min", "12 s"."""
    age_s = max(0.0, time.time() - at)
    for unit, size_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if age_s >= size_s:
            return f"{units.count(int(age_s // size_s))} {unit}"
    return f"{int(age_s)} s"


@dataclass(frozen=True)
class _Varying:
    """The names of settings whose values differ between the jobs of a submission; all of them if it has one job."""

    columns: frozenset[str]
    sets: frozenset[str]
    mps: frozenset[str]


def _what(jobs: Sequence[Row]) -> list[str]:
    """Return for each job its name and what distinguishes it from the others of its submission; of a command itself."""
    submissions = by_key(jobs, lambda job: (job["group_id"], job["kind"]))
    varying = {
        key: _Varying(
            _differing([{name: job[name] for name in _ASKED} for job in members]),
            _differing([job["sets"] for job in members]),
            _differing([job["mps"] or {} for job in members]),
        )
        for key, members in submissions.items()
    }
    return [_words(job, varying[job["group_id"], job["kind"]]) for job in jobs]


def _differing(settings: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    names = {name for values in settings for name in values}
    alone = len(settings) == 1
    return frozenset(name for name in names if alone or len({str(values.get(name)) for values in settings}) > 1)


def _words(job: Row, varying: _Varying) -> str:
    if job["kind"] == "command" and job["command"]:
        words = job["command"]
        line = tables.elide(shlex.join(words), MOST_COMMAND)
        settings = [f"{k}={v}" for k, v in job["sets"].items() if not any(str(v) in word for word in words)]
        named = any(word.rsplit("/", 1)[-1] == job["name"] for word in words)
        return " ".join([line if named else f"{job['name']}: {line}", *settings])
    columns = {name: job[name] if name in varying.columns else None for name in _ASKED}
    sets = {name: value for name, value in job["sets"].items() if name in varying.sets}
    mps = {name: value for name, value in (job["mps"] or {}).items() if name in varying.mps}
    return " ".join(filter(None, [job["name"], listing.question({**columns, "sets": sets, "mps": mps})]))
