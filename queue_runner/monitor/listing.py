"""Runs and jobs as they are shown: one object each, without private data (the captured environment)."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from queue_runner import redact, units
from queue_runner.analysis import neighbour_share, stats
from queue_runner.errors import UsageError
from queue_runner.model import PREFLIGHT, Ending, Outcome, Row, Selector, State
from queue_runner.monitor.attempts import last_attempts
from queue_runner.spec import mode_word
from queue_runner.store import read

_AS_STORED = (
    "run",
    "job_id",
    "number",
    "repeat",
    "attempt",
    "group_id",
    "name",
    "kind",
    "workload",
    "framework",
    "framework_version",
    "device",
    "device_name",
    "dtype",
    "config",
    "priority",
    "state",
    "outcome",
    "exit_code",
    "signal",
    "reason",
    "blocked_reason",
    "created_at",
    "started_at",
    "ended_at",
    "cancel_requested_at",
    "paused_at",
    "not_before_at",
    "deadline_at",
    "retries",
    "note",
    "rerun_of",
    "resumed_from",
    "schedule_id",
    "real_s",
    "user_s",
    "sys_s",
    "slept_s",
    "max_rss_bytes",
    "peak_reserved_bytes",
    "peak_allocated_bytes",
    "n_iters",
    "n_measure",
    "median_s",
    "mad_s",
    "loss_first",
    "loss_last",
    "val_loss_last",
)
MARK = "!"
"""Marks the times of jobs and runs that are not valid: they are in no comparison."""
_OF_JOB = ("group_id", "name", "kind", "workload", "framework", "device", "dtype", "config", "priority", "created_at")


@dataclass(frozen=True)
class Filter:
    """Filters of `mpsq list` and of the history of `mpsq web`; None does not filter. `state` is a state or an outcome.
    Deleted jobs are shown with `deleted`, then alone, and if one of them is named itself. `before` is the id of a job:
    only older ones. Each word of `text` must be in the name, the question, the command, the note or the tags."""

    selectors: tuple[Selector, ...] = ()
    state: str | None = None
    tags: tuple[str, ...] = ()
    limit: int | None = None
    deleted: bool = False
    before: int | None = None
    text: str | None = None


def run_object(row: Row, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return one row of v_run as the run object of docs/json.md. `settings` are those of its job, if already read."""
    return {name: row[name] for name in _AS_STORED} | {
        "compile": boolean(row["compile"]),
        **(asked(row) if settings is None else settings),
        "tags": row["tags"].split(",") if row["tags"] else [],
        "taints": row["taints"].split(",") if row["taints"] else [],
        "valid": bool(row["valid"]),
        "replaced": bool(row["replaced"]),
    }


def asked(row: Row) -> dict[str, Any]:
    """Return what the user set for this job; the sought value comes last: lists leave out the middle."""
    return _settings(json.loads(row["spec_json"]))


def _settings(spec: dict[str, Any]) -> dict[str, Any]:
    sets: dict[str, Any] = spec["params"]
    key = spec.get("find_max", "").partition("=")[0]
    if key in sets:
        sets[key] = sets.pop(key)
    return {
        "sets": sets,
        "env_name": spec.get("env_name") or None,
        "mps": spec.get("mps") or {},
        "variables": spec.get("variables") or {},
        "compile_mode": spec.get("compile_mode") or None,
        "gpus": spec.get("gpus", 1),
        "cores": spec.get("cores") or None,
        "threads": spec.get("threads") or None,
    }


def boolean(value: int | None) -> bool | None:
    """Convert a flag as SQLite stores it."""
    return None if value is None else bool(value)


def job_object(rows: Sequence[Row]) -> dict[str, Any]:
    """Return all rows of one job as the job object of docs/json.md: its state is derived from its runs."""
    spec = json.loads(rows[0]["spec_json"])
    settings = _settings(spec)
    runs = [run_object(row, settings) for row in rows if row["number"] != PREFLIGHT]
    first, last = runs[0], last_attempts(runs)
    timed = [r for r in last if r["outcome"] == Outcome.SUCCEEDED and r["median_s"] is not None]
    times = [r["median_s"] for r in timed]
    mixed = len({neighbour_share.KIND in r["taints"] for r in timed}) > 1  # alone and beside a run are never one number
    return (
        {"job": first["job_id"]}
        | {name: first[name] for name in _OF_JOB}
        | {
            "compile": first["compile"],
            **{
                name: first[name]
                for name in ("sets", "env_name", "mps", "variables", "compile_mode", "gpus", "cores", "threads")
            },
            "tags": first["tags"],
            "state": state_of(rows),
            "ok": _ok(last),
            "succeeded": sum(r["outcome"] == Outcome.SUCCEEDED for r in last),
            "repeats": len(last),
            "median_s": stats.median(times) if times and not mixed else None,
            "command": redact.redact(spec["argv"]) or None,
            "runs": runs,
        }
    )


