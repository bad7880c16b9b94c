"""Suspend and continue a running job: the request is committed, left in the run's folder, and executed by its warden.

As with cancel no worker is needed. Memory, accelerator memory and the lane stay occupied: nothing else starts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from queue_runner import failpoints
from queue_runner.control.edit import Changed
from queue_runner.model import Selector, State
from queue_runner.monitor import queue_state
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir

if TYPE_CHECKING:
    from sqlalchemy import Connection

WITHIN_S = 5.0
"""How long a command waits for the warden, which looks four times a second."""
_POLL_S = 0.02

Row = Mapping[str, Any]


def suspend(layout: Layout, selectors: Sequence[Selector], within_s: float = WITHIN_S) -> list[Changed]:
    """Suspend running runs. Raises: UsageError (no match), MpsqError (store)."""
    return _change(layout, selectors, True, within_s)


def go_on(layout: Layout, selectors: Sequence[Selector], within_s: float = WITHIN_S) -> list[Changed]:
    """Continue suspended runs. Raises: UsageError (no match), MpsqError (store)."""
    return _change(layout, selectors, False, within_s)


def keep_filed(connection: Connection, run_id: int, folder: RunDir) -> None:
    """Match the request in a run's folder to the store: a command may have died between the two. For the worker.

    The folder is read first: a request is committed before it is filed, so one that is in the folder but not in the
    store was withdrawn.
    """
    from queue_runner.store import jobs

    filed = os.path.lexists(folder.suspend)
    wished = jobs.suspend_requested(connection, run_id)
    if wished != filed:
        folder.request_pause(wished)


def _change(layout: Layout, selectors: Sequence[Selector], suspended: bool, within_s: float) -> list[Changed]:
    from queue_runner.store import jobs, resolve
    from queue_runner.store.engine import open_engine, writing

    with writing(open_engine(layout.db)) as connection:
        rows = resolve.runs_of(connection, selectors)
        new = {row["run"] for row in rows if jobs.request_suspend(connection, row["id"], suspended, "user")}
    failpoints.reach("suspend.committed")
    running = [row for row in rows if row["state"] == State.RUNNING]
    for row in running:
        RunDir(layout.run_dir(row["run"])).request_pause(suspended)
    deadline = time.monotonic() + within_s
    while True:
        found = {row["run"]: _look(layout, row["run"], suspended) for row in running}
        if all(found.values()) or time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    if not suspended:
        idle = [row["run"] for row in running if row["run"] not in new]
        found |= {run: Changed(run, False, "was not suspended") for run in idle}
        waits = [row["run"] for row in rows if row["run"] in new and row["state"] != State.RUNNING]
        found |= {run: Changed(run, True, "will not be suspended when it starts") for run in waits}
    return [found.get(row["run"]) or _not_yet(layout, row, suspended) for row in rows]


def _look(layout: Layout, run: str, suspended: bool) -> Changed | None:
    """Return what the warden did about the request; None while that is open."""
    folder = RunDir(layout.run_dir(run))
    if folder.exit() is not None:
        return Changed(run, False, "has ended")
    told = folder.suspended()
    if suspended and told is not None:
        n = told["processes"]
        return Changed(run, True, f"is suspended: {n} process{'es' if n > 1 else ''} stopped")
    return Changed(run, True, "continues") if not suspended and told is None else None


def _not_yet(layout: Layout, row: Row, suspended: bool) -> Changed:
    run, state = row["run"], row["state"]
    if state == State.DONE:
        return Changed(run, False, f"has ended ({row['outcome']})")
    if state != State.RUNNING:
        return Changed(run, False, "has not started" + (": mpsq hold keeps it from starting" if suspended else ""))
    if queue_state.is_supervised(RunDir(layout.run_dir(run))) or not suspended:
        return Changed(run, True, "was asked to stop" if suspended else "was asked to continue")
    return Changed(run, True, "will be suspended as soon as it starts")
