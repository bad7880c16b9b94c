"""Progress of the running run, as far as its events are stored, and of a submission as a whole."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

from queue_runner import config_file, units
from queue_runner.lanes import is_remote
from queue_runner.model import PHASES, Outcome, Selector, State
from queue_runner.monitor import eta, run_view
from queue_runner.monitor.eta import Eta
from queue_runner.monitor.run_view import RunView
from queue_runner.paths import Layout
from queue_runner.store import read

NEWEST = 200
"""Number of newest measured iterations from which the time per iteration of a running job is computed."""


class RunProgress(Struct, frozen=True):
    """Progress of the running run. Times in seconds; None is unknown. `iters` are the iterations done, including those
    before the checkpoint that a resumed run continued from."""

    phase: str | None
    iters: int
    planned_iters: int | None
    median_s: float | None
    loss: float | None
    elapsed_s: float | None
    left_s: float | None


class Tracker:
    """A tracker of one run after another. A look reads only the events since the last one, however long the run is."""

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, run_id: int | None) -> None:
        self._run_id = run_id
        self.newest_s: deque[float] = deque(maxlen=NEWEST)
        """Times of the newest measured iterations in seconds, the oldest first."""
        self.newest_losses: deque[float] = deque(maxlen=NEWEST)
        self._iters = self._first = 0
        self._loss: float | None = None
        self._open: list[str] = []
        self._iteration_offset = self._phase_offset = -1

    def look(self, connection: sqlite3.Connection, run: RunView) -> RunProgress:
        """Return the current progress of a run, as it was just read."""
        if run.run_id != self._run_id:
            self._begin(run.run_id)
        self._read_iterations(connection)
        self._read_phases(connection)
        times = sorted(self.newest_s)
        median_s = times[len(times) // 2] if times else None
        planned = run.planned_iters
        iters = self._iters + (self._first if run.resumed_from else 0)
        return RunProgress(
            phase=self._open[-1] if self._open else None,
            iters=iters,
            planned_iters=planned,
            median_s=median_s,
            loss=self._loss,
            elapsed_s=max(time.time() - (run.started_at or run.claimed_at or time.time()), 0.0),
            left_s=max(planned - iters, 0) * median_s if planned and median_s is not None else None,
        )

    def _read_iterations(self, connection: sqlite3.Connection) -> None:
        values = [self._run_id, self._iteration_offset]
        count, first, last = read.tuples(
            connection, "SELECT count(*), min(i), max(offset) FROM iterations WHERE run_id = ? AND offset > ?", values
        ).fetchone()
        if not count:
            return
        newest = read.tuples(
            connection,
            "SELECT dur_s, loss, phase FROM iterations WHERE run_id = ? AND offset > ? AND offset <= ?"
            " ORDER BY offset DESC LIMIT ?",
            [*values, last, NEWEST],
        ).fetchall()
        if not self._iters:
            self._first = first
        self._iters += count
        self._iteration_offset = last
        self.newest_s.extend(dur_s for dur_s, _loss, phase in reversed(newest) if PHASES[phase] == "measure")
        self.newest_losses.extend(loss for _dur_s, loss, _phase in reversed(newest) if loss is not None)
        self._loss = self.newest_losses[-1] if self.newest_losses else None

    def _read_phases(self, connection: sqlite3.Connection) -> None:
        """Read the phases that have begun and not ended, the innermost last."""
        edges = read.tuples(
            connection,
            "SELECT offset, name, edge FROM phases WHERE run_id = ? AND offset > ? ORDER BY offset",
            [self._run_id, self._phase_offset],
        )
        for offset, name, edge in edges:
            self._phase_offset = offset
            if edge == "begin":
                self._open.append(name)
            elif name in self._open:
                del self._open[self._open.index(name) :]


def estimate(
    layout: Layout,
    connection: sqlite3.Connection,
    queue: Sequence[RunView],
    known: Mapping[str, RunProgress] | None = None,
) -> Eta:
    """Estimate when each of these runs, the first ones of the queue, starts and ends: the running ones at their pace,
    which is read unless it is `known`."""
    left_s: dict[str, float] = {}
    for run in queue:
        if run.state == State.RUNNING and not (run.is_unstored or is_remote(run.lane)):
            at = (known or {}).get(run.run) or Tracker().look(connection, run)
            left_s |= {run.run: at.left_s} if at.left_s is not None else {}
    gap_s = config_file.load(layout.config).cooldown_s
    return eta.estimate(connection, queue, time.time(), left_s=left_s, gap_s=gap_s)


def of_submission(layout: Layout, selector: Selector) -> str:
    """Return "3 of 16 runs ended (1 skipped), about 4 min left". The time is left out while one of the others has no
    history here, and of a search, which adds runs as it goes, the total.

    Raises: UsageError (no match), MpsqError (store).
    """
    now = time.time()
    with read.reading(layout.db) as connection:
        selected = [run for run in run_view.select(connection, [selector]) if not run.is_preflight]
        runs = run_view.last_attempts(selected)
        ended = sum(run.state == State.DONE for run in runs)
        if any(run.is_probe for run in runs):
            return f"{units.counted(ended, 'run')} ended"
        skipped = sum(run.outcome == Outcome.SKIPPED for run in runs)
        without_start = f" ({units.count(skipped)} skipped)" if skipped else ""
        sentence = f"{units.count(ended)} of {units.counted(len(runs), 'run')} ended{without_start}"
        by_run = estimate(layout, connection, run_view.queue(connection)).turns
    turns = [by_run[run.run] for run in runs if run.run in by_run]
    end = eta.end_of(turns)
    if end is None or end[0] < now + 1:
        return sentence
    end_at, is_sure = end
    return f"{sentence}, {'about' if is_sure else 'at least'} {eta.about(end_at - now)} left"
