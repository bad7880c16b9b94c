"""The summary of a submission: its title, how its runs ended, and their notes."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from queue_runner import times, units
from queue_runner.model import FAILURES_SQL, Outcome, Selector, State
from queue_runner.monitor.run_view import RunView, last_attempts
from queue_runner.spec import FIRST_ROUNDS, MOST_ROUNDS
from queue_runner.store import read


def is_one_group(selectors: Sequence[Selector], runs: Sequence[RunView]) -> bool:
    """Return whether exactly one group was named, and it has several runs."""
    alone = len(selectors) == 1 and not selectors[0].tags and (selectors[0].group is not None or selectors[0].last)
    return alone and sum(not run.is_preflight for run in runs) > 1


def facts(connection: sqlite3.Connection, every_run: Sequence[RunView]) -> list[tuple[str, str]]:
    """Return names and values of the group that these runs belong to."""
    group = every_run[0].group_id
    sql = f"SELECT title, created_at, seed, {_CLOSED_WHY} FROM groups g WHERE id = ?"
    title, created_at, seed, closed_why = read.tuples(connection, sql, [group]).fetchone()
    runs = [run for run in every_run if not run.is_preflight]
    last = last_attempts(runs)
    n_jobs, n_deleted = len({run.job_id for run in runs}), len({run.job_id for run in runs if run.deleted_at})
    deleted = f", {units.count(n_deleted)} of them deleted" if n_deleted else ""
    is_over = all(run.state == State.DONE for run in last)
    real_s = sum(run.real_s or 0.0 for run in runs if run.state == State.DONE)
    pairs = [
        ("group", f"g{group}: {units.counted(n_jobs, 'job')}{deleted}, {units.counted(len(last), 'run')}"),
        ("command", title),
        ("submitted", times.stamp(created_at)),
        ("runs", _endings(last)),
        ("rounds", undecided(connection).get(group, "").partition(": ")[2] or (is_over and closed_why)),
        ("invalid", _invalid(last)),
        ("took", f"{units.duration(real_s)}, all runs together" if real_s else ""),
        ("order seed", str(seed)),
        ("note", "\n".join(sorted({run.note for run in runs if run.note}))),
    ]
    return [(name, value) for name, value in pairs if value]


_CLOSED_WHY = """CASE WHEN NOT EXISTS (
    SELECT 1 FROM jobs j JOIN runs r ON r.job_id = j.id WHERE j.group_id = g.id AND r.started_at > g.closed_at
) THEN g.closed_why END"""
"""Why no further round follows, unless one was added since."""
_OPEN = """
SELECT id, judged_rounds, more_rounds FROM groups WHERE until IS NOT NULL AND closed_at IS NULL ORDER BY id
"""


def undecided(connection: sqlite3.Connection) -> dict[int, str]:
    """Return how far each submission with --until is, by its group, as in "g4: undecided after 5 rounds"."""
    sentences = {}
    rows = read.tuples(connection, _OPEN).fetchall()
    so_far = progress(connection, [group_id for group_id, *_ in rows])
    for group_id, judged, more in rows:
        needed = f", about {more} more needed" if more else ""
        follow = so_far[group_id].most_rounds - so_far[group_id].ended_rounds
        if more and more > follow:
            needed += f", but at most {follow} follow{'s' * (follow == 1)}"
        after = f"undecided after {units.counted(judged, 'round')}{needed}"
        sentences[group_id] = f"g{group_id}: {after if judged else f'a verdict needs {FIRST_ROUNDS} rounds'}"
    return sentences


class GroupProgress(Struct, frozen=True):
    """How far a submission is: its command, why no further round follows, its rounds that have ended of those that are
    planned so far, its runs, each repeat once (run_view.last_attempts), those that failed, and all that wait,
    preflights too."""

    title: str
    closed_why: str | None
    more_follow: bool
    ended_rounds: int
    rounds: int
    runs: int
    failed: int
    waiting: int

    @property
    def most_rounds(self) -> int:
        """The rounds that are planned; while more may follow, all that may."""
        return max(MOST_ROUNDS, self.rounds) if self.more_follow else self.rounds

    @property
    def done(self) -> str:
        """How many rounds are done, in words, and of how many."""
        most = f"{'at most ' * self.more_follow}{units.counted(self.most_rounds, 'round')}"
        return f"{units.count(self.ended_rounds)} of {most} done"


_PROGRESS = f"""
WITH last AS (
    SELECT j.group_id, r.job_id, r.repeat, r.state, r.outcome, max(r.attempt)
    FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id IN ({{groups}}) AND r.number > 0
    GROUP BY r.job_id, r.repeat
), rounds AS (
    SELECT group_id, min(state = 'DONE' AND outcome NOT IN ('CANCELLED', 'SKIPPED')) AS ended, count(*) AS runs,
        sum(state = 'DONE' AND outcome IN {FAILURES_SQL}) AS failed
    FROM last GROUP BY group_id, repeat
)
SELECT g.id, g.title, {_CLOSED_WHY}, g.until IS NOT NULL AND g.closed_at IS NULL,
    sum(ended), count(*), sum(runs), sum(failed), (
    SELECT count(*) FROM jobs j JOIN runs r ON r.job_id = j.id WHERE j.group_id = g.id AND r.state IN ('QUEUED', 'HELD')
) FROM rounds JOIN groups g ON g.id = group_id GROUP BY g.id
"""
"""Of each repeat the last attempt counts: SQLite takes the other columns from the row of the max."""


def progress(connection: sqlite3.Connection, groups: Iterable[int]) -> dict[int, GroupProgress]:
    """Return how far each of these submissions is, by its number."""
    rows = read.tuples(connection, _PROGRESS.replace("{groups}", ", ".join(map(str, {*groups}))))
    return {group: GroupProgress(*values) for group, *values in rows}


_REPEATS = """
WITH RECURSIVE up(job) AS (
    SELECT rerun_of FROM jobs WHERE group_id = :group UNION SELECT rerun_of FROM jobs JOIN up ON id = up.job
) SELECT g.id, g.title FROM jobs j JOIN groups g ON g.id = j.group_id WHERE j.id = (SELECT min(job) FROM up)
"""


def repeats(connection: sqlite3.Connection, group: int) -> tuple[int, str] | None:
    """Return the first submission of jobs that this one repeats, and its command; None if it repeats none."""
    first: tuple[int, str] | None = read.tuples(connection, _REPEATS, {"group": group}).fetchone()
    return first


MOST_ENDED = 1000
"""Ended runs, the newest, among which the newest questions are looked for: all would be read at each change."""
_SEVERAL_JOBS = "(SELECT count(*) FROM jobs WHERE group_id = g.id) > 1"
_MEASURED = "r.outcome = 'SUCCEEDED' AND r.number > 0 AND j.kind <> 'import' AND j.deleted_at IS NULL"
_NEWEST = f"""
SELECT g.id, g.title FROM (
    SELECT * FROM runs WHERE ended_at IS NOT NULL ORDER BY ended_at DESC, id DESC LIMIT ?
) r CROSS JOIN jobs j ON j.id = r.job_id JOIN groups g ON g.id = j.group_id WHERE {_MEASURED} AND {_SEVERAL_JOBS}
GROUP BY g.id ORDER BY max(r.ended_at) DESC, max(r.id) DESC LIMIT ?
"""
_NEWEST_SUBMITTED = f"""
SELECT g.id, g.title FROM groups g WHERE {_SEVERAL_JOBS} AND EXISTS (
    SELECT 1 FROM jobs j JOIN runs r ON r.job_id = j.id WHERE j.group_id = g.id AND {_MEASURED}
) ORDER BY g.id DESC LIMIT ?
"""


def newest_questions(connection: sqlite3.Connection, count: int) -> list[tuple[int, str]]:
    """Return the submissions of several jobs of which a run succeeded last, with their titles; the newest first. Where
    only other jobs ran since, they are those that were submitted last."""
    newest = read.tuples(connection, _NEWEST, [MOST_ENDED, count]).fetchall()
    return newest or read.tuples(connection, _NEWEST_SUBMITTED, [count]).fetchall()


_VERSION = """
SELECT (SELECT max(e.id) FROM job_events e JOIN jobs j ON j.id = e.job_id WHERE j.group_id = g.id),
    (SELECT count(*) FROM jobs j WHERE j.group_id = g.id), g.judged_rounds, g.more_rounds, g.closed_at
