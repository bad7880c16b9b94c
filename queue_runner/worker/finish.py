"""The end of a run: its summary, taints and fingerprint are computed, then stored with DONE in one transaction.

The fingerprint describes the machine and the software, both hashed; conditions are a series and never hashed. Runs are
comparable on the same machine; every difference in software is a named factor of the comparison.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from queue_runner.analysis.neighbour_share import Neighbour
from queue_runner.control import checkpoints
from queue_runner.host import failpoints, machine
from queue_runner.host.run_dir import RunDir, read_end
from queue_runner.host.warden_records import RunEnd
from queue_runner.ingest import log_metrics, summarize_run
from queue_runner.ingest.outcome import failed_on_metal, with_last_words
from queue_runner.ingest.summarize_run import SelfDescription, self_description
from queue_runner.machine_records import Machine, known_fields
from queue_runner.model import WROTE_OUTSIDE, Ending, Outcome, State, Verb
from queue_runner.spec import NO_CODE, JobSpec
from queue_runner.store import jobs, lane_claims, results, retries
from queue_runner.store.engine import Connection, Engine, looking, writing
from queue_runner.store.jobs import Claimed
from queue_runner.submit.find_max import next_probe
from queue_runner.text import last_line, plain
from queue_runner.worker import group_guard, preflight_end

_STDERR_BYTES = 1 << 20
"""Bytes at the end of stderr that are searched for errors of Metal."""
_LAST_BYTES = 4096
"""Bytes at the end of stderr that contain a job's last words."""

_FOLDER_REMOVED = "files in the folder of this run were removed during the run: the logs and events may be incomplete"


def finish(
    engine: Engine,
    run: Claimed,
    folder: RunDir,
    ending: Ending,
    exit_: RunEnd | None,
    hold_after: int = 0,
    node: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None,
) -> Ending:
    """Store how the run ended, all or nothing. Return the ending with its reason. `hold_after` is the limit of
    group_guard. `node` is the machine, and the versions of its system, where that was not this one.

    Everything is computed before the write lock is taken. Nothing that it depends on changes in between. The events of
    a run, its conditions and its notes are written only by the caller, which holds worker.lock. Earlier attempts are
    DONE and final. Whether another lane's run overlaps is decided from claims before this run's end.

    Raises: MpsqError (store).
    """
    stderr = read_end(folder.stderr, _STDERR_BYTES)
    last_bytes = stderr[-_LAST_BYTES:]
    ending = with_last_words(ending, last_line(last_bytes), last_bytes)
    facts, system = (of_machine(), None) if node is None else node
    is_preflight = run.id.is_preflight
    is_out_of_memory = is_preflight and ending.outcome is Outcome.OUT_OF_MEMORY
    busy = is_out_of_memory and preflight_end.is_taken(run.spec.device)
    notes = {"wrong_result": failed} if (failed := failed_on_metal(stderr)) else {}
    if wrote := read_end(folder.wrote_outside):
        notes[WROTE_OUTSIDE] = plain(wrote.decode("utf-8", "replace"))
    metrics: Mapping[str, float] = {}
    if run.spec.metrics and not is_preflight:
        try:
            logs = [folder.evaluated] if folder.evaluated.exists() else [folder.stdout, folder.stderr]
            metrics = log_metrics.read(logs, run.spec.metrics)
        except log_metrics.Unread as error:
            notes["metric_unread"] = str(error)
        if absent := [name for name in run.spec.metrics if name not in metrics and "metric_unread" not in notes]:
            notes["metric_absent"] = f"no number in the log matches --metric {', '.join(absent)}"
    with looking(engine) as connection:
        started = exit_ is not None or jobs.was_started(connection, run.run_id)
        if started and not folder.spec.exists():
            notes["folder_removed"] = _FOLDER_REMOVED
        software = of_software(self_description(connection, run.run_id), run.spec, system)
        checkpoint = _checkpoint(connection, run, folder)
        assessment = None
        if not is_preflight:
            compute = partial(_assess, connection, run, folder, ending, exit_ or RunEnd(), notes)
            assessment = summarize_run.assess_safely(compute)
    with writing(engine) as connection:
        if exit_ is not None:
            results.save_exit(connection, run.run_id, exit_)
        for name, value in metrics.items():
            results.save_metric(connection, run.run_id, name, value, "")
        for kind, text in notes.items():
            results.save_note(connection, run.run_id, kind, text)
        if assessment is not None:
            summarize_run.save(connection, run.run_id, assessment)
        results.mark_fingerprint(
            connection,
            run.run_id,
            results.save_fingerprint(connection, "machine", facts),
            results.save_fingerprint(connection, "software", software),
        )
        jobs.move(
            connection,
            run.run_id,
            Verb.FINISH,
            actor="worker",
            ending=ending,
            ended_at=(exit_ and exit_.ended_at) or time.time(),
            paused_at=None,
            blocked_reason=None,
        )
        failpoints.reach("finish.before_retry")
        if is_preflight:
            preflight_end.judge(connection, run, ending, busy)
        else:
            _queue_next(connection, run, ending, checkpoint, facts)
            if ending.outcome is not Outcome.SUCCEEDED:
                group_guard.guard(connection, run, ending, hold_after, time.time())
        failpoints.reach("finish.before_commit")
    return ending


