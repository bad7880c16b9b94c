"""Cancel: request the end of runs, and report what came of it (docs/supervision.md, Cancel).

The request is committed first and then left in the run's folder, where its warden looks: no worker is needed.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from queue_runner.errors import MpsqError
from queue_runner.host import failpoints, locks, reserve, wakeup
from queue_runner.host.run_dir import RunDir
from queue_runner.model import Outcome, Selector, State
from queue_runner.paths import Layout
from queue_runner.store import added_rounds, jobs, read, resolve
from queue_runner.store.engine import open_engine, writing
from queue_runner.store.resolve import NamedRun

_POLL_S = 0.05
_STATES = "SELECT id, state, outcome, lane FROM runs WHERE id BETWEEN ? AND ?"


class CancelResult(StrEnum):
    """The result for one run that was to be cancelled."""

    CANCELLED = "cancelled"
    ENDED_BEFORE = "had already ended"
    FINISHED_FIRST = "finished before its cancellation"
    ENDING = "is being cancelled"
    UNRECORDED = "has ended, but no worker is running to record it"
    UNWATCHED = "will be cancelled when a worker starts"


class Cancelled(Struct, frozen=True):
    """One run to be cancelled. `run` is 12.3, `outcome` the stored one if there is one. `block` is the status of the
    block of a run that was sent to another machine and has not ended."""

    run: str
    result: CancelResult
    outcome: str | None
    block: str = ""


class _RunState(Struct, frozen=True):
    id: int
    state: str
    outcome: str | None
    lane: str


def cancel(
    layout: Layout,
    selectors: Sequence[Selector],
    *,
    grace_s: float | None,
    within_s: float,
    actor: str = "user",
) -> list[Cancelled]:
    """Request the end of all selected runs and wait up to `within_s` seconds for the results.

    `grace_s` is the time in seconds between the signals; None is the one that the run was started with.

    Raises: UsageError (no match), SchemaError, MpsqError (disk, a restored database).
    """
    reserve.release(layout)
    engine = open_engine(layout.db)
    who = _user() if actor == "user" else actor
    if grace_s is not None:
        who += f" (grace {grace_s:g} s)"  # the warden reads it there
    with writing(engine) as writer:
        rows = resolve.runs_of(writer, selectors)  # in this transaction: a retry stored meanwhile would go on
        ids = [row.id for row in rows]
        requested = jobs.request_cancel(writer, ids, actor=actor)
        added_rounds.close_cancelled(writer, ids, time.time())
    engine.dispose()
    failpoints.reach("cancel.committed")
    running = [run for run in requested if run.state is State.RUNNING]
    for run in running:
        RunDir(layout.run_dir(run.id)).request_cancel(who)
    failpoints.reach("cancel.filed")
    wakeup.ring(layout.fifo)
    return _watch(layout, rows, {run.run_id for run in requested}, time.monotonic() + within_s)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no entry for its user
        return f"user {os.getuid()}"


def _watch(layout: Layout, rows: Sequence[NamedRun], requested: set[int], deadline: float) -> list[Cancelled]:
    while True:
        alive, _ = locks.worker(layout.home)
        ids = [row.id for row in rows]
        with read.reading(layout.db) as connection:
            states = [_RunState(*row) for row in read.tuples(connection, _STATES, [min(ids), max(ids)])]
            now = {state.id: state for state in states}
            if gone := [row.run for row in rows if row.id not in now]:
                sentence = f"the database was replaced while run {gone[0]} was cancelled, and has no such run"
                raise MpsqError(sentence, "mpsq list shows the runs that it has")
            lanes = read.remote_lanes(connection)
        results = [_judge(layout, row.run, now[row.id], row.id in requested, alive) for row in rows]
        if all(c.result is not CancelResult.ENDING for c in results) or time.monotonic() >= deadline:
            ending = (CancelResult.ENDING, CancelResult.UNWATCHED)
            return [
                replace(c, block=lane.status)
                if c.result in ending and (lane := lanes.get(now[row.id].lane)) is not None
                else c
                for c, row in zip(results, rows, strict=True)
            ]
        time.sleep(_POLL_S)


def _judge(layout: Layout, run: str, row: _RunState, requested: bool, worker: bool) -> Cancelled:
    if row.state == State.DONE:
        if not requested:
            return Cancelled(run, CancelResult.ENDED_BEFORE, row.outcome)
        done = CancelResult.CANCELLED if row.outcome == Outcome.CANCELLED else CancelResult.FINISHED_FIRST
        return Cancelled(run, done, row.outcome)
    if worker:
        return Cancelled(run, CancelResult.ENDING, None)
    folder = RunDir(layout.runs / run)
    if folder.exit() is not None:
        return Cancelled(run, CancelResult.UNRECORDED, None)
    return Cancelled(run, CancelResult.ENDING if folder.is_supervised() else CancelResult.UNWATCHED, None)
