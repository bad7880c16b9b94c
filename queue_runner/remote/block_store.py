"""The rows of blocks: on the front the runs that were, or will be, sent together, on a node their jobs and their ends.

A run that was sent has the token of its block.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from queue_runner.host import job_environments
from queue_runner.lanes import ELSEWHERE, REMOTE_GLOB
from queue_runner.model import DEFAULT_LANE, PREFLIGHT, Ending, Outcome, RunId, State, Verb
from queue_runner.paths import Layout
from queue_runner.remote.block import Instructions, PlannedJob, PlannedRun
from queue_runner.spec import OF_NODE, JobSpec
from queue_runner.store import lane_claims, read, retries
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import Claimed, move, places

_RUNS = "SELECT id, job_id, number, state, claimed_at, started_at, coalesce(token, ''), cancel_requested_at FROM runs"
_CHOSEN = "(SELECT value FROM json_each(?))"
_ENDED_ELSEWHERE = f"""
SELECT r.id FROM runs r JOIN jobs j ON j.id = r.job_id
WHERE r.state = 'DONE' AND r.outcome NOT IN ('CANCELLED', 'SKIPPED') AND r.number <> {PREFLIGHT}
    AND j.deleted_at IS NULL
    AND (r.lane, r.repeat) IN (SELECT lane, repeat FROM runs WHERE id IN {_CHOSEN} AND number <> {PREFLIGHT})
    AND NOT EXISTS (SELECT 1 FROM runs WHERE job_id = r.job_id AND repeat = r.repeat AND attempt > r.attempt)
ORDER BY r.id
"""
"""Runs of the rounds of the chosen ones that no newer attempt replaces. A lane belongs to one task of a submission."""
_WAITING_IN_ROUNDS = f"""
SELECT r.id FROM runs r
WHERE r.state = 'QUEUED' AND r.token IS NULL
    AND (r.lane, r.repeat) IN (SELECT lane, repeat FROM runs WHERE id IN {_CHOSEN})
ORDER BY r.repeat, (SELECT min(position) FROM runs WHERE job_id = r.job_id AND repeat = r.repeat AND attempt = 1)
"""
NOT_PERMITTED = float(1 << 32)
"""When a run of a node may begin that it has not published yet: in 2106."""
CANCELLED = Ending(Outcome.CANCELLED, reason="cancelled before it started")


class BlockRun(Struct, frozen=True):
    """A run of a block, on the front or on its node."""

    run_id: int
    job_id: int
    number: int
    state: str
    claimed_at: float | None
    started_at: float | None
    token: str
    cancel_requested_at: float | None

    @property
    def name(self) -> str:
        """Its name, 12.3."""
        return f"{self.job_id}.{self.number}"


def open_lanes(connection: Connection) -> list[str]:
    """Return the names of the lanes that have runs which are not DONE."""
    return connection.column(f"SELECT DISTINCT lane FROM runs WHERE {ELSEWHERE} ORDER BY lane")


def something_waits(connection: Connection) -> bool:
    """Return whether a run of a remote lane is under way, or is waiting to be sent and the queue is not paused."""
    paused = f"EXISTS (SELECT 1 FROM lanes WHERE name = '{DEFAULT_LANE}' AND paused_at IS NOT NULL)"
    sql = f"""SELECT 1 FROM runs INDEXED BY runs_elsewhere
        WHERE {ELSEWHERE} AND state <> 'HELD' AND (token IS NOT NULL OR NOT {paused}) LIMIT 1"""
    return connection.row(sql) is not None


def open_tokens(connection: Connection) -> set[str]:
    """Return the tokens of the blocks that have runs which are not DONE."""
    return {*connection.column("SELECT DISTINCT token FROM runs WHERE state <> 'DONE' AND token IS NOT NULL")}


def lanes_by_token(connection: Connection) -> dict[str, str]:
    """Return the lanes of all blocks by their tokens."""
    sql = "SELECT DISTINCT token, lane FROM runs WHERE token IS NOT NULL AND lane GLOB ?"
    return dict(connection.rows(sql, [REMOTE_GLOB]))


def ready(connection: Connection, lane: str, now: float) -> list[int]:
    """Return the runs of a lane that may start and were not sent, in their order."""
    sql = "SELECT id FROM runs WHERE lane = ? AND token IS NULL AND cancel_requested_at IS NULL"
    unsent = {*connection.column(sql, [lane])}
    return [run.run_id for run in lane_claims.waiting(connection, now, lane) if run.run_id in unsent]


def waits_for_preflight(connection: Connection, run_id: int) -> str:
    """Return the preflight of the run's submission that another task has to run first; "" if there is none."""
    sql = f"""SELECT p.job_id || '.' || p.number FROM runs p JOIN jobs j ON j.id = p.job_id
        WHERE p.number = {PREFLIGHT} AND p.state <> 'DONE' AND p.lane <> (SELECT lane FROM runs WHERE id = ?)
        AND j.group_id = (SELECT group_id FROM jobs WHERE id = (SELECT job_id FROM runs WHERE id = ?)) LIMIT 1"""
    return str(connection.value(sql, [run_id, run_id]) or "")


