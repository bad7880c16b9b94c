"""The conditions of waiting runs: the one place that decides whether a run may start, and whether it never will.

A run may start when it is QUEUED, its lane is not paused, its time has come and every job that it waits for has ended
as required (the view v_dependency). A run never will, and is SKIPPED, when one of them has ended otherwise, when its
deadline has passed, or when the --budget of its question is over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from queue_runner.model import DEFAULT_LANE, NOT_FAILED, PREFLIGHT, Condition, Ending, Outcome, Verb
from queue_runner.spec import BUDGET_S, FIRST_ROUNDS
from queue_runner.store import added_rounds
from queue_runner.store.engine import Connection

_NOT_AS_WANTED = {
    Condition.OK: "job {on} did not succeed",
    Condition.FAIL: f"job {{on}} {NOT_FAILED}",
    Condition.ANY: "job {on} will never end",
}
_RUNS = "FROM runs r JOIN jobs j ON j.id = r.job_id"
_PAUSED = f"EXISTS (SELECT 1 FROM lanes WHERE name IN (:this_lane, '{DEFAULT_LANE}') AND paused_at IS NOT NULL)"
"""Whether the lane is paused, or the whole queue: also for lanes of other machines."""
_BOUND_TO_PAUSED = f"""
EXISTS (SELECT 1 FROM lanes l WHERE instr(',' || j.lane || ',', ',' || l.name || ',') > 0
    AND l.name <> '{DEFAULT_LANE}' AND l.paused_at IS NOT NULL)
"""
"""Whether a lane that a job is bound to, or one of several, is paused."""
MAY_START = f"""
{_RUNS} WHERE r.state = 'QUEUED' AND r.lane = :this_lane
AND (r.not_before_at IS NULL OR r.not_before_at <= :now) AND (j.deadline_at IS NULL OR j.deadline_at > :now)
AND NOT EXISTS (SELECT 1 FROM v_dependency d WHERE d.job_id = r.job_id AND d.verdict <> 'met')
AND NOT {_PAUSED} AND NOT {_BOUND_TO_PAUSED}
"""
"""The runs that may start on a lane now (Unix seconds)."""
CAN_START = f"SELECT 1 {MAY_START} LIMIT 1"
_QUEUED_JOBS = f"SELECT DISTINCT job_id FROM runs WHERE state = 'QUEUED' AND lane = :this_lane AND NOT {_PAUSED}"
_PAUSED_JOBS = (
    f"SELECT DISTINCT r.job_id {_RUNS} WHERE r.state = 'QUEUED' AND r.lane = :this_lane AND {_BOUND_TO_PAUSED}"
)
HELD_JOBS = "SELECT job_id FROM runs WHERE state <> 'DONE' AND state = 'HELD'"
"""In these words it has the condition of an index: SQLite does not see that HELD implies it."""
_WAITS = "state <> 'DONE' AND state <> 'RUNNING' AND token IS NULL"
"""Whether a run waits here: one with a token was sent to a node."""
NEXT_START_AT = f"SELECT min(not_before_at) FROM runs WHERE {_WAITS} AND not_before_at > :now"
NEXT_DEADLINE_AT = f"""
SELECT min(deadline_at) FROM jobs j
WHERE deadline_at > :now AND EXISTS (SELECT 1 FROM runs WHERE job_id = j.id AND {_WAITS})
"""
MISSED = f"""
SELECT r.id, d.on_job_id, d.condition FROM runs r JOIN v_dependency d ON d.job_id = r.job_id
WHERE {_WAITS} AND d.verdict = 'impossible'
"""
LATE = f"SELECT id FROM runs r WHERE {_WAITS} AND job_id IN (SELECT id FROM jobs WHERE deadline_at <= :now)"
_AMONG = " AND r.job_id BETWEEN :first_job AND :last_job"
ALL_QUEUED_JOBS = "SELECT job_id FROM runs WHERE state = 'QUEUED'"
ALL_UNPAUSED_JOBS = f"""
SELECT r.job_id {_RUNS} WHERE r.state = 'QUEUED' AND NOT {_BOUND_TO_PAUSED}
AND NOT EXISTS (SELECT 1 FROM lanes l WHERE l.paused_at IS NOT NULL
    AND (l.name = r.lane OR l.name = '{DEFAULT_LANE}' AND r.token IS NULL))