FROM groups g WHERE g.id = ?
"""
_FAILED = """
SELECT r.id FROM jobs j JOIN runs r ON r.job_id = j.id
WHERE j.group_id = ? AND r.state = 'DONE' AND (
    r.outcome <> 'SUCCEEDED' OR EXISTS (SELECT 1 FROM taints t WHERE t.run_id = r.id AND t.severity = 'invalid')
)
"""


def version(connection: sqlite3.Connection, group: int) -> object:
    """Return a value that changes with what a report says of a submission: a run of it ended, a round was judged, or a
    job repeats one that failed."""
    failed = [run_id for (run_id,) in read.tuples(connection, _FAILED, [group])]
    return read.tuples(connection, _VERSION, [group]).fetchone(), read.repeated_by(connection, failed)


def workloads(connection: sqlite3.Connection, group: int) -> tuple[set[str | None], bool]:
    """Return the workloads of a submission, and whether one of its runs has not ended."""
    sql = "SELECT DISTINCT j.workload, r.state = 'DONE' FROM jobs j JOIN runs r ON r.job_id = j.id WHERE j.group_id = ?"
    rows = read.tuples(connection, sql, [group]).fetchall()
    return {workload for workload, _ in rows}, not all(ended for _, ended in rows)


def _endings(last: Sequence[RunView]) -> str:
    """Count how the last attempts ended, or what they wait for: "6 SUCCEEDED, 1 FAILED(1) (12.3), 1 QUEUED"."""
    counts = Counter(run.ending for run in last)
    first = {run.ending: run.run for run in reversed(last)}
    good = {Outcome.SUCCEEDED.value, *(state.value for state in State)}
    return ", ".join(
        f"{units.count(n)} {ending}" + ("" if ending in good else f" ({'first ' * (n > 1)}{first[ending]})")
        for ending, n in counts.most_common()
    )


def _invalid(last: Sequence[RunView]) -> str:
    """Count the runs that succeeded and are not valid, by the kinds of their taints."""
    runs = [run for run in last if run.mark]
    kinds = Counter(run.flaw for run in runs)
    named = ", ".join(f"{kind} {n}" for kind, n in kinds.most_common())
    return f"{units.counted(len(runs), 'run')} ({named}): not compared" if runs else ""
