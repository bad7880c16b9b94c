"""Follow the selected runs through repeats, retries and worker restarts: `mpsq logs -f` and `mpsq run`.

A job or a group is followed until all its runs have ended, a run until it has. Messages on starts, ends and waiting go
to stderr. The log is polled five times a second; the store is read only when its files have changed, and then only for
the run that is followed: a group may have thousands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from queue_runner import units
from queue_runner.host.low_priority import Wait, give_way
from queue_runner.model import Row, Selector, State, parse_selector
from queue_runner.monitor import blocks, listing, logs, queue_state, wait, waiting
from queue_runner.monitor.log_text import Outputs
from queue_runner.monitor.logs import POLL_S, Open, Source
from queue_runner.monitor.queue_state import START_A_WORKER
from queue_runner.monitor.why import Why, explain_all
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir
from queue_runner.store import read

_ANEW_S = 2.0
"""Interval at which the store is read even if its files look unchanged, and at which the worker is checked."""
_QUEUE_ANEW_S = 10.0
"""Interval at which the queue is read even if nothing changed: some reasons depend on time alone."""
_PATIENCE_S = 5.0
"""How long a finished run is kept open for a worker to come back and record its end."""
_PIECES = 1024
"""Number of pieces (64 MiB in all) copied from logs that grow without a pause before the queue is checked again."""

Keep = Callable[[], None]
"""Called every other second while there is no worker; ensures that there is one if it has work to do."""


def follow(
    layout: Layout, selector: Selector, rows: Sequence[Row], open_logs: Open, tail: int | None, out: Outputs, wait: Wait
) -> None:
    """Follow the runs of `selector`, whose current rows are `rows`; of those that have ended at most the last.

    Raises: MpsqError (store), BrokenPipeError when the reader has gone.
    """
    past = {row["run_id"] for row in rows if row["state"] == State.DONE} - {logs.choose(rows)["run_id"]}
    follower = Follower(layout, selector, open_logs, out, wait, tail=tail, past=past)
    try:
        follower.follow()
    finally:
        follower.close()


_PROGRESS_S = 60.0
"""Seconds of a long run after which its progress is told again."""


class Follower:
    """A follower of the runs of a selector, without the `past` ones; of the first, the last `tail` lines (None: whole).

    Without `keep` it reports that there is no worker, and leaves a finished run whose end nobody records.
    """

    def __init__(
        self,
        layout: Layout,
        selector: Selector,
        open_logs: Open,
        out: Outputs,
        wait: Wait,
        *,
        tail: int | None = None,
        past: Iterable[int] = (),
        keep: Keep | None = None,
        progress: Callable[[], str] | None = None,
    ) -> None:
        self._layout = layout
        self._queue = _Queue(layout, selector)
        self._open_logs = open_logs
        self._tail = tail
        self._say = out.say
        self._wait = wait
        self._keep = keep
        self._progress = progress
        self._progress_at = time.monotonic()
        self._past = set(past)
        self._current: Row | None = None
        self._sources: Sequence[Source] = ()
        self._stamp: object = None
        self._read_at = self._looked_at = float("-inf")
        self._trouble = self._silence = ""
        self._told = ""

    def follow(self) -> Sequence[Row]:
        """Follow until all runs have ended, or there is no worker to record how one ended.

        Returns the rows of v_run as they are then. After a KeyboardInterrupt it may be called once more, and continues
        where it was.

        Raises: MpsqError (store, `keep`), BrokenPipeError when the reader has gone.
        """
        give_way()
        while (row := self._current or self._next()) is not None:
            last = self._one(row)
            if last is None:
                break
            if last["state"] == State.DONE:  # else it was requeued
                self._past.add(row["run_id"])
            self._current = None
        return self._queue.read()

    def close(self) -> None:
        """Finish the incomplete line on the screen and close the logs."""
        sources, self._sources = self._sources, ()
        logs.end(sources)

    def _next(self) -> Row | None:
        """Wait for the next run to start, or to end without a start, and return it; None when no run is left."""
        self._told = ""
        rows = self._queue.read()
        while left := [row for row in rows if row["run_id"] not in self._past]:
            started = [row for row in left if row["state"] in (State.RUNNING, State.DONE)]
            if started:
                return min(started, key=lambda row: row["claimed_at"] or row["ended_at"] or 0.0)
            self._tell_why(left)
            if not wait.left(left):
                return None
            self._look_for_a_worker(None)
            self._wait(POLL_S)
            rows = self._queue.look() or rows
        return None

    def _one(self, row: Row) -> Row | None:
        """Follow one run until it no longer runs and return its row; None if there is no worker to record how it
        ended."""
        folder = RunDir(self._layout.runs / row["run"])
        if self._current is None:
            self._begin(row, folder)
        finished_at: float | None = None
        while True:
            row = self._newest(row)  # read before the log, so that nothing written at its end is missed
            running = row["state"] == State.RUNNING
            finished = not running or folder.exit() is not None
            logs.copy(self._sources, _PIECES if running else None)
            if not running:
                break
            for _, text in self._sources:
                text.pause()
            self._look_for_a_worker(row, finished=finished)
            if time.monotonic() - self._progress_at >= _PROGRESS_S:
                self._tell_progress()
            finished_at = (finished_at or time.monotonic()) if finished and self._trouble else None
            if finished_at and time.monotonic() - finished_at > _PATIENCE_S:
                return None
            self._wait(POLL_S)
        self.close()
        if row["state"] == State.DONE:
            after = f" after {units.duration(row['real_s'])}" if row["real_s"] is not None else ""
            self._say(f"--- run {row['run']}: {listing.fate(row, after)}")
            self._tell_progress()
        return row

    def _tell_progress(self) -> None:
        """Report how far all is, and how long the rest takes."""
        self._progress_at = time.monotonic()
        if self._progress is not None:
            self._say(f"--- {self._progress()}")

    def _begin(self, row: Row, folder: RunDir) -> None:
        self._current = row
        if row["claimed_at"] is not None or row["state"] == State.RUNNING:  # not cancelled or skipped before it began
            attempt = f" (attempt {row['attempt']})" if row["attempt"] > 1 else ""
            asked = listing.tried(row) + listing.question(listing.run_object(row))
            self._say(f"--- run {row['run']}{attempt}: {row['name']}  {asked}".rstrip())
            self._sources = self._open_logs(folder, self._tail)
            self._tail = None

    def _newest(self, row: Row) -> Row:
        """Return the current row of a run."""
        now = time.monotonic()
        stamp = read.stamp(self._layout.db)
        if stamp == self._stamp and now - self._read_at < _ANEW_S and self._current is row:
            return row
        self._stamp, self._read_at = stamp, now
        with read.reading(self._layout.db) as connection:
            found = read.runs(connection, "run_id = ?", [row["run_id"]])
        self._current = found[0] if found else row
        return self._current

    # -- who starts them ----------------------------------------------------------------------------------------------

    def _tell_why(self, left: Sequence[Row]) -> None:
        """Report why the runs wait: once, and again when the reason changes."""
        reason = self._queue.why(left)
        what = reason.sentence if reason.kind == "remote" else reason.kind
        if what == self._told:
            return
        self._told = what
        if reason.kind == "next" or (reason.kind == "worker" and self._keep is not None):
            return  # nothing to wait for
        self._say(reason.sentence + (f"\n    {reason.next_step}" if reason.next_step else ""))

    def _look_for_a_worker(self, row: Row | None, *, finished: bool = False) -> None:
        """Ensure that there is a worker, or report when it goes or comes; `row` is the running run, if any."""
        now = time.monotonic()
        if now - self._looked_at < _ANEW_S and not (finished and self._keep is None):
            return
        self._looked_at = now
        if row is not None:
            self._tell_silence(row)
        if self._keep is not None:
            if not queue_state.worker(self._layout)[0]:
                self._keep()
            return
        trouble = self._find_trouble(row, finished)
        if trouble != self._trouble:
            self._trouble = trouble
            if not trouble:
                self._say("--- a worker is running again")
            elif row is not None or self._told != "worker":  # else already reported
                self._say(f"--- {trouble}\n    {START_A_WORKER}")

    def _tell_silence(self, row: Row) -> None:
        """Report since when the target of a run that runs elsewhere does not answer, and when it answers again."""
        with read.reading(self._layout.db) as connection:
            silence = "".join(blocks.silences(connection, [row]).values())
        if silence != self._silence:
            self._say(f"--- {silence}" if silence else "--- it answers again")
        self._silence = silence

    def _find_trouble(self, row: Row | None, finished: bool) -> str:
        if queue_state.worker(self._layout)[0]:
            return ""
        if row is None:
            return "no worker runs this queue: queued jobs will not start"
        if finished:
            return "the run has finished, but no worker is running to record its result"
        if queue_state.is_supervised(RunDir(self._layout.runs / row["run"])):
            return "the worker has stopped; the run continues under its warden"
        return "neither a worker nor a warden supervises the run"


class _Queue:
    """A reader of the runs of a selector while none of them is running: their state, and what they wait for.

    Another run may be measured meanwhile, and its numbers are stored every second: the queue is read again only after a
    change that affects its order - a job event, the lane, a worker.
    """

    def __init__(self, layout: Layout, selector: Selector) -> None:
        self._layout = layout
        self._selector = selector
        self._stamp: object = None
        self._mark: object = None
        self._read_at = float("-inf")
        self._why: Why | None = None

    def read(self) -> Sequence[Row]:
        """Return the rows of v_run of all selected runs, with `stopped`. Raises: UsageError, MpsqError (store)."""
        with read.reading(self._layout.db) as connection:
            self._mark = (queue_state.worker(self._layout), queue_state.history(connection))
            self._read_at, self._why = time.monotonic(), None
            return waiting.with_stops(connection, read.select(connection, [self._selector]))

    def look(self) -> Sequence[Row] | None:
        """Return the rows if they may have changed, None if nothing happened. Raises: MpsqError (store)."""
        stamp = (read.stamp(self._layout.db), queue_state.worker(self._layout))
        late = time.monotonic() - self._read_at >= _QUEUE_ANEW_S
        if stamp == self._stamp and not late:
            return None
        self._stamp = stamp
        with read.reading(self._layout.db) as connection:
            mark = (queue_state.worker(self._layout), queue_state.history(connection))
        return self.read() if late or mark != self._mark else None

    def why(self, left: Sequence[Row]) -> Why:
        """Return what the first of these waiting runs waits for, as of when the rows were read."""
        if self._why is None:
            row = min(left, key=lambda row: (row["state"] == State.HELD, -row["priority"], row["position"]))
            with read.reading(self._layout.db) as connection:
                self._why = explain_all(self._layout, connection, [parse_selector(row["run"])])[0]
        return self._why
