"""All that is known of a run: the question, the answer, where its files are, what was noticed about it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import argv, capture
from queue_runner.listing import run_object
from queue_runner.paths import Layout
from queue_runner.rundir import RunDir
from queue_runner.spec import JobSpec
from queue_runner.store import read

_LOST_LINES = ("unknown", "bad", "forged", "torn", "rewritten")


@dataclass(frozen=True)
class Details:
    """`run` is as in a list. `argv` is redacted, `env` names variables only, `files` maps names to paths that exist."""

    run: Mapping[str, Any]
    argv: list[str]
    cwd: str
    python: str
    env: list[str]
    seed: int | None
    timeout_s: float | None
    parser: str | None
    spec_hash: str
    code: Mapping[str, Any] | None
    hello: Mapping[str, Any] | None
    exit: Mapping[str, Any] | None
    phases_s: Mapping[str, float]
    taints: list[Mapping[str, Any]]
    notes: list[Mapping[str, Any]]
    lines: Mapping[str, int]
    history: list[Mapping[str, Any]]
    files: Mapping[str, str]
    hooks: Sequence[Mapping[str, Any]]
    deleted_at: float | None


def details(layout: Layout, connection: sqlite3.Connection, row: Mapping[str, Any]) -> Details:
    """Everything about one row of v_run."""
    spec = JobSpec.from_json(row["spec_json"])
    run_id = row["run_id"]
    phases = ("setup", "compile", "warmup", "measure", "eval", "checkpoint", "other")
    return Details(
        run=run_object(row),
        argv=capture.redact(argv.of(spec, layout.snapshots)),
        cwd=spec.cwd,
        python=spec.python,
        env=sorted(spec.env),
        seed=spec.seed,
        timeout_s=spec.timeout_s,
        parser=spec.parser,
        spec_hash=row["spec_hash"],
        code=_code(connection, row["snapshot_hash"]),
        hello=_json_of(connection, "hellos", "hello_json", run_id),
        exit=_json_of(connection, "exits", "exit_json", run_id),
        phases_s={name: row[f"{name}_s"] for name in phases if row[f"{name}_s"] is not None},
        taints=[_without_key(t) for t in read.detail(connection, "taints", run_id)],
        notes=[_without_key(n) for n in read.detail(connection, "notes", run_id)],
        lines={key: sum(source[key] for source in read.detail(connection, "ingests", run_id)) for key in _LOST_LINES},
        history=[
            {k: v for k, v in event.items() if k not in ("id", "job_id", "run_id")}
            for event in read.events(connection, row["job_id"])
            if event["run"] in (None, row["run"])
        ],
        files=_files(RunDir(layout.runs / row["run"])),
        hooks=read.hook_calls(connection, "run_id = ?", [run_id]),
        deleted_at=row["deleted_at"],
    )


def _without_key(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "run_id"}


def _code(connection: sqlite3.Connection, digest: str | None) -> dict[str, Any] | None:
    if digest is None:
        return None
    row = connection.execute(
        "SELECT hash, kind, git_commit, git_branch, git_dirty FROM snapshots WHERE hash = ?", [digest]
    ).fetchone()
    return None if row is None else {**row, "git_dirty": None if row["git_dirty"] is None else bool(row["git_dirty"])}


def _json_of(connection: sqlite3.Connection, table: str, column: str, run_id: int) -> dict[str, Any] | None:
    row = connection.execute(f"SELECT {column} AS text FROM {table} WHERE run_id = ?", [run_id]).fetchone()
    return None if row is None else dict(json.loads(row["text"]))


def _files(folder: RunDir) -> dict[str, str]:
    files = {
        "folder": folder.path,
        "stdout": folder.stdout,
        "stderr": folder.stderr,
        "events": folder.events,
        "out": folder.out,
        "warden_log": folder.warden_log,
    }
    return {name: str(path) for name, path in files.items() if path.exists()}
