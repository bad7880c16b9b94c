"""Captured environments leave the database: those that a run may still need go into private files.

Of variables the database keeps the values of those on the list of queue_runner.host.redact, and of all others a keyed hash.
A job's content hash stays, except where a value of --env, which is part of the question, becomes a hash: it gets the
content hash that the same submission has now.
"""

import json
import re
import shlex
from pathlib import Path

from alembic import op

from queue_runner.host import job_environments, redact
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec

revision = "0011"
down_revision = "0010"

_WAITING = "SELECT job_id FROM runs WHERE state <> 'DONE' OR outcome <> 'SUCCEEDED'"


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    (path,) = (row[2] for row in execute("PRAGMA database_list") if row[1] == "main")
    layout = Layout(Path(path).parent)
    execute("ALTER TABLE schedules ADD COLUMN env_file TEXT")
    needed = {row[0] for row in execute(f"SELECT id FROM jobs WHERE deleted_at IS NULL AND id IN ({_WAITING})")}
    public: dict[str, dict[str, str]] = {}
    for (job,) in execute("SELECT id FROM jobs ORDER BY id").fetchall():
        ((text, digest),) = execute("SELECT spec_json, spec_hash FROM jobs WHERE id = ?", (job,))
        spec = json.loads(text)
        env, variables = spec.get("env") or {}, spec.get("variables") or {}
        if not env and not variables:
            continue
        if (key := json.dumps(env, sort_keys=True)) not in public:
            public[key] = job_environments.public(layout, env)
        spec["env_file"] = job_environments.save(layout, env) if job in needed else ""
        spec |= {"env": public[key], "variables": job_environments.public(layout, variables)}
        text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
        if spec["variables"] != variables:
            known = {name: spec[name] for name in JobSpec.__slots__ if name in spec}  # a later version has fewer fields
            digest = JobSpec.from_json(json.dumps(known)).content_hash()
        execute("UPDATE jobs SET spec_json = ?, spec_hash = ? WHERE id = ?", (text, digest, job))
    for schedule, text in execute("SELECT id, request_json FROM schedules").fetchall():
        request = json.loads(text)
        given = redact.assignments(request.get("env") or (), "--set")
        name = job_environments.save(layout, (request.get("environment") or {}) | given)
        hidden = job_environments.public(layout, given)
        request |= {"environment": None, "env": [f"{name}={value}" for name, value in hidden.items()]}
        execute(
            "UPDATE schedules SET request_json = ?, env_file = ? WHERE id = ?", (json.dumps(request), name, schedule)
        )
    triggers = execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'job_events'"
    ).fetchall()
    for name, _ in triggers:  # they make the table append-only
        execute(f"DROP TRIGGER {name}")
    for table, column in (("groups", "title"), ("schedules", "title"), ("job_events", "reason")):
        for row, line in execute(f"SELECT id, {column} FROM {table} WHERE {column} LIKE '%--env%'").fetchall():
            execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (_without_values(line), row))
    for _, sql in triggers:
        execute(sql)


def _without_values(line: str) -> str:
    try:
        return shlex.join(redact.without_env_values(shlex.split(line)))
    except ValueError:  # a quotation that does not end
        return re.sub(r"(--env[ =]\w+)=\S+", rf"\1={redact.HIDDEN}", line)
