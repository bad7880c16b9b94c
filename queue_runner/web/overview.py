"""The top of the first page: the answer so far, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from msgspec import Struct

from queue_runner import units
from queue_runner.model import Selector
from queue_runner.monitor import group_summary, queue_state, run_view
from queue_runner.monitor.group_summary import GroupProgress
from queue_runner.monitor.run_view import RunView
from queue_runner.paths import Layout
from queue_runner.store import read

if TYPE_CHECKING:
    import sqlite3

    from queue_runner.pages.trust import TrustReason

RECENT_S = 24 * 3600.0
"""Time for which a failure is shown: a night and the day after it."""
MOST_FAILED = 5
MOST_EARLIER = 5
"""Questions that are named below the newest answer."""
MOST_SENTENCES = 3
MOST_RUNS = 400
"""Runs of a submission beyond which its answer is on its own page alone: it takes a second, at each end of a run."""


class NewestAnswer(Struct, frozen=True):
    """The answer so far to the question that was measured last: how far it is decided, and the report's sentences."""

    group: int
    progress: GroupProgress
    open: bool
    status: TrustReason | None
    sentences: Sequence[str]
    left_out: int
    next_steps: Sequence[str] = ()


class Overview(Struct, frozen=True):
    """The newest answer, the questions before it with their titles, the runs that failed or are not valid, which of
    them are `retried`, and why nothing starts before a user acts."""

    answer: NewestAnswer | None
    earlier: Sequence[tuple[int, str]]
    failed: Sequence[RunView]
    retried: Set[int]
    obstacles: Sequence[str]


class OverviewReader:
    """Reads the overview of a queue. An answer is computed once for each change of its submission."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._newest: tuple[object, NewestAnswer | None] = (None, None)

    def read(self, patience_s: float) -> Overview:
        """Return the overview. A locked database is waited for `patience_s` seconds. Raises: MpsqError (store)."""
        with read.reading(self._layout.db, patience_s=patience_s) as connection:
            failed = run_view.last_failed(connection, time.time() - RECENT_S, MOST_FAILED)
            waiting = read.count_waiting(connection)
            obstacles = queue_state.obstacles(self._layout, connection) if waiting else []
            questions = group_summary.newest_questions(connection, 1 + MOST_EARLIER)
            answer = self._answer(connection, questions[0][0]) if questions else None
            return Overview(answer, questions[1:], failed, run_view.retried(connection, failed), obstacles)

    def _answer(self, connection: sqlite3.Connection, group: int) -> NewestAnswer | None:
        version = (group, group_summary.version(connection, group))
        if self._newest[0] != version:
            self._newest = (version, _computed(connection, group))
        return self._newest[1]


def _computed(connection: sqlite3.Connection, group: int) -> NewestAnswer:
    from queue_runner import reports  # the statistics are 4 MB: loaded when they are used
    from queue_runner.monitor.answers.run_query import Options
    from queue_runner.pages import trust

    selector = Selector(f"g{group}", group=group)
    workloads, unended = group_summary.workloads(connection, group)
    progress = group_summary.progress(connection, [group])[group]
    if progress.runs > MOST_RUNS:
        return NewestAnswer(group, progress, unended, None, [f"{units.counted(progress.runs, 'run')}: see its page"], 0)
    result = reports.run(reports.suited(workloads, reports.DEFAULT), connection, Options(selectors=(selector,)))
    status = trust.status(result.families)
    answers = trust.below(status, result.lines) or result.lines[:1]
    return NewestAnswer(
        group,
        progress,
        unended,
        status,
        answers[:MOST_SENTENCES],
        len(answers[MOST_SENTENCES:]),
        result.next_steps,
    )
