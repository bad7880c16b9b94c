"""The top of the first page: the answer so far, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from msgspec import Struct

from queue_runner import units
from queue_runner.model import Selector
from queue_runner.monitor import group_summary, queue_state, run_view
from queue_runner.monitor.group_summary import GroupProgress
from queue_runner.monitor.run_view import JobView, RunLine, RunView
from queue_runner.paths import Layout
from queue_runner.store import read

if TYPE_CHECKING:
    import sqlite3

    from queue_runner.pages.trust import TrustReason

RECENT_S = 24 * 3600.0
"""Time for which a failure is shown: a night and the day after it."""
MOST_FAILED = 5
MOST_REPEATED = 4
"""Failures that are read for each one shown: those whose job has succeeded since, in another one, are left out."""
MOST_EARLIER = 5
"""Questions that are named below the newest answer."""
MOST_SENTENCES = 3
MOST_RUNS = 400
"""Runs of a submission beyond which its answer is on its own page alone: it takes a second, at each end of a run."""
MOST_RUNS_EARLIER = 60
"""The same for an earlier question: the first look at the page computes several."""


class AnswerSoFar(Struct, frozen=True):
    """The answer so far to a question: how far it is decided, and the report's sentences."""

    group: int
    progress: GroupProgress
    open: bool
    status: TrustReason | None
    sentences: Sequence[str]
    left_out: int
    next_steps: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        """The first sentence, or that there is none yet."""
        return "undecided" if self.status is not None and self.status.undecided else next(iter(self.sentences), "")


class Overview(Struct, frozen=True):
    """The newest answer, the answers to the questions before it, the runs that failed or are not valid, which of
    them are `retried`, which jobs repeat theirs, and why nothing starts before a user acts."""

    answer: AnswerSoFar | None
    earlier: Sequence[AnswerSoFar]
    failed: Sequence[RunView]
    retried: Set[int]
    repeated: Mapping[int, JobView[RunLine]]
    obstacles: Sequence[str]


class OverviewReader:
    """Reads the overview of a queue. An answer is computed once for each change of its submission."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._answers: dict[int, tuple[object, AnswerSoFar]] = {}

    def read(self, patience_s: float) -> Overview:
        """Return the overview. A locked database is waited for `patience_s` seconds. Raises: MpsqError (store)."""
        with read.reading(self._layout.db, patience_s=patience_s) as connection:
            recent = run_view.last_failed(connection, time.time() - RECENT_S, MOST_REPEATED * MOST_FAILED)
            again = read.repeated_by(connection, [run.run_id for run in recent])
            failed = [run for run in recent if run.run_id not in again or not again[run.run_id].is_ok][:MOST_FAILED]
            repeated = {run.run_id: _job(connection, again[run.run_id].job) for run in failed if run.run_id in again}
            queued = read.value(connection, "SELECT EXISTS (SELECT 1 FROM runs WHERE state = 'QUEUED')")
            obstacles = queue_state.obstacles(self._layout, connection) if queued else []
            questions = group_summary.newest_questions(connection, 1 + MOST_EARLIER)
            answers = [self._answer(connection, group, n) for n, (group, _) in enumerate(questions)]
            self._answers = {answer.group: self._answers[answer.group] for answer in answers}
            retried = run_view.retried(connection, failed)
            return Overview(answers[0] if answers else None, answers[1:], failed, retried, repeated, obstacles)

    def _answer(self, connection: sqlite3.Connection, group: int, n_newer: int) -> AnswerSoFar:
        most_runs = MOST_RUNS_EARLIER if n_newer else MOST_RUNS
        version = (most_runs, group_summary.version(connection, group))
        known, answer = self._answers.get(group, (None, None))
        if answer is None or known != version:
            answer = _computed(connection, group, most_runs)
            self._answers[group] = version, answer
        return answer


def _job(connection: sqlite3.Connection, job: int) -> JobView[RunLine]:
    return JobView([*run_view.each_run(connection, RunLine, "job_id = ?", [job])])


def _computed(connection: sqlite3.Connection, group: int, most_runs: int) -> AnswerSoFar:
    from queue_runner import reports  # the statistics are 4 MB: loaded when they are used
    from queue_runner.monitor.answers.run_query import Options
    from queue_runner.pages import trust

    selector = Selector(f"g{group}", group=group)
    workloads, unended = group_summary.workloads(connection, group)
    progress = group_summary.progress(connection, [group])[group]
    if progress.runs > most_runs:
        return AnswerSoFar(group, progress, unended, None, [f"{units.counted(progress.runs, 'run')}: see its page"], 0)
    result = reports.run(reports.suited(workloads, reports.DEFAULT), connection, Options(selectors=(selector,)))
    status = trust.status(result.families, goes_on=unended or progress.more_follow)
    answers = trust.below(status, result.lines) or result.lines[:1]
    return AnswerSoFar(
        group,
        progress,
        unended,
        status,
        answers[:MOST_SENTENCES],
        len(answers[MOST_SENTENCES:]),
        result.next_steps,
    )
