"""Everything known about a run: its question, its results, its files, its notes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from queue_runner import redact
from queue_runner.analysis import gpu_use
from queue_runner.host.load import START_KEYS
from queue_runner.model import Row
from queue_runner.monitor import run_losses, run_mfu
from queue_runner.monitor.listing import boolean, run_object
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir
from queue_runner.spec import JobSpec
from queue_runner.store import read, retries
from queue_runner.submit import interpreter
from queue_runner.submit.find_max import next_probe
from queue_runner.workloads import command_line

_LOST_LINES = ("unknown", "bad", "forged", "torn", "rewritten")

_AFTER = "SELECT on_job_id AS job, condition, verdict FROM v_dependency WHERE job_id = ? ORDER BY on_job_id"


def details(layout: Layout, connection: sqlite3.Connection, row: Row) -> dict[str, Any]:
    """Return everything about one row of v_run, as docs/json.md describes it: `argv` is redacted, `env` only names
    variables, `files` maps names to existing paths."""
    spec = JobSpec.from_json(row["spec_json"])
    run_id = row["run_id"]
    ingests = read.detail(connection, "ingests", run_id)
    phases = ("setup", "compile", "warmup", "measure", "eval", "checkpoint", "other")
    return {
        "run": run_object(row),
        "argv": redact.redact(command_line.build_argv(spec, layout.snapshots)),
        "cwd": spec.cwd,
        "lane": row["lane"],
        "processors": spec.affinity or None,
        "python": spec.python,
        "torch": interpreter.torch_of(spec.python) if spec.python else None,
        "env": sorted({*spec.env, *spec.secrets}),
        "seed": spec.seed,
        "timeout_s": spec.timeout_s,
        "parser": spec.parser,
        "schedule": read.schedule_name(connection, row["schedule_id"]),
        "spec_hash": row["spec_hash"],
        "code": _code(connection, row["snapshot_hash"]),
        "hello": _json_of(connection, "hellos", "hello_json", run_id),
        "exit": _json_of(connection, "exits", "exit_json", run_id),
        "phases_s": {name: row[f"{name}_s"] for name in phases if row[f"{name}_s"] is not None},
        "segments": _segments(connection, run_id),
        "taints": [_without_key(t) for t in read.detail(connection, "taints", run_id)],
        "notes": [_without_key(n) for n in read.detail(connection, "notes", run_id)],
        "lines": {key: sum(source[key] for source in ingests) for key in _LOST_LINES},
        "history": [
            {k: v for k, v in event.items() if k not in ("id", "job_id", "run_id")}
            for event in read.events(connection, row["job_id"])
            if event["run"] in (None, row["run"])
        ],
        "files": _files(RunDir(layout.runs / row["run"])),
        "copy": spec.copy,
        "allow_changed": spec.allow_changed,
        "rerun_of": row["rerun_of"],
        "hooks": read.hook_calls(connection, "run_id = ?", [run_id]),
        "deleted_at": row["deleted_at"],
        "after": list(connection.execute(_AFTER, [row["job_id"]])),
        "backoff_s": row["backoff_s"],
        "retry_on": row["retry_on"],
        "search": _search(connection, row["job_id"], spec),
        "evaluation": run_losses.last_evaluation(connection, run_id),
        "mfu": run_mfu.of_run(layout, connection, row),
        **_use(connection, row),
        "start": _start(connection, run_id),
    }


def _use(connection: sqlite3.Connection, row: Row) -> dict[str, Any]:
    """Return the use of the GPU by phase, and of the measured one by itself."""
    samples, marks = (read.detail(connection, table, row["run_id"]) for table in ("conditions", "phases"))
    uses = gpu_use.by_phase(samples, marks, row["started_at"], row["real_s"])
    measured = gpu_use.measured(uses)
    return {
        "gpu_busy_share": measured.busy_share if measured else None,
        "gpu_use": [
            {"phase": use.phase, "samples": use.n_samples, "busy_share": use.busy_share, "dips_share": use.dips_share}
            for use in uses
            if use.busy_share is not None
        ],
    }


def _start(connection: sqlite3.Connection, run_id: int) -> dict[str, float]:
    """Return what was recorded of the run's start (load.START_KEYS)."""
    samples = [json.loads(row["data_json"]) for row in read.detail(connection, "conditions", run_id)]
    return {key: one[key] for one in samples for key in START_KEYS if key in one}


def _search(connection: sqlite3.Connection, job_id: int, spec: JobSpec) -> str | None:
    """Return the state of the search that the job is a probe of (--find-max)."""
    at = next_probe.state_of_job(connection, job_id)
    return None if at is None else f"--find-max {spec.find_max}: {at.sentence(spec.find_max.partition('=')[0])}"


@dataclass(frozen=True)
class Patch:
    """The patch of one job's code. If there is none to show, `text` is None and `about` says why; else `about` says
    what it belongs to."""

    job: int
    about: str
    text: str | None


def patches(connection: sqlite3.Connection, rows: Iterable[Row]) -> list[Patch]:
    """Return the patch of each job, once."""
    jobs = {row["job_id"]: row["snapshot_hash"] for row in rows}
    return [_patch(connection, job, digest) for job, digest in jobs.items()]


def _patch(connection: sqlite3.Connection, job: int, digest: str | None) -> Patch:
    code = _code(connection, digest)
    if code is None or code["git_commit"] is None:
        reason = (
            "its code was not in a repository" if code is None or code["git_dirty"] is None else "there was no commit"
        )
        return Patch(job, f"{reason}, so there is no patch", None)
    where = f"commit {code['git_commit']}" + (f" on {code['git_branch']}" if code["git_branch"] else "")
    text = connection.execute("SELECT diff FROM snapshots WHERE hash = ?", [digest]).fetchone()["diff"]
    if text is None:
        return Patch(job, f"{where}, and a patch that was too large to be stored", None)
    return Patch(job, where, text) if text else Patch(job, f"{where}, without changes", None)


def _segments(connection: sqlite3.Connection, run_id: int) -> list[Row]:
    """Return the chain of runs that continue one another, if there is one."""
    chain = retries.chain(connection, run_id)
    names = {segment.run_id: segment.run for segment in chain}
    return [
        {
            "run": each.run,
            "resumed_from": names.get(each.resumed_from or 0),
            "first_i": each.first_i,
            "last_i": each.last_i,
        }
        for each in (chain if len(chain) > 1 else [])
    ]


def _without_key(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "run_id"}


def _code(connection: sqlite3.Connection, digest: str | None) -> dict[str, Any] | None:
    if digest is None:
        return None
    row = connection.execute(
        "SELECT hash, kind, git_commit, git_branch, git_dirty, length(diff) AS diff_chars, tree_hash, copied,"
        " left_out_json FROM snapshots WHERE hash = ?",
        [digest],
    ).fetchone()
    if row is None:
        return None
    left_out = json.loads(row.pop("left_out_json") or "{}")
    return {**row, "git_dirty": boolean(row["git_dirty"]), "copied": bool(row["copied"]), "left_out": left_out}


def _json_of(connection: sqlite3.Connection, table: str, column: str, run_id: int) -> dict[str, Any] | None:
    row = connection.execute(f"SELECT {column} AS text FROM {table} WHERE run_id = ?", [run_id]).fetchone()
    return None if row is None else dict(json.loads(row["text"]))


def _files(folder: RunDir) -> dict[str, str]:
    names = ("stdout", "stderr", "events", "out", "tree", "warden_log")
    files = {"folder": folder.path, **{name: getattr(folder, name) for name in names}}
    return {name: str(path) for name, path in files.items() if path.exists()}
