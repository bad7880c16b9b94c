"""Follow the selected runs through repeats, retries and worker restarts: `mpsq logs -f` and `mpsq run`.

A job or a group is followed until all its runs have ended, a run until it has. Messages on starts, ends and waiting go
to stderr. The log is read five times a second; the store only after a change, and while a run is running only that
run: a group may have thousands.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence

from queue_runner import units
from queue_runner.host import locks
from queue_runner.host.locks import START_A_WORKER
from queue_runner.host.low_priority import Wait, descriptor, give_way
from queue_runner.host.run_dir import RunDir
from queue_runner.model import Selector, State, parse_selector
from queue_runner.monitor import awaiting, queue_state, run_view
from queue_runner.monitor.awaiting import Awaited
from queue_runner.monitor.explanation import explain_all
from queue_runner.monitor.log_files import POLL_S, Log, Open
from queue_runner.monitor.poll import Change, Poller
from queue_runner.monitor.run_view import RunView
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.store.jobs import NOT_QUIET, QUIET

_BETWEEN_ROUNDS_S = 0.05
"""Interval at which the store is looked at while nothing runs, until it is known whether another round follows."""
_WORKER_S = 2.0
"""Interval at which the worker is checked."""
_PATIENCE_S = 5.0
"""How long a finished run is kept open for a worker to come back and record its end."""
_WAITED = "SELECT verb, reason FROM job_events WHERE run_id = ? AND verb IN (?, ?) ORDER BY id DESC LIMIT 1"
_PROGRESS_S = 60.0
"""Interval at which the progress of a long run is reported."""
_PIECES = 1024
"""Number of pieces (64 MiB in all) copied from logs that grow without a pause before the queue is checked again."""

Keep = Callable[[], None]
"""Called every other second while there is no worker; ensures that there is one if it has work to do."""


class Follower:
    """A follower of the runs of a selector, without the `past` ones; of the first, the last `tail` lines (None: whole).
    Without `open_logs` only failed runs are named.

    Without `keep` it reports that there is no worker, and leaves a finished run whose end nobody records. `close` it.
    """

    def __init__(
        self,
        layout: Layout,
        selector: Selector,
        open_logs: Open | None,
        say: Callable[[str], None],
        *,
        tail: int | None = None,
        past: Iterable[int] = (),
        keep: Keep | None = None,
        progress: Callable[[], str] | None = None,
    ) -> None:
        self._layout = layout
        self._selector = selector
        self._open_logs = open_logs
        self._tail = tail
        self._say = say
        self._wait = Wait(descriptor(sys.stdout))
        self._keep = keep
        self._progress = progress
        self._progress_at = time.monotonic()
        self._past = set(past)
        self._current: RunView | None = None
        self._log: Log | None = None
        self._wrote = True
        self._waits = False
        self._checked_at = float("-inf")
        self._reported: dict[str, str] = {}

    def follow(self) -> Awaited:
        """Follow until all runs have ended, or there is no worker to record how one ended.

        Returns the runs as they are then. After a KeyboardInterrupt it may be called once more, and continues where it
        was.

        Raises: MpsqError (store, `keep`), BrokenPipeError when the reader has gone.
        """
        give_way()
        with Poller(self._layout) as poller:
            poller.poll()
            while (run := self._current or self._next(poller)) is not None:
                last = self._follow_run(poller, run)
                if last is None:
                    break
                if last.state == State.DONE:  # else it was requeued
                    self._past.add(run.run_id)
                self._current = None
            return awaiting.look(poller.connection, [self._selector])

    def close(self) -> None:
        """Finish the incomplete line on the screen and close the logs."""
        log, self._log = self._log, None
        if log is not None:
            log.end()

    def _next(self, poller: Poller) -> RunView | None:
        """Wait for the next run to start, or to end without a start, and return it; None when no run is left."""
        self._reported["reason"], self._waits = "", False
        change = Change.QUEUE
        remaining: list[RunView] = []
        while True:
            if change in (Change.QUEUE, Change.AGE):
                awaited = awaiting.look(poller.connection, [self._selector])
                remaining = [run for run in awaited.runs if run.run_id not in self._past]
                started = [run for run in remaining if run.state in (State.RUNNING, State.DONE)]
                if started:
                    return min(started, key=lambda run: run.claimed_at or run.ended_at or 0.0)
                if not remaining and not awaited.open_groups:
                    return None
                if remaining:
                    self._report_reason(poller, remaining)
                if remaining and all(run.run_id in awaited.stops for run in remaining):
                    return None
            self._check_worker(poller, None)
            self._wait(POLL_S if remaining else _BETWEEN_ROUNDS_S)
            change = poller.poll()

    def _follow_run(self, poller: Poller, run: RunView) -> RunView | None:
        """Follow one run. Returns it as it is when it ends or is requeued; None if nobody records its end."""
        folder = RunDir(self._layout.runs / run.run)
        if self._current is None:
            self._begin(poller, run, folder)
        finished_at: float | None = None
        while True:
            # the store is read before the log, so that nothing written at its end is missed
            if poller.poll() is not Change.NOTHING or run is not self._current:
                run = next(iter(run_view.runs(poller.connection, "run_id = ?", [run.run_id])), run)
                self._current = run
            running = run.state == State.RUNNING
            finished = not running or folder.exit() is not None
            if self._log is not None:
                self._wrote = self._log.copy(_PIECES if running else None) or self._wrote
            if not running:
                break
            if self._log is not None:
                self._log.pause()
            self._check_worker(poller, run, finished=finished)
            if time.monotonic() - self._progress_at >= _PROGRESS_S:
                self._report_progress()
            finished_at = (finished_at or time.monotonic()) if finished and self._reported.get("trouble") else None
            if finished_at and time.monotonic() - finished_at > _PATIENCE_S:
                return None
            self._wait(POLL_S)
        self.close()
        if run.state == State.DONE:
            after = f" after {units.duration(run.real_s)}" if run.real_s is not None else ""
            after += "" if self._wrote else ", without output"
            self._wrote = True
            if self._open_logs is not None or not (run.succeeded or run.claimed_at is None):
                self._say(f"--- run {run.run}: {run.fate(after)}")
            self._report_progress()
        return run

    def _begin(self, poller: Poller, run: RunView, folder: RunDir) -> None:
        self._current = run
        if run.claimed_at is not None or run.state == State.RUNNING:  # not cancelled or skipped before it began
            attempt = f" (attempt {run.attempt})" if run.attempt > 1 else ""
            for verb, reason in read.tuples(poller.connection, _WAITED, [run.run_id, QUIET, NOT_QUIET]):
                self._say(f"--- {f'the machine is quiet {reason}' if verb == QUIET else reason}")
                self._waits = False
            if self._open_logs is None:
                if self._waits:
                    self._say(f"--- run {run.run} has started")
                return
            self._say(f"--- run {run.run}{attempt}: {run.name}  {run.settings_line}".rstrip())
            self._log, self._wrote = self._open_logs(folder, self._tail), self._tail == 0
            self._tail = None

    def _report_progress(self) -> None:
        self._progress_at = time.monotonic()
        if self._progress is not None and (text := self._progress()):
            self._say(f"--- {text}")

    def _report_reason(self, poller: Poller, remaining: Sequence[RunView]) -> None:
        """Report why the first of these runs waits: once, and again when the reason changes."""
        run = min(remaining, key=lambda run: (run.state == State.HELD, -run.priority, run.position))
        reason = explain_all(self._layout, poller.connection, [parse_selector(run.run)])[0]
        if not self._is_new("reason", reason.sentence if reason.kind == "remote" else reason.kind):
            return
        if reason.kind == "next" or (reason.kind == "worker" and self._keep is not None):
            return  # nothing to wait for, or not long
        self._waits = True
        step = "" if reason.kind == "gate" else reason.next_step  # a quiet machine needs none
        self._say(reason.sentence + (f"\n    {step}" if step else ""))

    def _check_worker(self, poller: Poller, run: RunView | None, *, finished: bool = False) -> None:
        """Ensure that there is a worker, or report when it goes or comes; `run` is the running run, if any."""
        now = time.monotonic()
        if now - self._checked_at < _WORKER_S and not (finished and self._keep is None):
            return
        self._checked_at = now
        if run is not None:
            silence = "".join(awaiting.silences(poller.connection, [run]))
            if self._is_new("silence", silence):
                self._say(f"--- {silence}" if silence else "--- it answers again")
        if self._keep is not None:
            if not locks.worker(self._layout.home)[0]:
                self._keep()
            return
        trouble = self._find_trouble(run, finished)
        if self._is_new("trouble", trouble):
            if not trouble:
                self._say("--- a worker is running again")
            elif run is not None or self._reported["reason"] != "worker":  # else already reported
                self._say(f"--- {trouble}\n    {START_A_WORKER}")

    def _is_new(self, what: str, text: str) -> bool:
        """Return whether this is another text than the last one on the same thing."""
        last, self._reported[what] = self._reported.get(what, ""), text
        return text != last

    def _find_trouble(self, run: RunView | None, finished: bool) -> str:
        if locks.worker(self._layout.home)[0]:
            return ""
        if run is None:
            return f"{queue_state.NO_WORKER}: queued jobs will not start"
        if finished:
            return "the run has finished, but no worker is running to record its result"
        if RunDir(self._layout.runs / run.run).is_supervised():
            return "the worker has stopped; this run continues, but no other will start"
        return "the run has lost its supervisor: the next worker will find out how it ended"