def complete_rounds(connection: Connection, run_ids: Sequence[int]) -> int:
    """Try again what has ended in the rounds of these runs, which were never sent: a round counts only if it runs whole
    on one machine. All keep their places in it. Return the number of further runs."""
    chosen = [json.dumps(list(run_ids))]
    ended = connection.column(_ENDED_ELSEWHERE, chosen)
    for run_id in ended:
        retries.again(connection, run_id, actor="worker", reason="its round runs again whole, on one machine")
    if ended:
        last = places(connection)[1]
        waiting = connection.column(_WAITING_IN_ROUNDS, chosen)
        moved = [(last + place, run_id) for place, run_id in enumerate(waiting, start=1)]
        connection.change_all("UPDATE runs SET position = ? WHERE id = ?", moved)
    return len(ended)


def known_times_s(connection: sqlite3.Connection, target: str, hashes: Sequence[str]) -> list[float]:
    """Return the longest of the newest runs that a target has run of each question that it knows, in seconds."""
    sql = """SELECT (SELECT max(real_s) FROM (SELECT e.real_s FROM jobs j JOIN runs r ON r.job_id = j.id
        JOIN exits e ON e.run_id = r.id WHERE j.spec_hash = asked.value AND r.outcome = 'SUCCEEDED' AND r.lane GLOB ?
        ORDER BY r.id DESC LIMIT 5)) FROM json_each(?) asked"""
    times = read.tuples(connection, sql, [f"{target}{REMOTE_GLOB[1:]}", json.dumps(list(hashes))])
    return [time_s for (time_s,) in times if time_s is not None]


def instructions(connection: Connection, run_ids: Sequence[int], **others: Any) -> Instructions:
    """Return the instructions for these runs: their jobs, the runs in their order, and `others`."""
    ids = [json.dumps(list(run_ids))]
    with_jobs = f"(SELECT job_id FROM runs WHERE id IN {_CHOSEN})"
    in_order = f"FROM runs WHERE id IN {_CHOSEN} ORDER BY position, id"
    jobs = connection.rows(f"SELECT {_names(PlannedJob)} FROM jobs WHERE id IN {with_jobs} ORDER BY id", ids)
    runs = connection.rows(f"SELECT {_names(PlannedRun)} {in_order}", ids)
    planned = [PlannedJob(*row) for row in jobs]
    ((group, title, seed),) = connection.rows("SELECT id, title, seed FROM groups WHERE id = ?", [planned[0].group_id])
    return Instructions(group, title, seed, planned, [PlannedRun(*row) for row in runs], **others)


def _names(kind: type[Struct]) -> str:
    return ", ".join(kind.__struct_fields__)


def mark_sent(connection: Connection, run_ids: Sequence[int], token: str) -> int:
    """Mark runs as part of a block; return how many of them still waited."""
    sql = f"UPDATE runs SET token = ? WHERE id IN {_CHOSEN} AND state = 'QUEUED' AND token IS NULL"
    return connection.change(sql, [token, json.dumps(list(run_ids))])


def send_again(connection: Connection, token: str) -> None:
    """Let the runs of a block that have not begun and never will be sent again. Those whose cancellation was requested
    end: it was left to that block."""
    sql = "SELECT id FROM runs WHERE token = ? AND state IN ('QUEUED', 'HELD') AND cancel_requested_at IS NOT NULL"
    cancelled = connection.column(sql, [token])
    connection.change("UPDATE runs SET token = NULL WHERE token = ? AND state IN ('QUEUED', 'HELD')", [token])
    for run_id in cancelled:
        move(connection, run_id, Verb.CANCEL, actor="worker", ending=CANCELLED, ended_at=time.time())


def sent(connection: Connection, lane: str) -> list[BlockRun]:
    """Return the runs of the lane's blocks that are not DONE, in their order."""
    sql = f"{_RUNS} WHERE lane = ? AND state <> 'DONE' AND token IS NOT NULL ORDER BY position, id"
    return [BlockRun(*row) for row in connection.rows(sql, [lane])]