def state_of(runs: Sequence[Row]) -> str:
    """Return RUNNING while one runs, DONE once all are, HELD if none can start, else QUEUED."""
    states = {run["state"] for run in runs}
    if State.RUNNING in states:
        return State.RUNNING.value
    if states == {State.DONE}:
        return State.DONE.value
    return State.QUEUED.value if State.QUEUED in states else State.HELD.value


def _ok(last: Sequence[Row]) -> bool | None:
    """Return whether the last attempt of every repeat succeeded; None while undecided."""
    if any(r["state"] == State.DONE and r["outcome"] != Outcome.SUCCEEDED for r in last):
        return False
    return True if all(r["state"] == State.DONE for r in last) else None


def jobs(connection: sqlite3.Connection, wanted: Filter) -> list[dict[str, Any]]:
    """Return jobs, the oldest first; if there are more than `limit`, the newest. Raises: see `each_job`."""
    return list(each_job(connection, wanted))


def each_job(connection: sqlite3.Connection, wanted: Filter) -> Iterator[dict[str, Any]]:
    """Yield jobs, the oldest first; if there are more than `limit`, the newest. One job is in memory at a time.

    Raises: UsageError for an unknown state, or a selector that matches nothing.
    """
    condition, values = _condition(connection, wanted)
    limit = -1 if wanted.limit is None else wanted.limit
    chosen = f"SELECT job_id FROM ({condition}) ORDER BY job_id DESC LIMIT ?"
    rows = read.each_run(connection, f"job_id IN ({chosen})", [*values, limit])
    for _, runs in groupby(rows, key=lambda row: row["job_id"]):
        yield job_object(list(runs))


_HAS_WORD = (
    "instr(lower(j.name || char(10) || ifnull(j.workload, '') || char(10) || ifnull(j.framework, '') || char(10)"
    " || ifnull(j.device, '') || char(10) || ifnull(j.dtype, '') || char(10) || ifnull(j.config, '') || char(10)"
    " || ifnull(j.note, '') || char(10) || json_extract(j.spec_json, '$.params', '$.argv', '$.env_name') || char(10)"
    " || ifnull((SELECT group_concat(tag, char(10)) FROM job_tags t WHERE t.job_id = j.id), '')), lower(?)) > 0"
)
"""Whether a job has a word. Not in its captured environment, which is nobody's to look through."""


def _condition(connection: sqlite3.Connection, wanted: Filter) -> tuple[str, list[Any]]:
    """Return SQL for the ids of the matching jobs, each once."""
    terms: list[str] = ["1"]
    values: list[Any] = []
    if wanted.deleted:
        terms.append("j.deleted_at IS NOT NULL")
    elif not any(selector.job is not None for selector in wanted.selectors):
        terms.append("j.deleted_at IS NULL")
    for tag in wanted.tags:
        terms.append("EXISTS (SELECT 1 FROM job_tags t WHERE t.job_id = r.job_id AND t.tag = ?)")
        values.append(tag)
    if wanted.before is not None:
        terms.append("r.job_id < ?")
        values.append(wanted.before)
    for word in (wanted.text or "").split():
        terms.append(_HAS_WORD)
        values.append(word)
    if wanted.state is not None:
        word = wanted.state.upper()
        if word in Outcome.__members__:
            terms.append("r.outcome = ?")
        elif word in State.__members__:
            terms.append("r.state = ?")
        else:
            raise UsageError(
                f'unknown state "{wanted.state}"',
                f"use one of {_words(State)}, or an outcome: {_words(Outcome)}",
            )
        values.append(word)
    if wanted.selectors:
        alternatives = []
        for selector in wanted.selectors:
            condition, found = read.where(selector, connection)
            alternatives.append(f"r.job_id IN (SELECT job_id FROM v_run WHERE {condition})")
            values += found
        terms.append("(" + " OR ".join(alternatives) + ")")
    return (
        f"SELECT DISTINCT r.job_id FROM runs r JOIN jobs j ON j.id = r.job_id WHERE {' AND '.join(terms)}",
        values,
    )


def _words(kind: type[State] | type[Outcome]) -> str:
    return ", ".join(member.value.lower() for member in kind)


