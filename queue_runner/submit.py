"""Submit: a request becomes jobs in an order, their code is snapshotted, and all of it is stored in one transaction."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from queue_runner import cells, grid, locks, snapshot, stop_points, terms, vcs, wake
from queue_runner.cells import Request
from queue_runner.errors import MpsqError, UsageError
from queue_runner.paths import Layout, jobs_dir
from queue_runner.spec import NewJob
from queue_runner.terms import Wanted


@dataclass(frozen=True)
class Plan:
    """The jobs of a request and the order of their runs: pairs of (index into jobs, repeat from 1)."""

    title: str
    seed: int
    jobs: tuple[NewJob, ...]
    order: tuple[tuple[int, int], ...]
    warnings: tuple[str, ...]
    after: tuple[Wanted, ...] = ()


@dataclass(frozen=True)
class Submitted:
    """What was stored: the 4 of g4, and the ids of its jobs in the order of the plan."""

    group: int
    jobs: tuple[int, ...]


def plan(request: Request) -> Plan:
    """Expand the grid and check all of it; nothing is stored.

    Raises: UsageError for whatever in the request cannot be understood or is not there.
    """
    if request.repeats < 1:
        raise UsageError(f"--repeats {request.repeats} runs nothing", "give 1 or more")
    specs = cells.expand(request)
    count = len(specs) * request.repeats
    if count > grid.MAX_RUNS:
        raise UsageError(f"that is {count:,} runs", f"one submission takes {grid.MAX_RUNS:,} at most")
    agreed, after = terms.of_request(request, time.time())
    seed = request.order_seed if request.order_seed is not None else int.from_bytes(os.urandom(4), "big")
    return Plan(
        request.title,
        seed,
        tuple(NewJob(spec, request.repeats, agreed) for spec in specs),
        tuple(grid.interleave(len(specs), request.repeats, seed)),
        tuple(_warnings(request, {spec.device for spec in specs})),
        after,
    )


def _warnings(request: Request, devices: set[str | None]) -> list[str]:
    found = []
    if "mps" in devices and sys.platform != "darwin":
        found.append("mps exists on Apple silicon only: its runs will end as DEVICE_UNAVAILABLE here")
    if request.workload is None and request.parser is None:
        found.append("no --parser: wall, user and system time are kept, iterations only if the program reports them")
    return found


def store(layout: Layout, planned: Plan) -> Submitted:
    """Snapshot the code, store every job of the plan or none of them, and wake the worker.

    Raises: MpsqError (disk, permissions), SchemaError (another mpsq's database).
    """
    from queue_runner.store import migrate

    migrate.ensure(layout)
    with locks.share(layout.snapshots_lock):  # a snapshot that is there already must not go before it is referred to
        return _store(layout, planned)


def _store(layout: Layout, planned: Plan) -> Submitted:
    from queue_runner.store import choose, jobs, results
    from queue_runner.store.engine import open_engine, writing

    taken = _snapshot(layout, planned.jobs[0])
    code = taken.hash if taken else None
    engine = open_engine(layout.db, check=False)
    with writing(engine) as connection:
        after = tuple(choose.dependencies(connection, planned.after))
        new = [
            replace(job, spec=replace(job.spec, snapshot=code), terms=replace(job.terms, after=after))
            for job in planned.jobs
        ]
        if taken is not None:
            results.save_snapshot(connection, taken)
        group, ids = jobs.submit(connection, planned.title, planned.seed, new, planned.order)
        stop_points.reach("submit.before_commit")
    stop_points.reach("submit.committed")
    wake.ring(layout.fifo)
    return Submitted(group, tuple(ids))


def _snapshot(layout: Layout, job: NewJob) -> snapshot.Snapshot | None:
    revision = vcs.revision(Path(job.spec.cwd))
    if job.spec.kind != "workload":
        return snapshot.of_tree(revision)
    try:
        return snapshot.of_workloads(jobs_dir(), layout.snapshots, revision)
    except OSError as error:
        raise MpsqError(
            f"the code could not be snapshotted: {error.strerror}", "free some space and try again"
        ) from error
