"""Wait until the selected runs have ended. A job counts by the last attempt of each of its repeats."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from queue_runner import units
from queue_runner.errors import WaitedJobFailed, WaitTimeout
from queue_runner.host.locks import START_A_WORKER
from queue_runner.model import Outcome, Selector, State
from queue_runner.monitor import queue_state, run_view, waiting
from queue_runner.monitor.poll import Change, Poller
from queue_runner.monitor.queue_state import idle
from queue_runner.monitor.run_view import RunView
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.store.added_rounds import ENDED

_POLL_S = 0.1
_MOST_NAMES = 5


class Awaited(Struct, frozen=True):
    """The runs that a command waits for. `stops` holds, by run id, why mpsq keeps a run from starting; `silences`
    since when targets do not answer. `open_groups`: all runs of these have ended, and a round may follow. `behind`: by
    run id, the job that a user holds and for which a run waits. `obstacles`: why nothing starts before a user acts."""

    runs: Sequence[RunView]
    stops: Mapping[int, str] = field(default_factory=dict)
    silences: Sequence[str] = ()
    open_groups: Sequence[int] = ()
    behind: Mapping[int, int] = field(default_factory=dict)
    obstacles: Sequence[str] = ()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for."""
        return not self.pending and not self.open_groups

    @property
    def counted(self) -> list[RunView]:
        """The last attempt of each repeat."""
        return run_view.last_attempts(self.runs)

    @property
    def pending(self) -> list[RunView]:
        """The runs to wait for: those of `counted` that have not ended, except those that mpsq stopped."""
        return [run for run in self.counted if run.state != State.DONE and run.run_id not in self.stops]

    @property
    def probes_out_of_memory(self) -> list[RunView]:
        """The probes of --find-max that ran out of memory: the search needs them."""
        return [run for run in self.counted if run.outcome == Outcome.OUT_OF_MEMORY and run.is_probe]

    @property
    def beyond_budget(self) -> list[RunView]:
        """The rounds beyond the --budget of jobs of which another run succeeded: they did not fail."""
        measured = {run.job_id for run in self.runs if run.succeeded}
        return [run for run in self.counted if run.is_beyond_budget and run.job_id in measured]

    @property
    def unneeded(self) -> list[RunView]:
        """The runs that were to start only after a failure, if others show that there was none."""
        return [run for run in self.counted if run.is_unneeded] if any(run.succeeded for run in self.counted) else []

    @property
    def total(self) -> int:
        """The number of runs that could succeed."""
        return len(self.counted) - len(self.beyond_budget) - len(self.unneeded)

    @property
    def failed(self) -> list[RunView]:
        """The last attempts that did not succeed, without those that did not fail either."""
        others = {run.run_id for run in (*self.probes_out_of_memory, *self.beyond_budget, *self.unneeded)}
        return [run for run in self.counted if not (run.succeeded or run.run_id in others)]

    def intention(self) -> str:
        """Return a sentence that names the groups that are waited for."""
        names = units.listed([*dict.fromkeys(f"g{run.group_id}" for run in self.runs)], _MOST_NAMES)
        runs = "" if self.open_groups else f": {units.counted(len(self.pending), 'run')} to end"
        return f"waiting for {names}{runs or ' to be decided'}"

    def overdue(self, timeout_s: float | None) -> WaitTimeout:
        """Return the error that these runs have not ended in time."""
        pending, n_runs, after = self.pending, len(self.counted), f"after {units.duration(timeout_s)}"
        if not pending:
            return WaitTimeout(f"g{self.open_groups[0]} has no verdict yet {after}", "mpsq status shows its progress")
        if pending[0].is_unstored:
            ended = f"run {pending[0].run} has ended, but no worker is running to record it"
            return WaitTimeout(f"{ended}: waited for {units.duration(timeout_s)}", START_A_WORKER)
        which = f"run {pending[0].run}" if n_runs == 1 else f"{len(pending)} of {units.counted(n_runs, 'run')}"
        waits = f"{which} {'has' if len(pending) == 1 else 'have'} not ended {after}"
        return WaitTimeout(waits, f"mpsq why {pending[0].run}")

    def hindrances(self) -> list[str]:
        """Return sentences on what keeps these runs from going on before a user acts, or a target answers."""
        return list(filter(None, [*self.obstacles, self.held_sentence(), *self.silences]))

    def held_sentence(self) -> str:
        """Return a sentence that runs are held, or wait for a held job, and how to release them; "" if none is."""
        held = [run for run in self.counted if run.state == State.HELD]
        if not held:
            waits = next((run for run in self.counted if run.run_id in self.behind), None)
            job = self.behind[waits.run_id] if waits else None
            return f"run {waits.run} waits for job {job}, which is held: mpsq resume {job}" if waits else ""
        runs = f"run {held[0].run} is" if len(held) == 1 else f"{units.count(len(held))} runs are"
        jobs = [str(job) for job in dict.fromkeys(run.job_id for run in held)]
        names = jobs if len(jobs) <= _MOST_NAMES else dict.fromkeys(f"g{run.group_id}" for run in held)
        return f"{runs} held and will not start before mpsq resume {' '.join(names)}"

    def failures(self) -> list[str]:
        """Return how each failed run ended; runs that mpsq stopped for one reason are one line."""
        lines: list[str] = []
        stopped: dict[str, list[str]] = {}
        for run in self.failed:
            if reason := self.stops.get(run.run_id):
                stopped.setdefault(f"{run.state}: {reason}", []).append(run.run)
            else:
                lines.append(f"run {run.run}: {run.fate()}")
        for fate, runs in stopped.items():
            names = units.listed(runs, _MOST_NAMES)
            lines.append(
                f"run {names}: {fate}" if len(runs) == 1 else f"{units.count(len(runs))} runs ({names}): {fate}"
            )
        return lines

    def refuse_failures(self) -> None:
        """Raise WaitedJobFailed if a last attempt did not succeed."""
        failed, total = self.failed, self.total
        if not failed:
            return
        message = "the run did not succeed" if total == 1 else f"none of the {units.count(total)} runs succeeded"
        if len(failed) < total:
            message = f"{units.count(len(failed))} of {units.count(total)} runs did not succeed"
        reasons = [self.stops[run.run_id] for run in failed if run.run_id in self.stops]
        raise WaitedJobFailed(": ".join([message, *reasons[:1]]), f"mpsq why {failed[0].run}")