def state(connection: Connection, run_id: int) -> State:
    """Return the state of a run."""
    return State(connection.value("SELECT state FROM runs WHERE id = ?", [run_id]))


def claimed(connection: Connection, run_id: int) -> Claimed:
    """Return a run of a block as the worker's functions take it."""
    sql = "SELECT r.job_id, r.number, j.spec_json, r.token, r.boot_id FROM runs r JOIN jobs j ON j.id = r.job_id"
    ((job, number, spec_json, token, boot_id),) = connection.rows(f"{sql} WHERE r.id = ?", [run_id])
    return Claimed.of(run_id, RunId(job, number), spec_json, token or "", boot_id or "", DEFAULT_LANE)


# -- on a node ---------------------------------------------------------------------------------------------------------


def load(
    connection: Connection,
    layout: Layout,
    instructions: Instructions,
    env: dict[str, str] | None,
    default_env: dict[str, str],
    python: str | None,
) -> None:
    """Store the jobs and runs of a block under their own ids; the front alone retries.

    `env` is set by a scheduler on the node: it takes precedence in every job, and the front's variables of such names
    (OF_NODE) are dropped; None where there is no scheduler. A job's own variables take precedence over `default_env`.
    `python` is the interpreter of the workloads, if it differs from the front's.
    """
    group = (instructions.group, 0.0, instructions.title, instructions.seed)
    connection.change("INSERT INTO groups (id, created_at, title, seed) VALUES (?, ?, ?, ?)", group)
    rows = []
    for job in instructions.jobs:
        spec = JobSpec.from_json(job.spec_json)
        sent = instructions.environments.get(spec.env_file, spec.env)
        values = default_env | {k: v for k, v in sent.items() if env is None or not k.startswith(OF_NODE)} | (env or {})
        environment = {
            "env": job_environments.public(layout, values),
            "env_file": job_environments.save(layout, values),
        }
        spec = spec.changed(**environment, on={})
        if python is not None:
            spec = spec.changed(python=python if spec.kind == "workload" else "")
        rows.append(replace(job, spec_json=spec.to_json()))
    _insert(connection, "jobs", [asdict(row) for row in rows])
    others = {"lane": DEFAULT_LANE, "state": State.QUEUED, "not_before_at": None if instructions.box else NOT_PERMITTED}
    _insert(connection, "runs", [{**asdict(run), **others} for run in instructions.runs])


def add_origins(connection: Connection, instructions: Instructions) -> None:
    """Store the runs from which others resume, which ended elsewhere."""
    for run in instructions.runs:
        if (origin := instructions.origins.get(run.name)) is None:
            continue
        number = int(origin.partition(".")[2])
        ended = {"lane": DEFAULT_LANE, "state": State.DONE, "outcome": Outcome.LOST, "attempt": run.attempt - 1}
        _insert(connection, "runs", [{**asdict(run), **ended, "number": number}])
        sql = "UPDATE runs SET resumed_from = (SELECT id FROM runs WHERE job_id = ? AND number = ?)"
        connection.change(f"{sql} WHERE job_id = ? AND number = ?", [run.job_id, number, run.job_id, run.number])


def _insert(connection: Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    names = rows[0].keys()
    marks = ", ".join(f":{name}" for name in names)
    connection.change_all(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)


def not_permitted(connection: Connection) -> list[int]:
    """Return the runs of a node that it may not begin yet, in their order."""
    sql = "SELECT id FROM runs WHERE state = 'QUEUED' AND not_before_at = ? ORDER BY position, id"
    return connection.column(sql, [NOT_PERMITTED])


def permit(connection: Connection, run_ids: Sequence[int]) -> None:
    """Let these runs begin."""
    connection.change(f"UPDATE runs SET not_before_at = NULL WHERE id IN {_CHOSEN}", [json.dumps(list(run_ids))])


def all_runs(connection: Connection) -> list[BlockRun]:
    """Return the runs of a node in their order."""
    return [BlockRun(*row) for row in connection.rows(f"{_RUNS} ORDER BY position, id")]


def end_of(connection: Connection, run_id: int) -> tuple[Outcome, int | None, float]:
    """Return the outcome of a run that has ended, its signal, and when it ended."""
    ((outcome, signal, at),) = connection.rows("SELECT outcome, signal, ended_at FROM runs WHERE id = ?", [run_id])
    return Outcome(outcome), signal, at
