"""Rounds until a question is answered (--until): whether another one follows the newest, and why not.

The words are those of the report. They are computed before the write lock is taken; the round is then added only if
nothing has changed meanwhile, so that neither a crash nor a second worker repeats or loses one.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable

from queue_runner import units
from queue_runner.host import failpoints
from queue_runner.model import Outcome
from queue_runner.paths import Layout
from queue_runner.spec import DECIDED, MOST_OFFERED, MOST_ROUNDS, Until, more_rounds
from queue_runner.store import added_rounds, read
from queue_runner.store.added_rounds import OpenGroup
from queue_runner.store.engine import Engine, looking, writing
from queue_runner.submit import run_order

NOTHING: tuple[int, int | None] = 0, None
"""No round that counts."""
FEW_ROUNDS = 6
FEW_S = 60.0
HOPELESS = 5
"""After so many rounds and seconds, a question without --budget ends if it needs HOPELESS times the rounds left."""
PATIENT_SHARE = 0.5
"""When its next round would end after this share of the time, it ends if it needs more rounds than are left."""


def follow(layout: Layout, engine: Engine, group_id: int, repeat: int, now: float, log: Callable[[str], None]) -> None:
    """Add the round after `repeat`, the newest of an open submission, or close it; on a cluster as many rounds as are
    probably needed, and can run at once. Raises: MpsqError (store)."""
    with looking(engine) as connection:
        group = added_rounds.open_group(connection, group_id, repeat)
    if group is None:
        return
    progress, why = _judged(layout, group_id, group, now)
    _, more = progress
    count = max(1, min(more or group.at_once, group.at_once, MOST_ROUNDS - repeat))
    failpoints.reach("round.computed")
    with writing(engine) as connection:
        if added_rounds.open_group(connection, group_id, repeat) != group:
            return  # the next step judges it as it is now
        if why:
            added_rounds.close(connection, group_id, why, now)
        else:
            added_rounds.add(connection, group_id, count, run_order.round_order, "worker")
            added_rounds.note(connection, group_id, *progress)
        failpoints.reach("round.before_commit")
    end = "decided, so no further round follows" if why == DECIDED else f"no further round follows, because {why}"
    following = f"{units.counted(count, 'round')} follow{'s' * (count == 1)}"
    log(f"g{group_id}: {end if why else following}")


def _judged(layout: Layout, group_id: int, group: OpenGroup, now: float) -> tuple[tuple[int, int | None], str]:
    """Return how many rounds count and about how many more are needed; and why none follows, "" if one does."""
    if not group.is_whole:
        return NOTHING, "a job was deleted"
    remedy = f"{more_rounds(group_id)} adds rounds"
    if Outcome.CANCELLED in group.outcomes:
        return NOTHING, f"a run of round {group.repeat} was cancelled: {remedy}"
    is_over = group.first_started_at is not None and now - group.first_started_at >= group.until.limit_s
    if Outcome.SUCCEEDED not in group.outcomes and not is_over:
        return NOTHING, f"no run of round {group.repeat} succeeded: mpsq why g{group_id}"
    from queue_runner.analysis.rounds import further
    from queue_runner.monitor import answers

    with read.reading(layout.db) as connection:
        longest = _longest(connection, group_id, group.until.limit_s) if is_over else ""
        try:
            families = answers.of_group(connection, group_id)
            reached = answers.reached(families, group.until.goal)
        except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError) as error:
            return NOTHING, f"the rows cannot be compared ({type(error).__name__}: {error}): please report this"
    progress = answers.rounds_judged(families), answers.rounds_left(families)
    if reached:
        return progress, reached
    _, more = progress
    names = " and ".join(answers.still_open(families))
    for_what = f" for a verdict on {names}" if names else ""
    needed = f"{further(more)} would be needed{for_what}" if more != 0 else remedy
    if more and more <= MOST_OFFERED:
        needed += f": {more_rounds(group_id, more)} adds them"
    if is_over:
        return progress, f"the budget of {units.duration(group.until.limit_s)} is used up{longest}; {needed}"
    if obstacle := answers.obstacle(families, group.until.goal):
        return progress, obstacle
    if group.repeat >= MOST_ROUNDS:
        return progress, f"the limit of {MOST_ROUNDS} rounds is reached; {needed}"
    if group.until == Until() and (math.inf if more is None else more) > _most_rounds_left(group, now):
        return progress, needed
    return progress, ""


def _longest(connection: sqlite3.Connection, group_id: int, limit_s: float) -> str:
    """Name the run that took more than half of the budget, such as one that compiled; "" if there is none."""
    run, real_s = next(read.tuples(connection, _LONGEST, [group_id]), ("", 0.0))
    return f" (run {run} took {units.duration(real_s)})" if real_s > limit_s / 2 else ""


_LONGEST = "SELECT run, real_s FROM v_run WHERE group_id = ? AND real_s IS NOT NULL ORDER BY real_s DESC LIMIT 1"


def _most_rounds_left(group: OpenGroup, now: float) -> float:
    """Return how many more rounds a question may need without being given up: in its first rounds any number."""
    elapsed_s, limit_s = now - (group.first_started_at or now), group.until.limit_s
    if elapsed_s < FEW_S:
        return math.inf
    left = min(MOST_ROUNDS - group.repeat, (limit_s - elapsed_s) * group.repeat / elapsed_s)
    if elapsed_s + elapsed_s / group.repeat > PATIENT_SHARE * limit_s:
        return left
    return HOPELESS * left if group.repeat >= FEW_ROUNDS else math.inf