def ending(row: Row) -> str:
    """Return a run's state or, once it is DONE, how it ended: RUNNING (suspended), FAILED(1), KILLED(9), SUCCEEDED."""
    if row["outcome"] is None:
        suspended = row["state"] == State.RUNNING and row["paused_at"] is not None
        return f"{row['state']} (suspended)" if suspended else str(row["state"])
    return str(Ending(Outcome(row["outcome"]), row["exit_code"], row["signal"], row["reason"] or ""))


def job_ending(job: Row) -> str:
    """Return a job's state or, once it is DONE, SUCCEEDED or how its first run that did not succeed ended."""
    if job["state"] != State.DONE:
        return str(job["state"])
    failed = (run for run in job["runs"] if run["outcome"] != Outcome.SUCCEEDED)
    return "SUCCEEDED" if job["ok"] else ending(next(failed, job["runs"][-1]))


def fate(row: Row, after: str = "") -> str:
    """Return how a run ended and why: `FAILED(1): no data`, `SKIPPED(dependency): job 7 did not succeed`. `after` is
    inserted between the two: ` after 3.2 s`."""
    if row["outcome"] is None:
        return f"{row['state']}: {row['blocked_reason']}" if row["blocked_reason"] else str(row["state"])
    told, reason = ending(row), row["reason"] or ""
    if mark(row):
        after += f", not valid ({(row['taints'] or '').replace(',', ', ')})"
    kind, _, rest = reason.partition(": ")
    if told.endswith(f"({kind})"):
        reason = rest
    return f"{told}{after}: {reason}" if reason else f"{told}{after}"


def mark(run: Row) -> str:
    """Return MARK for a run that succeeded and whose numbers are not valid, else nothing."""
    return MARK if run["outcome"] == Outcome.SUCCEEDED and not run["valid"] else ""


def style(run: Row) -> str:
    """Return the colour of how a run ended (tables.STYLES); none for one that has not, or that a user stopped."""
    if run["outcome"] in (None, Outcome.CANCELLED, Outcome.SKIPPED):
        return ""
    return "good" if run["outcome"] == Outcome.SUCCEEDED else "bad"


def job_style(job: Row) -> str:
    """Return the colour of how a job ended, which is that of the run that `job_ending` tells of."""
    if job["state"] != State.DONE:
        return ""
    failed = (run for run in job["runs"] if run["outcome"] != Outcome.SUCCEEDED)
    return "good" if job["ok"] else style(next(failed, job["runs"][-1]))


def took(runs: Sequence[Row]) -> float | None:
    """Return the real time of the last run that ended; of one that runs now, the time since its start."""
    ended = [run["real_s"] for run in runs if run["real_s"] is not None]
    running = [time.time() - run["started_at"] for run in runs if run["state"] == State.RUNNING and run["started_at"]]
    return running[-1] if running else ended[-1] if ended else None


def tried(row: Row) -> str:
    """Return "preflight: " for a preflight, else nothing."""
    return "preflight: " if row["number"] == PREFLIGHT else ""


def hook_ending(call: Row) -> str:
    """Return which hook was called and how that ended: "hook_done: its command failed with exit code 3 after 0.2 s:
    notify.sh". A run that failed and a hook that failed must not read alike."""
    notifies = call["kind"] == "notify"
    called = f"notification of {call['event']}" if notifies else f"hook_{call['event']}"
    code = f" with exit code {call['exit_code']}" if call["exit_code"] else ""
    after = f" after {units.duration(call['dur_s'])}" if call["dur_s"] is not None else ""
    state = call["state"].replace("_", " ")
    if state in ("failed", "timed out"):
        state = f"its command {state}"
    return f"{called}: {state}{code}{after}" + ("" if notifies else f": {call['command']}")


def question(item: Row) -> str:
    """Return the question of a run or job in a few words: "cpu, compiled, tiny, max_iters=20"."""
    compiled = mode_word(item.get("compile_mode") or item["compile"])
    dtype = None if item["dtype"] == "fp32" else item["dtype"]
    words = [item["device"], compiled, dtype, item["config"], *(f"{k}={v}" for k, v in item["sets"].items())]
    words += [f"gpus={n}"] if (n := item.get("gpus") or 1) > 1 else []
    words += [f"cores={cores}"] if (cores := item.get("cores")) else []
    words += [f"threads={threads}"] if (threads := item.get("threads")) != cores else []
    words += [f"env={name}"] if (name := item.get("env_name")) else []
    words += [f"mps_{k}={v}" for k, v in (item.get("mps") or {}).items()]
    words += [f"{k}={v}" for k, v in (item.get("variables") or {}).items()]
    if item["framework"] not in (None, "torch"):
        words.insert(0, item["framework"])
    return ", ".join(str(word) for word in words if word)
