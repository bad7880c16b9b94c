"""Progress of a submission as a whole: how many of its runs have ended, and how long the others will take."""

from __future__ import annotations

import time

from queue_runner import config_file, units
from queue_runner.model import Selector, State
from queue_runner.monitor import eta, run_view
from queue_runner.monitor.progress import Tracker
from queue_runner.paths import Layout
from queue_runner.store import read


def sentence(layout: Layout, selector: Selector) -> str:
    """Return "3 of 16 runs ended, about 4 min left". The time is left out while one of the others has no history here.

    Raises: UsageError (no match), MpsqError (store).
    """
    now = time.time()
    with read.reading(layout.db) as connection:
        selected = [run for run in run_view.select(connection, [selector]) if not run.is_preflight]
        runs = run_view.last_attempts(selected)
        ended = sum(run.state == State.DONE for run in runs)
        sentence = f"{units.count(ended)} of {units.counted(len(runs), 'run')} ended"
        queue = run_view.queue(connection)
        running = queue and queue[0].state == State.RUNNING
        left_s = Tracker().look(connection, queue[0]).left_s if running else None
        gap_s = config_file.load(layout.config).cooldown_s
        by_run = eta.estimate(connection, queue, now, left_s=left_s, gap_s=gap_s).turns
    turns = [by_run[run.run] for run in runs if run.run in by_run]
    ends = [turn.finish_at for turn in turns if turn.finish_at is not None and turn.expected.real_s is not None]
    if not turns or len(ends) < len(turns):
        return sentence
    sure = all(turn.finish_sure for turn in turns)
    return f"{sentence}, {'about' if sure else 'at least'} {units.duration(max(max(ends) - now, 0.0))} left"
