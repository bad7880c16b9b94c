"""The ends of runs since an entry of the history, and whether the queue is idle: what hooks are called for."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from queue_runner.model import PREFLIGHT, Outcome, Verb
from queue_runner.store import added_rounds, hot_sql, ready
from queue_runner.store.engine import Connection


class EndedRun(Struct, frozen=True):
    """The end of a run. `event` is the hook that it calls, done or failed; None for neither."""

    event_id: int
    run_id: int
    event: str | None


_RUN_ENDS = """
SELECT e.id, e.verb, e.run_id, r.outcome, r.number FROM job_events e JOIN runs r ON r.id = e.run_id
WHERE e.id > ? AND e.verb IN ('finish', 'skip') ORDER BY e.id
"""


def since(connection: Connection, event_id: int) -> list[EndedRun]:
    """Return the runs that a worker has ended or skipped since an entry of the history. A cancelled run calls no hook:
    the user who cancelled it knows. Nor does a skipped run, or a preflight that succeeded."""
    ends = []
    for id, verb, run_id, outcome, number in connection.rows(_RUN_ENDS, [event_id]):
        event: str | None = "done" if outcome == Outcome.SUCCEEDED else "failed"
        if verb == Verb.SKIP or outcome == Outcome.CANCELLED or (event == "done" and number == PREFLIGHT):
            event = None
        ends.append(EndedRun(id, run_id, event))
    return ends


def is_idle(connection: Connection, stuck: Collection[int] = ()) -> bool:
    """Return whether no run is active, no round follows, and no waiting run starts without user action, as those of the
    jobs `stuck`."""
    running = connection.row("SELECT 1 FROM runs WHERE state = 'RUNNING' LIMIT 1")
    if running is not None or added_rounds.ended(connection):
        return False
    waiting = {*connection.column(hot_sql.ALL_UNPAUSED_JOBS)}.difference(stuck)
    paused = set(connection.column(hot_sql.ALL_QUEUED_JOBS)) - waiting
    return ready.behind_held(connection, paused).keys() >= waiting