"""
UNDECIDED = "SELECT job_id, on_job_id FROM v_dependency WHERE verdict = 'undecided'"
"""Pairs of a job and one that it waits for."""
_OPEN_RUNS = """
groups g CROSS JOIN jobs j ON j.group_id = g.id CROSS JOIN runs r ON r.job_id = j.id
WHERE g.until IS NOT NULL AND g.closed_at IS NULL
"""
_ADDED_BY_MPSQ = f"""
(SELECT e.actor = 'worker' OR e.verb = '{Verb.SUBMIT_HELD}' FROM job_events e
WHERE e.run_id = r.id AND e.verb IN ('{Verb.SUBMIT}', '{Verb.SUBMIT_HELD}'))
"""
"""Whether mpsq added the run, held where its question was paused; else `mpsq rerun --rounds`. NULL: it was planned."""
_BUDGETS = f"""
SELECT r.id, b.over_at FROM (
    SELECT g.id, g.budget_s, COALESCE(g.budget_s, {BUDGET_S}) + min(r.started_at) AS over_at
    FROM {_OPEN_RUNS} GROUP BY g.id
) b CROSS JOIN jobs j ON j.group_id = b.id CROSS JOIN runs r ON r.job_id = j.id
WHERE r.state IN ('QUEUED', 'HELD') AND r.token IS NULL AND r.number <> {PREFLIGHT} AND b.over_at IS NOT NULL
AND COALESCE({_ADDED_BY_MPSQ}, r.repeat <= {FIRST_ROUNDS})
AND CASE WHEN r.repeat <= {FIRST_ROUNDS} THEN b.budget_s IS NOT NULL ELSE (b.id, r.repeat) NOT IN (
    SELECT g.id, r.repeat FROM {_OPEN_RUNS} AND r.started_at IS NOT NULL
) END
"""


def budgets(connection: Connection) -> list[tuple[int, float]]:
    """Return the waiting runs that will not start once a budget is over, and when that is (Unix seconds).

    In the first rounds only a budget that was given counts. A later round that has begun is completed. Rounds that
    a user adds always run, and so do those of a fixed number.
    """
    return connection.rows(_BUDGETS)


def something_can_start(connection: Connection, lane: str, now: float) -> bool:
    """Return whether a claim would find a run."""
    return connection.row(CAN_START, {"this_lane": lane, "now": now}) is not None


def something_waits(connection: Connection, lane: str, now: float, stuck: Collection[int] = ()) -> bool:
    """Return whether a run is QUEUED on the lane that will start some day, or be skipped, without user action.

    Those of a paused lane and of the jobs `stuck` do not count, nor those that wait for them or for a held run."""
    if not stuck and something_can_start(connection, lane, now):
        return True
    queued_jobs = set(connection.column(_QUEUED_JOBS, {"this_lane": lane}))
    if not queued_jobs:
        return False
    paused = {*stuck, *connection.column(_PAUSED_JOBS, {"this_lane": lane})}
    return bool(queued_jobs - paused - behind_held(connection, paused).keys())


def behind_held(connection: Connection, others: Collection[int] = ()) -> dict[int, int]:
    """Return the jobs that wait, even indirectly, for a job with a held run or one of these `others`, and that job."""
    held = {*others, *connection.column(HELD_JOBS)}
    return behind(held, connection.rows(UNDECIDED)) if held else {}


def behind(held: Collection[int], undecided: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the jobs that wait, even indirectly, for a `held` one, and that; `undecided` has the rows of UNDECIDED."""
    waits: dict[int, int] = {}
    while more := {job: waits.get(on, on) for job, on in undecided if job not in waits and (on in waits or on in held)}:
        waits |= more
    return waits


def next_change_at(connection: Connection, now: float) -> float | None:
    """Return the next time (Unix seconds) at which waiting alone changes what may start; None where there is none."""
    times = [connection.value(sql, {"now": now}) for sql in (NEXT_START_AT, NEXT_DEADLINE_AT)]
    times += (over_at for _, over_at in budgets(connection) if over_at > now)
    return min((at for at in times if at is not None), default=None)


def unsatisfiable(connection: Connection, now: float, among: Sequence[int] | None = None) -> list[tuple[int, Ending]]:
    """Return runs that can never start, by id, and how each ends; only runs of the jobs `among` if given."""
    values = {} if among is None else {"first_job": min(among), "last_job": max(among)}
    only = _AMONG if values else ""
    endings: dict[int, Ending] = {}
    for run_id, on, condition in sorted(connection.rows(MISSED + only, values)):
        why = _NOT_AS_WANTED[Condition(condition)].format(on=on)
        endings.setdefault(run_id, Ending(Outcome.SKIPPED, reason=f"dependency: {why}"))
    for run_id in connection.column(LATE + only, {**values, "now": now}):
        endings.setdefault(run_id, Ending(Outcome.SKIPPED, reason="deadline: it did not start before its --deadline"))
    for run_id, over_at in budgets(connection) if among is None else ():
        if over_at <= now:
            endings.setdefault(run_id, Ending(Outcome.SKIPPED, reason="budget: it did not start in time"))
    return list(endings.items())


def is_idle(connection: Connection, stuck: Collection[int] = ()) -> bool:
    """Return whether no run is active, no round follows, and no waiting run starts without user action, as those of the
    jobs `stuck`."""
    running = connection.row("SELECT 1 FROM runs WHERE state = 'RUNNING' LIMIT 1")
    if running is not None or added_rounds.ended(connection):
        return False
    waiting = {*connection.column(ALL_UNPAUSED_JOBS)}.difference(stuck)
    paused = set(connection.column(ALL_QUEUED_JOBS)) - waiting
    return behind_held(connection, paused).keys() >= waiting