def _queue_next(
    connection: Connection, run: Claimed, ending: Ending, checkpoint: int | None, facts: Mapping[str, Any]
) -> None:
    """Queue the run that was agreed to follow a run: a retry, or the next probe of a search."""
    if next_probe.is_answer(run.spec, ending) or not retries.retry_as_agreed(
        connection, run.run_id, ending, time.time(), checkpoint
    ):
        next_probe.queue_next(connection, run.id.job, run.spec, known_fields(facts, Machine).memory_bytes)


def _checkpoint(connection: Connection, run: Claimed, folder: RunDir) -> int | None:
    """Return the run whose checkpoint a retry resumes from; None if that was not requested, or there is none."""
    if not run.spec.resume:
        return None
    newest = checkpoints.newest(folder.path.parent, retries.segments(connection, run.run_id))
    return newest.run_id if newest else None


def _assess(
    connection: Connection, run: Claimed, folder: RunDir, ending: Ending, exit_: RunEnd, new_notes: Mapping[str, str]
) -> summarize_run.Assessment:
    """Summarize the run."""
    return summarize_run.assess(
        summarize_run.read_points(connection, run.run_id),
        run.spec,
        ending,
        exit_,
        unobserved_matters=True,
        new_notes=new_notes,
        neighbours=find_neighbours(connection, run, folder, exit_),
    )


def find_neighbours(connection: Connection, run: Claimed, folder: RunDir, exit_: RunEnd) -> list[Neighbour]:
    """Return the runs that were active on other lanes of this machine during a run that has ended as `exit_` says.

    They have all been claimed by its end. One that is still RUNNING in the database may have started after this run, or
    ended hours before a worker saw it: its own files decide, so that the order in which a worker stores ends changes
    nothing. One whose end is unknown counts as active until it is known.
    """
    started_at = exit_.started_at
    if run.spec.on or started_at is None:
        return []
    neighbours = []
    for other in lane_claims.overlapping(connection, run.run_id, started_at, exit_.ended_at or time.time()):
        ended_at = other.ended_at
        if other.state == State.RUNNING:
            files = RunDir(folder.path.parent / other.run)
            if other.started_at is None and files.started() is None:
                continue  # it has not started yet, and this run has ended
            end = files.exit()
            ended_at = (end and end.ended_at) or math.inf
        elif other.started_at is None or ended_at is None:
            continue  # it never started
        neighbours.append(Neighbour(other.run, other.lane, other.claimed_at - started_at, ended_at - started_at))
    return neighbours


# -- fingerprint ----------------------------------------------------------------------------------------------------

_MATTERS = re.compile(
    r"(PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON|CUDA|CUBLAS|NCCL|MLX|METAL|JAX|XLA|TF|OMP|MKL|OPENBLAS|VECLIB|NUMEXPR|KMP|GOMP)_"
    r"|(OMP|MKL)$|DEV$|LD_PRELOAD$|MALLOC_"
)
"""Environment variables that affect the speed of a framework."""
_CACHES = re.compile(r"_CACHE(_DIR)?$")


@cache
def of_machine() -> dict[str, Any]:
    """Return the properties of the machine that survive a reboot. Queried once per process."""
    return machine.describe().facts()


@cache
def _of_system() -> dict[str, Any]:
    return machine.software().facts()


def of_software(hello: SelfDescription, spec: JobSpec, system: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the versions that the trainer reported, those of the system (this one if None), and the variables that
    matter. Paths of caches do not."""
    return {
        **({"packages": dict(spec.packages)} if spec.packages else {}),
        "versions": hello.versions,
        "python": None if hello.versions else spec.python,
        "system": _of_system() if system is None else dict(system),
        "env": {k: v for k, v in sorted(spec.env.items()) if _MATTERS.match(k) and not _CACHES.search(k)},
        "code": None if spec.code == NO_CODE else spec.code or spec.snapshot,
    }
