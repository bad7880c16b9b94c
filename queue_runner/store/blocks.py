"""Blocks: the runs of a remote lane that were sent to a node together. A run that was sent has the block's token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import insert, select, update

from queue_runner.host import job_environments
from queue_runner.lanes import REMOTE_GLOB
from queue_runner.model import DEFAULT_LANE, RunId, State
from queue_runner.paths import Layout
from queue_runner.spec import OF_NODE, JobSpec
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import Claimed
from queue_runner.store.schema import conditions, exits, fingerprints, groups, jobs, notes, runs
from queue_runner.store.statements import MAY_START

_JOB = ("id", "group_id", "created_at", "name", "kind", "workload", "framework", "device", "compile", "dtype", "config")
_COPIED = (*_JOB, "spec_json", "spec_hash", "priority", "deadline_at")
_SENT = (
    *(runs.c.id, runs.c.job_id, runs.c.number, runs.c.state),
    *(runs.c.started_at, runs.c.token, runs.c.cancel_requested_at),
)
_REMOTE = runs.c.lane.op("GLOB")(REMOTE_GLOB)
_PLACE = ("number", "repeat", "attempt", "position", "created_at")


def open_lanes(connection: Connection) -> list[str]:
    """Return the remote lanes that have runs which are not DONE."""
    found = select(runs.c.lane).distinct().where(runs.c.state != State.DONE, _REMOTE)
    return sorted(connection.execute(found).scalars())


def something_waits(connection: Connection) -> bool:
    """Return whether a run of a remote lane is waiting to be sent or under way."""
    open_ = select(runs.c.id).where(_REMOTE, runs.c.state.in_((State.QUEUED, State.RUNNING)))
    return connection.execute(open_.limit(1)).first() is not None


def open_tokens(connection: Connection) -> set[str]:
    """Return the tokens of the blocks that have runs which are not DONE."""
    open_ = select(runs.c.token).distinct().where(runs.c.state != State.DONE, runs.c.token.is_not(None))
    return {str(token) for token in connection.execute(open_).scalars()}


def past_tokens(connection: Connection) -> list[tuple[str, str]]:
    """Return the blocks of which every run is DONE: their tokens and lanes."""
    sent_ = select(runs.c.token, runs.c.lane).distinct().where(_REMOTE, runs.c.token.is_not(None))
    open_ = open_tokens(connection)
    return [(row.token, row.lane) for row in connection.execute(sent_) if row.token not in open_]


def ready(connection: Connection, lane: str, now: float) -> list[int]:
    """Return the runs of a lane that may start and were not sent, in their order."""
    chosen = (
        select(runs.c.id)
        .join(jobs, jobs.c.id == runs.c.job_id)
        .where(*MAY_START, runs.c.token.is_(None), runs.c.cancel_requested_at.is_(None))
        .order_by(jobs.c.priority.desc(), runs.c.position, runs.c.id)
    )
    return list(connection.execute(chosen, {"this_lane": lane, "now": now}).scalars())


def instructions(connection: Connection, run_ids: Sequence[int]) -> dict[str, Any]:
    """Return what a node needs to know of these runs: their jobs, and the runs in their order."""
    ids = json.dumps(list(run_ids))
    chosen = "(SELECT value FROM json_each(?))"
    jobs_ = connection.records(
        f"SELECT {', '.join(_COPIED)} FROM jobs WHERE id IN (SELECT job_id FROM runs WHERE id IN {chosen}) ORDER BY id",
        [ids],
    )
    runs_ = connection.records(
        f"SELECT job_id, {', '.join(_PLACE)} FROM runs WHERE id IN {chosen} ORDER BY position, id", [ids]
    )
    group = jobs_[0]["group_id"]
    row = connection.execute(select(groups.c.title, groups.c.seed).where(groups.c.id == group)).one()
    return {"group": group, "title": row.title, "seed": row.seed, "jobs": jobs_, "runs": runs_}


def mark_sent(connection: Connection, run_ids: Sequence[int], token: str) -> int:
    """Mark runs as part of a block; return how many of them still waited."""
    waits = (runs.c.id.in_(list(run_ids)), runs.c.state == State.QUEUED, runs.c.token.is_(None))
    return connection.execute(update(runs).where(*waits).values(token=token)).rowcount


def take_back(connection: Connection, token: str) -> None:
    """Unmark the runs of a block that was never started."""
    waits = (runs.c.token == token, runs.c.state.in_((State.QUEUED, State.HELD)))
    connection.execute(update(runs).where(*waits).values(token=None))


def sent(connection: Connection, lane: str) -> list[dict[str, Any]]:
    """Return the runs of the lane's blocks that are not DONE, in their order: `run`, and the columns _SENT."""
    there = (runs.c.lane == lane, runs.c.state != State.DONE, runs.c.token.is_not(None))
    rows = connection.execute(select(*_SENT).where(*there).order_by(runs.c.position, runs.c.id)).mappings()
    return [{**row, "run": f"{row['job_id']}.{row['number']}"} for row in rows]


