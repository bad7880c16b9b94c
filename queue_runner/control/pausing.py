"""Pause and resume: the queue or a lane, waiting runs (held), and the processes of running runs (suspended).

A request to suspend is committed, left in the run's folder, and executed by its warden; no worker is needed. Memory,
accelerator memory and the lane stay occupied: nothing else starts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from msgspec import Struct

from queue_runner import config_file, lanes
from queue_runner.errors import UsageError
from queue_runner.host import failpoints, wakeup
from queue_runner.host.home import ensure_home
from queue_runner.host.run_dir import RunDir
from queue_runner.model import DEFAULT_LANE, Selector, State, Verb, parse_selector
from queue_runner.monitor.run_view import QueuedRun, each_run
from queue_runner.paths import Layout
from queue_runner.store import added_rounds, jobs, lane_claims, migrate, read, resolve
from queue_runner.store.engine import Connection, open_engine, writing
from queue_runner.store.resolve import NamedRun
from queue_runner.submit import run_order

WITHIN_S = 5.0
"""How long a command waits for the warden, which checks four times a second."""
_POLL_S = 0.02


class Changed(Struct, frozen=True):
    """The result for one run: `did` tells whether it is now in the requested state."""

    run: str
    did: bool
    result: str


def pause(
    layout: Layout,
    selectors: Sequence[Selector],
    *,
    now: bool = False,
    actor: str = "user",
    within_s: float = WITHIN_S,
) -> list[Changed]:
    """Hold waiting runs; with `now`, also suspend running ones. Raises: UsageError (no match), MpsqError (store)."""
    results: dict[str, Changed] = {}
    with writing(open_engine(layout.db)) as connection:
        rows = resolve.runs_of(connection, selectors)
        for row in rows:
            if row.state != State.RUNNING:
                results[row.run] = _hold(connection, row, actor)
            elif now:
                jobs.request_suspend(connection, row.id, True, actor)
            else:
                results[row.run] = Changed(row.run, False, "is running: --now would suspend it")
        whole = [selector for selector in selectors if selector.number is None]  # 12.3 is one run, not its rounds
        held = _hold_next_rounds(connection, resolve.runs_of(connection, whole), actor) if whole else []
    failpoints.reach("suspend.committed")
    wakeup.ring(layout.fifo)
    suspended = [row.run for row in rows if row.run not in results]
    results |= _request(layout, suspended, True, within_s)
    return [*(results[row.run] for row in rows), *held]


def resume(
    layout: Layout, selectors: Sequence[Selector], *, actor: str = "user", within_s: float = WITHIN_S
) -> list[Changed]:
    """Release held runs and continue suspended ones. Raises: UsageError (no match), MpsqError (store)."""
    results: dict[str, Changed] = {}
    with writing(open_engine(layout.db)) as connection:
        rows = resolve.runs_of(connection, selectors)
        for row in rows:
            run, state = row.run, State(row.state)
            withdrawn = jobs.request_suspend(connection, row.id, False, actor)
            if state is State.HELD:
                jobs.move(connection, row.id, Verb.RELEASE, actor=actor, blocked_reason=None)
                results[run] = Changed(run, True, "is no longer held")
            elif state is State.DONE:
                results[run] = Changed(run, False, f"has ended ({row.outcome})")
            elif state is State.QUEUED:
                result = "will not be suspended when it starts" if withdrawn else "was not paused"
                results[run] = Changed(run, True, result)
            elif not withdrawn:
                results[run] = Changed(run, True, "was not paused")
    failpoints.reach("suspend.committed")
    wakeup.ring(layout.fifo)
    suspended = [row.run for row in rows if row.run not in results]
    results |= _request(layout, suspended, False, within_s)
    return [results[row.run] for row in rows]


def _hold_next_rounds(connection: Connection, rows: Sequence[NamedRun], actor: str) -> list[Changed]:
    """Hold the next round of open submissions that are selected whole and of which no run waits: else it would follow
    as soon as the running one has ended."""
    selected = {row.job_id for row in rows}
    waiting = {row.job_id for row in rows if row.state not in (State.RUNNING, State.DONE)}
    runs = [
        run
        for group, jobs in added_rounds.open_jobs(connection).items()
        if selected >= {*jobs} and not waiting & {*jobs}
        for run in added_rounds.add(connection, group, 1, run_order.round_order, actor, hold=True)
    ]
    return [Changed(str(run), True, "is held") for run in runs]


def _hold(connection: Connection, row: NamedRun, actor: str) -> Changed:
    if row.state == State.DONE:
        return Changed(row.run, False, f"has ended ({row.outcome})")
    if row.state == State.QUEUED:
        jobs.move(connection, row.id, Verb.HOLD, actor=actor, blocked_reason=None)
        return Changed(row.run, True, "is held")
    if jobs.take_over_hold(connection, row.id):
        return Changed(row.run, True, "was held by mpsq, and is now held by you")
    return Changed(row.run, True, "was held already")


def _request(layout: Layout, runs: Sequence[str], suspended: bool, within_s: float) -> dict[str, Changed]:
    """Leave a committed request in the folders of running runs, and wait for the answers of their wardens."""
    for run in runs:
        RunDir(layout.run_dir(run)).request_pause(suspended)
    deadline = time.monotonic() + within_s
    while True:
        results = {run: _answer(layout, run, suspended) for run in runs}
        if all(results.values()) or time.monotonic() >= deadline:
            return {run: result or _unanswered(layout, run, suspended) for run, result in results.items()}
        time.sleep(_POLL_S)


def _answer(layout: Layout, run: str, suspended: bool) -> Changed | None:
    """Return how the warden has carried out the request; None if it has not yet."""
    folder = RunDir(layout.run_dir(run))
    is_lost = folder.started() is not None and folder.is_supervised() is False  # read before its end
    if folder.exit() is not None:
        return Changed(run, False, "has ended")
    if is_lost:
        return Changed(run, False, "has lost its supervisor: the next worker will find out how it ended")
    report = folder.suspended()
    if suspended and report is not None:
        n = report.processes
        return Changed(run, True, f"is suspended: {n} process{'es' if n > 1 else ''} stopped")
    return Changed(run, True, "continues") if not suspended and report is None else None


def _unanswered(layout: Layout, run: str, suspended: bool) -> Changed:
    if RunDir(layout.run_dir(run)).is_supervised() or not suspended:
        return Changed(run, True, "was asked to stop" if suspended else "was asked to continue")
    return Changed(run, True, "will be suspended as soon as it starts")


def sync_request(connection: Connection, run_id: int, folder: RunDir) -> None:
    """Match the request in a run's folder to the store: a command may have died between the two. For the worker.

    The folder is read first: a request is committed before it is filed, so one that is in the folder but not in the
    store was withdrawn.
    """
    filed = os.path.lexists(folder.suspend)
    requested = jobs.suspend_requested(connection, run_id)
    if requested != filed:
        folder.request_pause(requested)


def pause_queue(
    layout: Layout, reason: str | None, lane: str = DEFAULT_LANE, *, now: bool = False
) -> tuple[bool, list[Changed]]:
    """Do the same as `pause_lane`; with `now`, also suspend what runs there, and continue it without a `reason`. Return
    the results of these runs, too."""
    changed = pause_lane(layout, reason, lane)
    if reason is None:
        suspended = running(layout, lane, suspended=True)
        return changed, resume(layout, suspended) if suspended else []
    active = running(layout, lane) if now else []
    return changed, pause(layout, active, now=True) if active else []


def pause_lane(layout: Layout, reason: str | None, lane: str = DEFAULT_LANE) -> bool:
    """Keep a lane, or by default the whole queue, from starting runs; let it continue if `reason` is None. Return
    whether that is a change. Raises: MpsqError (store)."""
    if not read.is_there(layout.db):
        ensure_home(layout.home, need_bytes=0)  # a user who begins with a pause gets a paused queue
    with migrate.writing_to(layout) as connection:
        changed = lane_claims.pause(connection, lane, reason)
    wakeup.ring(layout.fifo)
    return changed


def lane_of(layout: Layout, text: str | None) -> str:
    """Return the lane that a user names by the beginning of its name; the whole queue for None.

    Raises: UsageError when no lane, or more than one, begins with it.
    """
    if text is None:
        return DEFAULT_LANE
    known = set(lanes.parse(config_file.load(layout.config).lanes)) - {lanes.AUTO}
    if read.is_there(layout.db):
        with read.reading(layout.db) as connection:
            known |= {lane.name for lane in read.lanes_here(connection)}
    matching = sorted(name for name in known if text and name.lower().startswith(text.lower()))
    if len(matching) != 1 and text not in known:
        hint = f"the lanes are {', '.join(sorted(known))}" if known else "mpsq config set lanes makes some"
        raise UsageError(f'"{text}" names {"several lanes" if matching else "no lane"}', hint)
    return text if text in known else matching[0]


def running(layout: Layout, lane: str = DEFAULT_LANE, *, suspended: bool = False) -> list[Selector]:
    """Return the running runs on a lane, by default on every lane; with `suspended`, only those that are suspended."""
    if not read.is_there(layout.db):
        return []
    condition = "state = 'RUNNING'" + (" AND paused_at IS NOT NULL" if suspended else "")
    with read.reading(layout.db) as connection:
        runs = list(each_run(connection, QueuedRun, condition))
    return [parse_selector(run.run) for run in runs if lane in (DEFAULT_LANE, *lanes.parts(run.lane))]
