"""`mpsq status --watch`: poll the queue without disturbing a measurement.

The queue is read again only when it has changed (poll.py), and of the running run only its new events.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator

from msgspec.structs import replace

from queue_runner import times
from queue_runner.host.low_priority import Wait, descriptor, give_way
from queue_runner.monitor import queue_status as status_view
from queue_runner.monitor import run_view, status_text
from queue_runner.monitor.poll import Change, Poller
from queue_runner.monitor.progress import Tracker
from queue_runner.monitor.queue_status import Observation, Status
from queue_runner.paths import Layout

POLL_S = 0.5
PROGRESS_S = 1.0
"""Interval at which the running run is read: the worker stores its events about as often."""
_DUMB = ("dumb", "unknown")
_ON_SCREEN = 60
"""Number of waiting runs read for a screen."""


def watch(layout: Layout, n_waiting: int) -> None:
    """Show the queue until interrupted: as a dashboard on a terminal, else as plain text once per change.

    Raises: MpsqError if there is no queue to read; KeyboardInterrupt; BrokenPipeError when the reader has gone.
    """
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in _DUMB:
        _draw(layout)
    else:
        _print(layout, n_waiting)


def _draw(layout: Layout) -> None:
    from queue_runner.monitor.dashboard import Dashboard

    give_way()
    observations = observe(layout, _ON_SCREEN)
    first = next(observations)  # report problems of the queue before the screen is taken over
    with Dashboard() as dashboard:
        dashboard.show(first)
        for observation in observations:
            dashboard.show(observation)
            time.sleep(POLL_S)


def _print(layout: Layout, n_waiting: int) -> None:
    give_way()
    wait = Wait(descriptor(sys.stdout))
    turn = None
    for observation in observe(layout, n_waiting):
        if observation is not None and observation.turn != turn:
            turn = observation.turn
            print(f"{times.stamp(time.time())}\n{status_text.text(observation.status)}\n", flush=True)
        wait(POLL_S)


def observe(layout: Layout, waiting: int, patience_s: float = 30.0) -> Generator[Observation | None]:
    """Yield an observation per step; None if there is nothing new to show. Never waits, except `patience_s` seconds
    for a database that is locked. Raises: MpsqError (store)."""
    tracker, turn = Tracker(), 0
    status: Status | None = None
    progress_at = float("-inf")
    with Poller(layout, patience_s) as poller:
        while True:
            now = time.monotonic()
            change = poller.poll()
            if change in (Change.QUEUE, Change.AGE):
                turn += change is Change.QUEUE
                status = status_view.look(layout, poller.connection, waiting, tracker)
            elif status is not None and status.running is not None and now - progress_at >= PROGRESS_S:
                run = status.running.run
                (run,) = run_view.runs(poller.connection, "run_id = ?", [run.run_id]) or [run]
                status = replace(status, running=status_view.look_at(layout, poller.connection, run, tracker))
            else:
                yield None
                continue
            progress_at = now
            newest = (tracker.newest_s, tracker.newest_losses) if status.running is not None else ((), ())
            yield Observation(status, tuple(newest[0]), turn, tuple(newest[1]))
