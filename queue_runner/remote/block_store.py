"""The rows of blocks: on the front the runs that were, or will be, sent together, on a node their jobs and their ends.

A run that was sent has the token of its block.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner.extensions import RemoteLane
from queue_runner.host import job_environments
from queue_runner.lanes import REMOTE_GLOB
from queue_runner.model import DEFAULT_LANE, RunId, State
from queue_runner.paths import Layout
from queue_runner.spec import OF_NODE
from queue_runner.store import hot_sql
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import Claimed

_LANES = """
SELECT r.lane, count(*) AS runs, sum(r.state = 'DONE') AS done,
    coalesce(l.blocked_reason, 'to be sent as a block') AS said,
    l.blocked_kind IS 'silent' AS silent, l.next_try_at,
    max(CASE WHEN r.state = 'RUNNING' THEN r.job_id || '.' || r.number END) AS running
FROM runs r LEFT JOIN lanes l ON l.name = r.lane
WHERE r.lane IN (SELECT DISTINCT lane FROM runs WHERE state <> 'DONE' AND lane GLOB ?)
GROUP BY r.lane ORDER BY min(r.id)
"""
_COPIED = "id, name, kind, workload, framework, device, compile, dtype, config, created_at, priority, deadline_at"
_COPIED += ", group_id, spec_json, spec_hash"
_SENT = "SELECT id, job_id, number, state, started_at, token, cancel_requested_at FROM runs"
_CHOSEN = "(SELECT value FROM json_each(?))"
_ENDING = "state, outcome, exit_code, signal, reason, boot_id, claimed_at, started_at, ended_at"


@dataclass(frozen=True)
class SentRun:
    """A run of a block that is not DONE on the front."""

    run_id: int
    job_id: int
    number: int
    state: str
    started_at: float | None
    token: str
    cancel_requested_at: float | None

    @property
    def name(self) -> str:
        """Its name, 12.3."""
        return f"{self.job_id}.{self.number}"


def remote_lanes(connection: sqlite3.Connection) -> dict[str, RemoteLane]:
    """Return the lanes with runs that are not DONE by name, in the order of their submission."""
    lanes = [RemoteLane(**{**row, "silent": bool(row["silent"])}) for row in connection.execute(_LANES, [REMOTE_GLOB])]
    return {lane.lane: lane for lane in lanes}


def open_lanes(connection: Connection) -> list[str]:
    """Return the names of the lanes that have runs which are not DONE."""
    sql = "SELECT DISTINCT lane FROM runs WHERE state <> 'DONE' AND lane GLOB ? ORDER BY lane"
    return connection.column(sql, [REMOTE_GLOB])


def something_waits(connection: Connection) -> bool:
    """Return whether a run of a remote lane is waiting to be sent or under way."""
    sql = "SELECT 1 FROM runs WHERE state IN ('QUEUED', 'RUNNING') AND lane GLOB ? LIMIT 1"
    return connection.row(sql, [REMOTE_GLOB]) is not None


def open_tokens(connection: Connection) -> set[str]:
    """Return the tokens of the blocks that have runs which are not DONE."""
    return {*connection.column("SELECT DISTINCT token FROM runs WHERE state <> 'DONE' AND token IS NOT NULL")}


def past_tokens(connection: Connection) -> list[tuple[str, str]]:
    """Return the tokens and lanes of the blocks whose runs are all DONE."""
    sql = "SELECT DISTINCT token, lane FROM runs WHERE token IS NOT NULL AND lane GLOB ?"
    open_ = open_tokens(connection)
    return [(token, lane) for token, lane in connection.rows(sql, [REMOTE_GLOB]) if token not in open_]


def ready(connection: Connection, lane: str, now: float) -> list[int]:
    """Return the runs of a lane that may start and were not sent, in their order."""
    sql = "SELECT id FROM runs WHERE lane = ? AND token IS NULL AND cancel_requested_at IS NULL"
    unsent = {*connection.column(sql, [lane])}
    startable = connection.column(hot_sql.STARTABLE, {"this_lane": lane, "now": now})
    return [run_id for run_id in startable if run_id in unsent]


def instructions(connection: Connection, run_ids: Sequence[int]) -> dict[str, Any]:
    """Return what a node needs to know of these runs: their jobs, and the runs in their order."""
    ids = [json.dumps(list(run_ids))]
    with_jobs = f"(SELECT job_id FROM runs WHERE id IN {_CHOSEN})"
    place = "job_id, number, repeat, attempt, position, created_at"
    (group,) = connection.records(
        f"SELECT id AS 'group', title, seed FROM groups WHERE id = (SELECT group_id FROM jobs WHERE id IN {with_jobs})",
        ids,
    )
    return {
        **group,
        "jobs": connection.records(f"SELECT {_COPIED} FROM jobs WHERE id IN {with_jobs} ORDER BY id", ids),
        "runs": connection.records(f"SELECT {place} FROM runs WHERE id IN {_CHOSEN} ORDER BY position, id", ids),
    }


def mark_sent(connection: Connection, run_ids: Sequence[int], token: str) -> int:
    """Mark runs as part of a block; return how many of them still waited."""
    sql = f"UPDATE runs SET token = ? WHERE id IN {_CHOSEN} AND state = 'QUEUED' AND token IS NULL"
    return connection.change(sql, [token, json.dumps(list(run_ids))])


def take_back(connection: Connection, token: str) -> None:
    """Unmark the runs of a block that was never started."""
    connection.change("UPDATE runs SET token = NULL WHERE token = ? AND state IN ('QUEUED', 'HELD')", [token])


def sent(connection: Connection, lane: str) -> list[SentRun]:
    """Return the runs of the lane's blocks that are not DONE, in their order."""
    sql = f"{_SENT} WHERE lane = ? AND state <> 'DONE' AND token IS NOT NULL ORDER BY position, id"
    return [SentRun(*row) for row in connection.rows(sql, [lane])]


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
    told: Mapping[str, Any],
    env: dict[str, str] | None,
    default_env: dict[str, str],
    python: str | None,
) -> None:
    """Store the jobs and runs of a block under their own ids; the front alone retries and replaces.

    `env` is what a scheduler has set on the node: it takes precedence in every job, and what the front had under such
    names (OF_NODE) is dropped; None where there is no scheduler. A job's own variables take precedence over
    `default_env`. `python` is the interpreter of the workloads, if it is another one than the front's.
    """
    _insert(connection, "groups", [{"id": told["group"], "created_at": 0.0} | {k: told[k] for k in ("title", "seed")}])
    rows = []
    for job in told["jobs"]:
        spec = json.loads(job["spec_json"])
        sent = told["environments"].get(spec["env_file"], spec["env"])
        values = default_env | {k: v for k, v in sent.items() if env is None or not k.startswith(OF_NODE)} | (env or {})
        spec |= {"env": job_environments.public(layout, values), "env_file": job_environments.save(layout, values)}
        spec |= {"until_valid": False, "on": {}}
        if python is not None:
            spec["python"] = python if spec["kind"] == "workload" else ""
        rows.append({**job, "group_id": told["group"], "spec_json": json.dumps(spec, sort_keys=True)})
    _insert(connection, "jobs", rows)
    _insert(connection, "runs", [{**run, "lane": DEFAULT_LANE, "state": State.QUEUED} for run in told["runs"]])


def _insert(connection: Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    names = rows[0].keys()
    marks = ", ".join(f":{name}" for name in names)
    connection.change_all(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)


def result(connection: Connection, run_id: int, own_note: int) -> dict[str, Any]:
    """Return what the front needs besides the files of a run that is DONE."""
    (ending,) = connection.records(f"SELECT {_ENDING} FROM runs WHERE id = ?", [run_id])

    def data(kind: str) -> Any:
        sql = f"SELECT data_json FROM fingerprints WHERE hash = (SELECT {kind}_hash FROM runs WHERE id = ?)"
        return json.loads(connection.value(sql, [run_id]) or "{}")

    samples = connection.rows("SELECT at, data_json FROM conditions WHERE run_id = ?", [run_id])
    return {
        **ending,
        "exit": json.loads(connection.value("SELECT exit_json FROM exits WHERE run_id = ?", [run_id]) or "null"),
        "machine": data("machine"),
        "system": data("software").get("system", {}),
        "conditions": [[at, json.loads(text)] for at, text in samples],
        "notes": connection.rows('SELECT kind, text FROM notes WHERE run_id = ? AND "offset" = ?', [run_id, own_note]),
    }
