"""What `mpsq status` shows: the worker, the lane, the run on it, and what waits, in order."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import queue_state
from queue_runner.events import PHASES
from queue_runner.model import State
from queue_runner.paths import Layout
from queue_runner.queue_state import QueueState
from queue_runner.rundir import RunDir
from queue_runner.store import read

_WAS_RUN = "state = 'DONE' AND kind <> 'import' AND deleted_at IS NULL"
_HOOK_NEWS_S = 86400.0
_HOOK_NEWS = 3
_SO_FAR = 200
"""How many of the newest measured iterations the time per iteration of a running job is taken from."""


@dataclass(frozen=True)
class Progress:
    """How far the running run is, as far as its events are stored. Times in seconds; None is not known."""

    phase: str | None
    iters: int
    planned_iters: int | None
    median_s: float | None
    loss: float | None
    elapsed_s: float | None
    left_s: float | None


@dataclass(frozen=True)
class Hooks:
    """How many calls of hooks are to be made, and the last ones of the past day that did not end well."""

    pending: int
    running: int
    troubled: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Status:
    """`running` and `waiting` are rows of v_run, the waiting ones in the order in which they will start."""

    queue: QueueState
    running: Mapping[str, Any] | None
    supervised: bool
    progress: Progress | None
    waiting: Sequence[Mapping[str, Any]]
    ended: Sequence[Mapping[str, Any]]
    hooks: Hooks


def read_status(layout: Layout, *, ended: int = 5) -> Status:
    """The queue as it is now, with the newest `ended` endings. Raises: MpsqError where there is no queue to read."""
    with read.reading(layout.db) as connection:
        queue = queue_state.look(layout, connection)
        rows = read.queue(connection)
        running = next((row for row in rows if row["state"] == State.RUNNING), None)
        return Status(
            queue,
            running,
            supervised=running is not None and queue_state.is_supervised(RunDir(layout.runs / running["run"])),
            progress=progress(connection, running) if running else None,
            waiting=[row for row in rows if row["state"] != State.RUNNING],
            ended=read.runs(connection, _WAS_RUN, order=f"ended_at DESC LIMIT {int(ended)}"),
            hooks=hooks(connection),
        )


def hooks(connection: sqlite3.Connection) -> Hooks:
    """What the hooks do, and which of them need a look."""
    rows = read.hook_calls(connection, "h.at > ? OR h.state IN ('pending', 'running')", [time.time() - _HOOK_NEWS_S])
    states = [row["state"] for row in rows]
    troubled = [row for row in rows if row["state"] in ("failed", "timed_out", "lost")]
    return Hooks(states.count("pending"), states.count("running"), troubled[-_HOOK_NEWS:])


def progress(connection: sqlite3.Connection, row: Mapping[str, Any]) -> Progress:
    """How far a run is."""
    done = connection.execute(
        "SELECT count(*) AS n, max(i) AS last FROM iterations WHERE run_id = ?", [row["run_id"]]
    ).fetchone()
    newest = list(
        connection.execute(
            "SELECT dur_s, loss, phase FROM iterations WHERE run_id = ? ORDER BY offset DESC LIMIT ?",
            [row["run_id"], _SO_FAR],
        )
    )
    times = sorted(r["dur_s"] for r in newest if PHASES[r["phase"]] == "measure")
    median_s = times[len(times) // 2] if times else None
    planned = row["planned_iters"]
    return Progress(
        phase=_phase(connection, row["run_id"]),
        iters=done["n"],
        planned_iters=planned,
        median_s=median_s,
        loss=next((r["loss"] for r in newest if r["loss"] is not None), None),
        elapsed_s=max(time.time() - (row["started_at"] or row["claimed_at"]), 0.0),
        left_s=max(planned - done["n"], 0) * median_s if planned and median_s is not None else None,
    )


def _phase(connection: sqlite3.Connection, run_id: int) -> str | None:
    """The innermost phase that has begun and not ended."""
    open_: list[str] = []
    for edge in connection.execute("SELECT name, edge FROM phases WHERE run_id = ? ORDER BY offset", [run_id]):
        if edge["edge"] == "begin":
            open_.append(edge["name"])
        elif edge["name"] in open_:
            del open_[open_.index(edge["name"]) :]
    return open_[-1] if open_ else None