def state(connection: Connection, run_id: int) -> State:
    """Return the state of a run."""
    return State(connection.execute(select(runs.c.state).where(runs.c.id == run_id)).scalar_one())


def claimed(connection: Connection, run_id: int) -> Claimed:
    """Return a run of a block as the worker's functions take it."""
    row = connection.execute(
        select(runs.c.job_id, runs.c.number, runs.c.token, runs.c.boot_id, jobs.c.spec_json)
        .join(jobs, jobs.c.id == runs.c.job_id)
        .where(runs.c.id == run_id)
    ).one()
    id = RunId(row.job_id, row.number)
    return Claimed(run_id, id, JobSpec.from_json(row.spec_json), row.token or "", row.boot_id or "")


def load(
    connection: Connection,
    layout: Layout,
    told: Mapping[str, Any],
    env: dict[str, str] | None,
    default_env: dict[str, str],
    python: str | None,
) -> None:
    """Store, on a node, the jobs and runs of a block under their own ids; the front alone retries and replaces.

    `env` is what a scheduler has set on the node: it takes precedence in every job, and what the front had under such
    names (OF_NODE) is dropped; None where there is no scheduler. A job's own variables take precedence over
    `default_env`. `python` is the interpreter of the workloads, if it is another one than the front's.
    """
    connection.execute(insert(groups).values(id=told["group"], created_at=0.0, title=told["title"], seed=told["seed"]))
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
    connection.execute(insert(jobs), rows)
    connection.execute(insert(runs), [{**run, "lane": DEFAULT_LANE, "state": State.QUEUED} for run in told["runs"]])


def result(connection: Connection, run_id: int, own_note: int) -> dict[str, Any]:
    """Return, on a node, what the front needs beside the files of a run that is DONE."""
    run = dict(connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one())

    def data(hash: str | None) -> Any:
        text = connection.execute(select(fingerprints.c.data_json).where(fingerprints.c.hash == hash)).scalar()
        return json.loads(text) if text else {}

    exit_ = connection.execute(select(exits.c.exit_json).where(exits.c.run_id == run_id)).scalar()
    samples = connection.execute(select(conditions.c.at, conditions.c.data_json).where(conditions.c.run_id == run_id))
    told = connection.execute(
        select(notes.c.kind, notes.c.text).where(notes.c.run_id == run_id, notes.c.offset == own_note)
    )
    names = ("outcome", "exit_code", "signal", "reason", "claimed_at", "started_at", "ended_at", "boot_id", "state")
    return {
        **{name: run[name] for name in names},
        "exit": json.loads(exit_) if exit_ else None,
        "machine": data(run["machine_hash"]),
        "system": data(run["software_hash"]).get("system", {}),
        "conditions": [[row.at, json.loads(row.data_json)] for row in samples],
        "notes": [[row.kind, row.text] for row in told],
    }
