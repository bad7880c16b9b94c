"""`mpsq logs -f`: follow what was named through its runs: repeats, retries, and workers that come and go.

A job or a group is followed until all its runs have ended, a run until it has. What is said of starts and ends goes to
stderr. Five times a second it asks whether the log has grown; the store is read when its files have changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from queue_runner import listing, logs, queue_state, units, why
from queue_runner.host.watching import Wait, give_way
from queue_runner.log_text import Outputs
from queue_runner.logs import Row, Source
from queue_runner.model import Selector, State, parse_selector
from queue_runner.paths import Layout
from queue_runner.queue_state import START_A_WORKER
from queue_runner.rundir import RunDir
from queue_runner.store import read

POLL_S = 0.2
_ANEW_S = 2.0
"""The store is read after so long even where its files look unchanged, and the worker is looked for as often."""
_PATIENCE_S = 5.0
"""How long a run that has finished is kept open for a worker to come back and record how."""

Open = Callable[[RunDir, int | None], Sequence[Source]]
"""Opens the logs that are wanted of a run, from their last lines on (None: whole)."""


def follow(
    layout: Layout, selector: Selector, rows: Sequence[Row], open_logs: Open, tail: int | None, out: Outputs, wait: Wait
) -> None:
    """Follow the runs that `selector` names, whose rows now are `rows`.

    Raises: MpsqError (store), BrokenPipeError when nobody reads any more.
    """
    give_way()
    _Follower(layout, selector, rows, open_logs, tail, out, wait).run()


class _Follower:
    def __init__(
        self,
        layout: Layout,
        selector: Selector,
        rows: Sequence[Row],
        open_logs: Open,
        tail: int | None,
        out: Outputs,
        wait: Wait,
    ) -> None:
        self._layout = layout
        self._selector = selector
        self._rows: Sequence[Row] = rows
        self._open_logs = open_logs
        self._tail = tail
        self._say = out.say
        self._wait = wait
        self._stamp: object = None
        self._read_at = 0.0
        self._looked_at = 0.0
        self._trouble = ""

    def run(self) -> None:
        first = logs.choose(self._rows)
        followed = {row["run_id"] for row in self._rows if row["state"] == State.DONE} - {first["run_id"]}
        while (row := self._next(followed)) is not None:
            last = self._one(row)
            if last is None:
                return
            if last["state"] == State.DONE:  # else it came back to the queue
                followed.add(row["run_id"])

    def _next(self, followed: set[int]) -> Row | None:
        """The next run that has started, once one has; None when no run is left."""
        told = False
        while True:
            left = [row for row in self._rows if row["run_id"] not in followed]
            started = [row for row in left if row["state"] in (State.RUNNING, State.DONE)]
            if started:
                return min(started, key=lambda row: row["claimed_at"] or row["ended_at"] or 0.0)
            if not left:
                return None
            if not told:
                self._say(self._why(logs.choose(left)))
                told = True
            self._look_for_a_worker(None)
            self._pause()

    def _one(self, row: Row) -> Row | None:
        """Follow one run until it runs no more; returns its row. None where nobody is there to record how it ended."""
        folder = RunDir(self._layout.runs / row["run"])
        attempt = f" (attempt {row['attempt']})" if row["attempt"] > 1 else ""
        self._say(f"--- run {row['run']}{attempt}: {row['name']}  {listing.question(listing.run_object(row))}".rstrip())
        sources = self._open_logs(folder, self._tail)
        self._tail = None
        finished_at: float | None = None
        try:
            while True:
                row = self._newest(row)  # asked before the log is read, so that nothing of its end is missed
                finished = row["state"] == State.DONE or folder.exit() is not None
                grew = logs.copy(sources)
                if row["state"] != State.RUNNING:
                    break
                if grew:
                    continue
                for _, text in sources:
                    text.pause()
                self._look_for_a_worker(row, finished=finished)
                finished_at = (finished_at or time.monotonic()) if finished and self._trouble else None
                if finished_at and time.monotonic() - finished_at > _PATIENCE_S:
                    return None
                self._pause()
        finally:
            logs.end(sources)
        self._say(self._ending(row))
        return row

    def _ending(self, row: Row) -> str:
        if row["state"] != State.DONE:
            return self._why(row)
        after = f" after {units.duration(row['real_s'])}" if row["real_s"] is not None else ""
        reason = f": {row['reason']}" if row["reason"] else ""
        return f"--- run {row['run']}: {listing.ending(row)}{after}{reason}"

    # -- the store ----------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        self._wait(POLL_S)
        self._refresh()

    def _refresh(self) -> None:
        now = time.monotonic()
        stamp = read.stamp(self._layout.db)
        if stamp != self._stamp or now - self._read_at >= _ANEW_S:
            self._stamp, self._read_at = stamp, now
            with read.reading(self._layout.db) as connection:
                self._rows = read.select(connection, [self._selector])

    def _newest(self, row: Row) -> Row:
        return next((found for found in self._rows if found["run_id"] == row["run_id"]), row)

    def _why(self, row: Row) -> str:
        with read.reading(self._layout.db) as connection:
            return why.of(self._layout, connection, [parse_selector(row["run"])])[0].sentence

    # -- who watches --------------------------------------------------------------------------------------------------

    def _look_for_a_worker(self, row: Row | None, *, finished: bool = False) -> None:
        """Say so when the worker goes or comes; `row` is the run that is running, if one is."""
        now = time.monotonic()
        if now - self._looked_at < _ANEW_S and not finished:
            return
        self._looked_at = now
        trouble = self._find_trouble(row, finished)
        if trouble != self._trouble:
            self._trouble = trouble
            self._say(f"--- {trouble}\n    {START_A_WORKER}" if trouble else "--- a worker is there again")

    def _find_trouble(self, row: Row | None, finished: bool) -> str:
        if queue_state.worker(self._layout)[0]:
            return ""
        if row is None:
            return "no worker runs this queue: what waits will not start"
        if finished:
            return "the run has finished, and no worker is there to record how"
        if queue_state.is_supervised(RunDir(self._layout.runs / row["run"])):
            return "the worker is gone; the run goes on under its warden"
        return "neither a worker nor a warden watches the run"