def look(connection: sqlite3.Connection, selectors: Sequence[Selector]) -> Awaited:
    """Return the selected runs as they are now. Raises: UsageError (no match)."""
    connection.execute("BEGIN")  # a round that is added between two reads would look like the end
    try:
        runs = run_view.select(connection, selectors)
        if any(selector.name for selector in selectors):
            by_id = run_view.select(connection, [selector for selector in selectors if not selector.name])
            ids = json.dumps([*{run.job_id for run in runs}])
            rerun = {job for (job,) in read.tuples(connection, read.RERUN_JOBS, [ids])}
            rerun -= {run.job_id for run in by_id}
            runs = [run for run in runs if run.job_id not in rerun]
        groups = {run.group_id for run in runs} if any(selector.number is None for selector in selectors) else ()
        still_open = [group for group, _ in read.tuples(connection, ENDED) if group in groups]
        behind = waiting.behind_held(connection, runs, waiting.BY_USER)
        return Awaited(runs, waiting.stops(connection, runs), silences(connection, runs), still_open, behind)
    finally:
        connection.execute("ROLLBACK")


def silences(connection: sqlite3.Connection, runs: Sequence[RunView]) -> list[str]:
    """Return since when the targets of these runs do not answer, for those that have not ended."""
    names = {run.lane for run in runs if run.state != State.DONE}
    return [lane.state for name, lane in read.remote_lanes(connection).items() if lane.silent and name in names]


def until_done(
    layout: Layout, selectors: Sequence[Selector], timeout_s: float | None, on_waiting: Callable[[Awaited], None]
) -> Awaited:
    """Wait until none of the runs that `selectors` match can change any more, and return them.

    A run that will be retried is not the last of its repeat: the retry is stored with its end, and waited for.
    `on_waiting` is called if there is something to wait for, and after each change.

    Raises: UsageError (no match), WaitTimeout (after `timeout_s` seconds).
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    reported: object = None
    with Poller(layout) as poller:
        while True:
            if poller.poll() in (Change.QUEUE, Change.AGE):
                awaited = look(poller.connection, selectors)
                if awaited.is_over:
                    return awaited
                awaited = replace(awaited, obstacles=queue_state.obstacles(layout, poller.connection))
                runs = [(run.run_id, run.state) for run in awaited.runs]
                state = (awaited.open_groups, runs, awaited.silences, awaited.obstacles)
                if state != reported:
                    on_waiting(awaited)
                    reported = state
            if deadline is not None and time.monotonic() >= deadline:
                raise awaited.overdue(timeout_s)
            time.sleep(_POLL_S)


def until_idle(layout: Layout, timeout_s: float | None, lane: str | None = None) -> None:
    """Return once nothing runs, on this lane if one is given. Raises: WaitTimeout (after `timeout_s` seconds)."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not idle(layout, lane):
        if deadline is not None and time.monotonic() >= deadline:
            message = f"a run has not ended after {units.duration(timeout_s)}; nothing else starts"
            raise WaitTimeout(message, "mpsq status shows the run; mpsq resume ends the pause")
        time.sleep(_POLL_S)


def open_jobs(layout: Layout) -> list[Selector]:
    """Return every job with a run that has not ended. Raises: MpsqError where there is no queue."""
    with read.reading(layout.db) as connection:
        jobs = read.tuples(connection, _OPEN_JOBS)
        return [Selector(str(job), job=job) for (job,) in jobs]


_OPEN_JOBS = """
SELECT job_id FROM runs WHERE state <> 'DONE'
UNION SELECT id FROM jobs WHERE group_id IN (SELECT id FROM groups WHERE until IS NOT NULL AND closed_at IS NULL)
ORDER BY 1
"""
