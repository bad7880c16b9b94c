"""A schedule is a stored command line of `mpsq submit`, with its folder and interpreter, instead of a stored request.

The variables of --env are in the file with its environment (0011): the command line has their names.
"""

import json
import shlex
from typing import Any

from alembic import op

revision = "0012"
down_revision = "0011"

OPTIONS = {
    **{name: name.replace("_", "-") for name in ("device", "compile", "config", "dtype", "framework", "gpus", "name")},
    **{name: name.replace("_", "-") for name in ("repeats", "seed", "order_seed", "priority", "env_name", "python")},
    **{
        name: name.replace("_", "-") for name in ("parser", "at", "deadline", "note", "retries", "retry_on", "find_max")
    },
    **{"on": "on", "partition": "partition", "sbatch": "sbatch"},
    **{"timeout_s": "timeout", "backoff_s": "backoff", "gate_timeout_s": "gate-timeout", "time_s": "time"},
    **{"sets": "set", "tags": "tag", "secrets": "secret", "mps": "mps", "after": "after", "stall": "stall"},
    **{"allow_daemons": "allow-daemons", "hold": "hold", "resume": "resume", "allow_changed": "allow-changed"},
    **{"no_gate": "no-gate", "randomize": "randomize", "allow_plain": "allow-plain"},
    **{"preflight": "preflight", "until_valid": "until-valid"},
}
"""The option that sets each field of a stored request."""


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    for column in ("command_json", "cwd", "python"):
        execute(f"ALTER TABLE schedules ADD COLUMN {column} TEXT")
    for id, text in execute("SELECT id, request_json FROM schedules").fetchall():
        request = json.loads(text)
        command = json.dumps(words(request))
        values = (command, shlex.join(json.loads(command)), request.get("cwd") or "/", id)
        execute("UPDATE schedules SET command_json = ?, title = ?, cwd = ? WHERE id = ?", values)
    execute("ALTER TABLE schedules DROP COLUMN request_json")


def words(request: dict[str, Any]) -> list[str]:
    """Return the command line that a stored request was read from."""
    options: list[str] = []
    for field, option in OPTIONS.items():
        value = request.get(field)
        if isinstance(value, bool):
            options += (
                [f"--{option}"] if value else [f"--no-{option}"] if option in ("preflight", "until-valid") else []
            )
        elif isinstance(value, list):
            options += [f"--{option}={word}" for word in value]
        elif value not in (None, "", 0, 0.0):
            options.append(f"--{option}={value}")
    options += [f"--env={pair.partition('=')[0]}" for pair in request.get("env") or ()]
    options += ["--snapshot=copy"] if request.get("copy") else []
    if request.get("workload"):
        return [request["workload"], *options]
    return [*options, "--", *(request.get("argv") or ())]
