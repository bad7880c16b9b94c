"""The end of a run: summary, taints, fingerprint and the move to DONE, in one transaction."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine

from queue_runner import failpoints
from queue_runner.analysis.neighbours import Neighbour
from queue_runner.control import checkpoints
from queue_runner.ingest.summarize_run import hello_of, summarize_run
from queue_runner.model import Ending, RunId, State, Verb
from queue_runner.run_dir import RunDir, read_end
from queue_runner.store import hook_calls, jobs, lane_claims, replacements, results, retries
from queue_runner.store.engine import writing
from queue_runner.store.hook_calls import Orders
from queue_runner.store.jobs import Claimed
from queue_runner.submit import grid
from queue_runner.submit.find_max import next
from queue_runner.text import last_line, plain
from queue_runner.worker import group_guard, preflight
from queue_runner.worker.fingerprint import of_machine, of_software
from queue_runner.worker.outcome import failed_on_metal, with_last_words

_STDERR_BYTES = 1 << 20
"""Bytes at the end of stderr that are searched for errors of Metal."""
_LAST_BYTES = 4096
"""Bytes at the end of stderr that contain a job's last words."""

_FOLDER_REMOVED = "files of its run folder were removed while it ran: its logs and events may be incomplete"


def finish(
    engine: Engine,
    run: Claimed,
    folder: RunDir,
    ending: Ending,
    exit_: Mapping[str, Any] | None,
    orders: Orders,
    hold_after: int = 0,
    node: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
) -> Ending:
    """Store how the run ended and which hooks to call, all or nothing. Return the ending with its reason. `hold_after`
    is the limit of group_guard. `node` is the machine, and the versions of its system, where that was not this one.

    Raises: MpsqError (store).
    """
    stderr = read_end(folder.stderr, _STDERR_BYTES)
    failed, end = failed_on_metal(stderr), stderr[-_LAST_BYTES:]
    ending = with_last_words(ending, last_line(end), end)
    machine = of_machine() if node is None else node[0]  # may run programs: not while holding the write lock
    tries = preflight.is_one(run)
    busy = tries and preflight.busy_memory(run, ending)
    with writing(engine) as connection:
        if exit_ is not None:
            results.save_exit(connection, run.run_id, exit_)
        if failed:
            results.save_note(connection, run.run_id, "wrong_result", failed)
        ran = exit_ is not None or jobs.was_started(connection, run.run_id)
        if ran and not folder.spec.exists():
            results.save_note(connection, run.run_id, "folder_removed", _FOLDER_REMOVED)
        if not tries:
            summarise_whatever_it_said(connection, run, folder, ending, exit_ or {})
        software = of_software(hello_of(connection, run.run_id), run.spec, None if node is None else node[1])
        results.mark_fingerprint(
            connection,
            run.run_id,
            results.save_fingerprint(connection, "machine", machine),
            results.save_fingerprint(connection, "software", software),
        )
        jobs.move(
            connection,
            run.run_id,
            Verb.FINISH,
            actor="worker",
            ending=ending,
            ended_at=(exit_ or {}).get("ended_at") or time.time(),
            paused_at=None,
            blocked_reason=None,
        )
        failpoints.reach("finish.before_retry")
        again = None
        if tries:
            preflight.judge(connection, run, ending, busy)
        else:
            again = _go_on(connection, run, folder, ending, machine)
            group_guard.guard(connection, run, ending, hold_after, time.time())
        if again is None and run.spec.until_valid:
            replacements.after(connection, run.id.job, grid.round_order, time.time())
        hook_calls.note_end(connection, run.run_id, ending.outcome, orders, if_failed_only=tries)
        failpoints.reach("finish.before_commit")
    return ending


def _go_on(
    connection: Connection, run: Claimed, folder: RunDir, ending: Ending, machine: Mapping[str, Any]
) -> RunId | None:
    """Queue what was agreed to follow a run: a retry, which is returned, or the next probe of a search."""
    if not next.is_answer(run.spec, ending):
        checkpoint = _checkpoint(connection, run, folder)
        if again := retries.retry_as_agreed(connection, run.run_id, ending, time.time(), checkpoint):
            return again
    next.go_on(connection, run.id.job, run.spec, next.memory_bytes(machine))
    return None


def _checkpoint(connection: Connection, run: Claimed, folder: RunDir) -> int | None:
    """Return the run whose checkpoint a retry resumes from; None if that was not requested, or there is none."""
    if not run.spec.resume:
        return None
    found = checkpoints.newest(folder.path.parent, retries.segments(connection, run.run_id))
    return found.run_id if found else None


def summarise_whatever_it_said(
    connection: Connection, run: Claimed, folder: RunDir | None, ending: Ending, exit_: Mapping[str, Any]
) -> None:
    """Summarise the run; numbers that mpsq cannot process are an error of mpsq and invalid, but never block the
    queue. Without a folder the run is another machine's, and its stored taints tell of its neighbours."""
    try:
        with connection.begin_nested():
            beside = find_neighbours(connection, run, folder, exit_) if folder else []
            summarize_run(connection, run, ending, exit_, unobserved_matters=True, neighbours=beside)
    except (ArithmeticError, LookupError, TypeError, ValueError, AssertionError, RecursionError) as error:
        detail = f"mpsq could not process what it reported ({type(error).__name__}: {error}): please report it"
        results.save_taints(connection, run.run_id, [("unobserved", "invalid", plain(detail))])


def find_neighbours(connection: Connection, run: Claimed, folder: RunDir, exit_: Mapping[str, Any]) -> list[Neighbour]:
    """Return the runs that were active on other lanes of this machine during a run that has ended as `exit_` says.

    They have all been claimed by its end. One that is still RUNNING in the database may have started after this run, or
    ended hours before a worker saw it: its own files decide, so that the order in which a worker stores ends changes
    nothing. One whose end is unknown counts as active until it is known.
    """
    started_at = exit_.get("started_at")
    if run.spec.on or started_at is None:
        return []
    neighbours = []
    for other in lane_claims.overlapping(connection, run.run_id, started_at, exit_.get("ended_at") or time.time()):
        ended_at = other.ended_at
        if other.state == State.RUNNING:
            files = RunDir(folder.path.parent / other.run)
            if other.started_at is None and files.started() is None:
                continue  # it has not started yet, and this run has ended
            ended_at = (files.exit() or {}).get("ended_at") or math.inf
        elif other.started_at is None or ended_at is None:
            continue  # it never started
        neighbours.append(Neighbour(other.run, other.lane, other.claimed_at - started_at, ended_at - started_at))
    return neighbours
