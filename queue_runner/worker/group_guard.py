"""Pause a group whose runs fail at once, and skip its runs on a device that is not there: one mistake must not use up
a night."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from queue_runner.ingest.outcome import SILENT
from queue_runner.model import Ending, Outcome, Verb
from queue_runner.spec import JobSpec
from queue_runner.store import jobs
from queue_runner.store.engine import Connection
from queue_runner.store.jobs import Claimed

AT_ONCE_S = 1.0
"""A run that fails within this time of its start has not begun its work."""
_FAILED = (Outcome.FAILED, Outcome.KILLED, Outcome.SPAWN_FAILED, Outcome.CODE_CHANGED, Outcome.DISK_FULL)
_NAMED = 5
"""Runs that a reason names."""

_WHERE = ("$.python", "$.env_name", "$.env", "$.mps", "$.cwd", "$.device", "$.argv")
"""The fields of a specification that decide, beside the program, whether a run finds its device."""
_PROGRAM = 3
"""How many words of a command name its program: `python -u train.py`, `sh -c 'exit 2'`."""
_SAME_QUESTION = "j.spec_hash = o.spec_hash"
_IN_GROUP = """
r.job_id IN (SELECT id FROM jobs WHERE group_id = (SELECT group_id FROM jobs WHERE id = :job))
AND EXISTS (SELECT 1 FROM jobs j JOIN jobs o ON o.id = :job WHERE j.id = r.job_id AND {})
"""
"""Whether the job j of a run is in the group of the job o, and like it. The latter reads whole specifications: as a
correlated subquery, SQLite evaluates it last, for the few runs that fit otherwise."""


def guard(connection: Connection, run: Claimed, ending: Ending, limit: int, now: float) -> None:
    """Skip or hold the waiting runs of a run's group that would fail as it did.

    A device that was found missing is not tried again by runs of the same program in the same environment. After
    `limit` first attempts in a row failed at once with the same cause, their jobs are held until the user releases
    them. So are jobs of the same program if none of these has succeeded. A limit of 0 holds nothing.
    """
    if ending.outcome is Outcome.DEVICE_UNAVAILABLE and run.spec.device is not None:
        waits = "(r.state = 'QUEUED' OR (r.state = 'HELD' AND r.blocked_reason IS NOT NULL))"
        skipped = Ending(Outcome.SKIPPED, reason=f"device: run {run.id} could not use {run.spec.device}")
        ids = _ids(connection, f"{_IN_GROUP.format(_same(*_WHERE))} AND {waits}", run)
        jobs.move_all(connection, ids, Verb.SKIP, actor="worker", ending=skipped, ended_at=now)
    elif limit and ending.outcome in _FAILED and not run.spec.within:  # a failure ends the rounds of a judged run
        same_program = _same(*_program(run.spec))
        for same in (_SAME_QUESTION,) if ending.reason == SILENT else (same_program, _SAME_QUESTION):
            if _hold(connection, run, same, limit):
                return


def _program(spec: JobSpec) -> Iterator[str]:
    """Return the paths of the words that name the program, but for those with a swept value: --lr={lr}."""
    values = [str(value) for value in spec.params.values() if str(value)]
    for at in range(_PROGRAM):
        if at >= len(spec.argv) or not any(value in spec.argv[at] for value in values):
            yield f"$.argv[{at}]"


def _same(*paths: str) -> str:
    """Return whether two jobs have the same program, and the same values at `paths` of their specifications."""
    columns = [f"j.{name} IS o.{name}" for name in ("kind", "workload", "framework")]
    fields = [f"json_extract(j.spec_json, '{at}') IS json_extract(o.spec_json, '{at}')" for at in ("$.script", *paths)]
    return " AND ".join([*columns, *fields])


class _EndedRun(NamedTuple):
    id: int
    name: str
    outcome: str
    exit_code: int | None
    signal: int | None
    reason: str | None
    entry: int  # of the history, where it ended: no clock decides which end came last
    real_s: float | None


_LAST = """
SELECT r.id, r.job_id || '.' || r.number, r.outcome, r.exit_code, r.signal, r.reason,
    ifnull((SELECT max(id) FROM job_events WHERE run_id = r.id AND verb = 'finish'), 0) AS entry, e.real_s
FROM runs r LEFT JOIN exits e ON e.run_id = r.id
WHERE {} AND r.state = 'DONE' AND r.outcome NOT IN ('SKIPPED', 'CANCELLED')
ORDER BY entry DESC LIMIT :limit
"""
_HELD = """
SELECT max(v.id) FROM job_events v JOIN runs r ON r.id = v.run_id WHERE {} AND v.verb = 'hold' AND v.actor = 'worker'
"""


def _hold(connection: Connection, run: Claimed, same: str, limit: int) -> bool:
    """Hold the runs of the jobs alike if the last `limit` of them failed at once with one cause; return whether so.

    Retries neither count nor are held, nor is a job with --backoff: they are agreed to fail.
    """
    first = f"{_IN_GROUP.format(f'j.backoff_s = 0 AND {same}')} AND r.attempt = 1"
    values = {"job": run.id.job, "limit": limit}
    last = [_EndedRun(*row) for row in connection.rows(_LAST.format(first), values)]
    causes = {(end.outcome, end.exit_code, end.signal, re.sub(r"\d+", "#", end.reason or "")) for end in last}
    at_once = all(end.outcome in _FAILED and (end.real_s or 0.0) <= AT_ONCE_S for end in last)
    if len(last) < limit or last[0].id != run.run_id or len(causes) > 1 or not at_once:
        return False
    held = connection.value(_HELD.format(first), values)
    if held is not None and held > last[-1].entry:  # those before the last hold by mpsq do not count
        return False
    if _ids(connection, f"{first} AND r.outcome = 'SUCCEEDED'", run):
        return False
    names = "..., " * (limit > _NAMED) + ", ".join(end.name for end in reversed(last[:_NAMED]))
    cause = Ending(Outcome(last[0].outcome), last[0].exit_code, last[0].signal)
    why = f"{cause}: {last[0].reason}" if last[0].reason else str(cause)
    runs, their = (f"{limit} runs in a row", "their") if limit > 1 else ("1 run", "its")
    reason = f"{runs}, {names}, failed within a second of {their} start (setting hold_after_failures): {why}"
    queued = _ids(connection, f"{first} AND r.state = 'QUEUED'", run)
    jobs.move_all(connection, queued, Verb.HOLD, actor="worker", reason=reason, blocked_reason=reason)
    return True


def _ids(connection: Connection, condition: str, run: Claimed) -> list[int]:
    return connection.column(f"SELECT r.id FROM runs r WHERE {condition}", {"job": run.id.job})
