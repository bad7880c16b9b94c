"""Progress of a submission as a whole: how many of its runs have ended, and how long the others will take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from shutil import get_terminal_size
from typing import TextIO

from queue_runner import config_file, units
from queue_runner.errors import MpsqError
from queue_runner.model import Selector, State
from queue_runner.monitor import eta, run_view
from queue_runner.monitor.progress import Tracker
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.text import cut

TERMINAL_S = 1.0
PIPE_S = 30.0
"""Seconds between two lines: on a terminal one line is rewritten, a pipe or a file gets one after the other."""


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


class Teller:
    """A line about progress that is kept up to date on a terminal, and repeated at a low rate in a pipe."""

    def __init__(self, text: Callable[[], str], stream: TextIO | None = None) -> None:
        self._text, self._stream = text, stream or sys.stderr
        self._live = self._stream.isatty()
        self._at = float("-inf")
        self._last = ""

    def step(self, now: float | None = None) -> None:
        """Write the progress if it is time to. `now` is a value of time.monotonic()."""
        now = time.monotonic() if now is None else now
        if now - self._at < (TERMINAL_S if self._live else PIPE_S):
            return
        self._at = now
        try:
            text = self._text()
        except MpsqError:  # nothing is stored yet, or the store is being migrated
            return
        if self._live:
            self._stream.write(f"\r\x1b[K{cut(text, get_terminal_size().columns - 1)}")
        elif text != self._last:
            self._stream.write(f"{text}\n")
        self._last = text
        self._stream.flush()

    def close(self) -> None:
        """Remove the line from a terminal."""
        if self._live and self._last:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
