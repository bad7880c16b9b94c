"""Submit: a request becomes ordered jobs, their code is snapshotted, and all is stored in one transaction."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from queue_runner import extensions, failpoints, units
from queue_runner.errors import MpsqError, UsageError
from queue_runner.host import job_environments, locks, protected, wakeup
from queue_runner.model import Condition, Dependency
from queue_runner.once_a_day import RepeatedNote
from queue_runner.paths import Layout, jobs_dir
from queue_runner.source import git_commands, snapshot
from queue_runner.spec import JobSpec, NewJob
from queue_runner.submit import conditions, expand, launchers, preflight, run_order
from queue_runner.submit.find_max import first_probe, search
from queue_runner.submit.request import Request
from queue_runner.workloads import catalog, venvs

if TYPE_CHECKING:
    from queue_runner.store.engine import Connection


@dataclass(frozen=True)
class Sibling:
    """A job of the same plan, by its index, that another job waits for."""

    job: int
    condition: Condition


@dataclass(frozen=True)
class Plan:
    """The jobs of a request and the order of their runs: pairs of (index into jobs, repeat from 1).

    Every job waits for all of `after` and for its entry of `own_after`, if that is not empty.
    """

    title: str
    seed: int
    jobs: tuple[NewJob, ...]
    order: tuple[tuple[int, int], ...]
    warnings: tuple[str, ...]
    after: tuple[Dependency, ...] = ()
    own_after: tuple[tuple[Dependency | Sibling, ...], ...] = ()


@dataclass(frozen=True)
class Submitted:
    """The result of a submission: the 4 of g4, its job ids in the order of the plan, and notes on their code."""

    group: int
    jobs: tuple[int, ...]
    notes: tuple[str, ...] = ()


def plan(request: Request, shared: expand.Shared | None = None, *, alone: bool = True) -> Plan:
    """Expand and check the grid; nothing is stored. `shared` holds what other requests of the submission looked up;
    it is `alone` if there are none.

    Raises: UsageError for anything in the request that is invalid or missing.
    """
    if request.repeats < 1:
        raise UsageError(f"--repeats {request.repeats} would run nothing", "give 1 or more")
    shared = shared or expand.Shared()
    seed = drawn(request.order_seed)
    cells = expand.expand(request, shared)
    specs = _started(request, cells, shared, seed, several=not alone or len(cells) > 1)
    count = len(specs) * request.repeats
    if count > run_order.MAX_RUNS:
        raise UsageError(f"that is {count:,} runs", f"a submission can have {run_order.MAX_RUNS:,} at most")
    if any(value is not None for value in (request.on, request.partition, request.time_s, request.sbatch)):
        specs = extensions.placement().placed(request, specs)
    agreed, after = shared.agreed(request)
    return Plan(
        request.title,
        seed,
        tuple(NewJob(spec, request.repeats, agreed) for spec in specs),
        tuple(run_order.interleave(len(specs), request.repeats, seed)),
        tuple(_warnings(request, specs, shared)),
        after,
    )


def _started(
    request: Request, specs: Sequence[JobSpec], shared: expand.Shared, seed: int, *, several: bool
) -> list[JobSpec]:
    """Return the cells with how their runs are started, tried and replaced."""
    given = conditions.of_request(request, len(specs))
    if request.until_valid and request.find_max is None:
        given["until_valid"] = True
    tried = preflight.is_wanted(request, several=several)
    return [
        spec.changed(
            **given,
            layout_seed=seed if conditions.has_layouts(request, len(specs), spec) else None,
            preflight=shared.preflight(request, spec.framework) if tried else {},
        )
        for spec in specs
    ]


def drawn(seed: int | None) -> int:
    """Return the seed of an order; a new one if `seed` is None. Raises: UsageError for one that cannot be stored."""
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise UsageError(f"--order-seed {seed} is out of range", "use a number of 18 digits at most")
    return seed if seed is not None else int.from_bytes(os.urandom(4), "big")


def _warnings(request: Request, specs: Sequence[JobSpec], shared: expand.Shared) -> list[str]:
    found = []
    elsewhere = any(spec.on.get("kind") == "ssh" for spec in specs)
    if any(spec.device == "mps" for spec in specs) and sys.platform != "darwin" and not elsewhere:
        ours = request.workload is not None  # of a command mpsq knows only the options
        end = "its runs will end as DEVICE_UNAVAILABLE here" if ours else "mpsq cannot tell what the command uses"
        found.append(f"mps exists on Apple silicon only: {end}")
    if request.find_max and ":" not in specs[0].find_max and request.timeout_s is None:
        found.append(
            "--find-max tries until memory runs out: batch_size=8:512 stops it earlier, --timeout limits each try"
        )
    if request.workload is None and request.parser is None:
        note = (
            "without --parser, mpsq stores only wall, user and system time, unless the program reports its iterations"
        )
        found.append(RepeatedNote(note))
    found += _without_graphs(specs)
    found += launchers.gone(request.argv)
    unsaid = any(spec.device is None for spec in specs)
    if sys.platform == "darwin" and unsaid and (how := launchers.several(request.argv)):
        found.append(f"{how}: on a Mac several processes can train together on the CPU only, not on mps")
    if request.copy and (named := _names_its_folder(request)):
        found.append(f"{named} is named in the command, which reads it there and not in the copy")
    limits = expand.stalls(request.stall)
    if request.workload is None and set(limits) - {"*"}:
        held = f"the longest limit, {units.duration(max(limits.values()))}," if "*" in limits else "no limit"
        found.append(f"a command's phases are known only if it reports them: until then {held} applies to --stall")
    if request.find_max is not None:
        found.append(_search_note(request, specs))
    if elsewhere:
        return found
    found += _absent(request, specs, shared)
    guarded = protected.found(path for spec in specs for path in reads(spec))
    found += [f"{path} is in {place}, which macOS guards: {protected.REMEDY}" for path, place in guarded.items()]
    if request.resume and request.workload and not all(spec.params.get("checkpoint_interval") for spec in specs):
        found.append("--resume: it writes no checkpoints unless --set checkpoint_interval=N, so retries start over")
    return found


def _without_graphs(specs: Sequence[JobSpec]) -> list[str]:
    """Return a note on modes that differ from another one only by CUDA graphs, on devices that have none."""
    same = {"reduce-overhead": "on", "max-autotune": "no-cudagraphs"}
    found = {(s.compile_mode, s.device) for s in specs if s.kind == "workload" and s.device in ("cpu", "mps")}
    return [
        f"{mode} on {device} compiles as {same[mode]} does: it only adds CUDA graphs, which need cuda"
        for mode, device in sorted(found, key=str)
        if mode in same
    ]


def reads(spec: JobSpec) -> Iterator[str]:
    """Yield the paths that a worker or its job reads: folder, interpreter, and what the command or a setting names."""
    if spec.kind == "command":
        yield from () if spec.copy else (spec.cwd,)
        yield shutil.which(spec.argv[0], path=spec.env.get("PATH")) or ""
    texts = (*spec.argv, *(value for value in spec.params.values() if isinstance(value, str)))
    for word in (spec.python, *texts):
        path = word if word.startswith(("/", "../")) else word.partition("=")[2]
        if path.startswith(("/", "../")):
            yield str(Path(spec.cwd, path))


def _absent(request: Request, specs: Sequence[JobSpec], shared: expand.Shared) -> list[str]:
    """Return the paths in settings that do not exist yet."""
    texts = {
        (spec.framework, key, value, spec.cwd)
        for spec in specs
        if request.workload is not None
        for key, value in spec.params.items()
        if isinstance(value, str)
    }
    found = []
    for framework, key, value, cwd in sorted(texts, key=str):
        workload = shared.workload(request, framework)
        found.append(catalog.absent(workload.params[key], value, cwd))
    return list(dict.fromkeys(filter(None, found)))


def _search_note(request: Request, specs: Sequence[JobSpec]) -> str:
    brief = ""
    if request.workload:
        shown = ", ".join(f"{key}={specs[0].params[key]}" for key in first_probe.BRIEF if key in specs[0].params)
        brief = f" Each runs with {shown} (--set changes that)." if shown else ""
    said, asked = search.parse(str(request.find_max)), search.parse(specs[0].find_max)
    key = asked.key
    if asked.last != said.last:
        brief = f" It ends at {asked.last}, the most that {request.workload} takes.{brief}"
    if asked.step > 1:
        brief = f" Only multiples of {asked.step} are tried.{brief}"
    if said.last == search.MOST and any(spec.mps.get("high_watermark") == "1.0" for spec in specs):
        brief = f" On mps memory ends at Metal's recommended size; a range, {key}=8:512, may exceed it.{brief}"
    return (
        f"the queue adds a run for each {key} that it tries, one after the other.{brief} mpsq report scaling shows it"
    )


def _names_its_folder(request: Request) -> str | None:
    """Return the job's folder if the command names it other than in a file path, which the copy has too; else None."""
    folder = str(expand.folder(request))
    paths = [word if word.startswith("/") else word.partition("=")[2] for word in request.argv]
    named = (folder in word and not Path(path).is_file() for word, path in zip(request.argv, paths, strict=True))
    return folder if any(named) else None


@dataclass(frozen=True)
class DueTime:
    """A time at which a schedule is due (Unix seconds), the title of its submission, and its next time."""

    id: int
    title: str
    due_at: float
    next_at: float | None


def store(layout: Layout, planned: Plan, due: DueTime | None = None) -> Submitted:
    """Snapshot the code, store all jobs of the plan or none, and wake the worker. `due` is that of the schedule whose
    jobs they are.

    Raises: MpsqError (disk, permissions), SchemaError (another mpsq's database), UsageError (see _insert).
    """
    from queue_runner.store import migrate
    from queue_runner.store.engine import open_engine, writing

    migrate.ensure(layout)
    with locks.share(layout.snapshots_lock):  # an existing snapshot must not be removed before it is referenced
        taken = _take_snapshots(layout, planned)
        failpoints.reach("submit.planned")
        with writing(open_engine(layout.db, check=False)) as connection:
            stored = _insert(layout, connection, planned, taken, due)
            failpoints.reach("submit.before_commit")
    failpoints.reach("submit.committed")
    wakeup.ring(layout.fifo)
    return stored


def _insert(
    layout: Layout, connection: Connection, planned: Plan, taken: Sequence[snapshot.Taken], due: DueTime | None
) -> Submitted:
    """Store every job of the plan in an open transaction, and its environments apart from it. Advance the schedule.

    Raises: UsageError when a dependency does not exist, or the schedule is no longer due; OSError when an environment
    cannot be written.
    """
    from queue_runner.store import jobs, ready, resolve

    ids_of = resolve.Memory(connection)
    own = planned.own_after or ((),) * len(planned.jobs)
    after = [  # before the group is stored: @last is the one before it
        ids_of.dependencies((*planned.after, *(one for one in of_job if isinstance(one, Dependency)))) for of_job in own
    ]

    environments = job_environments.Saver(layout)
    new = [
        NewJob(
            environments.stored(code.applied_to(job.spec)),
            job.repeats,
            replace(job.terms, after=ids, schedule_id=due.id if due else job.terms.schedule_id),
        )
        for job, code, ids in zip(planned.jobs, taken, after, strict=True)
    ]
    for kept in {code.snapshot.hash: code.snapshot for code in taken if code.snapshot is not None}.values():
        jobs.save_snapshot(connection, kept)
    tried: Sequence[int] = ()
    if any(job.spec.preflight for job in new):
        tried = preflight.chosen(layout, connection, new)
    title, actor = (due.title, "schedule") if due else (planned.title, "user")
    group, ids = jobs.submit(connection, title, planned.seed, new, planned.order, actor, tried)
    between = (
        (id, ids[one.job], one.condition)
        for id, of_job in zip(ids, own, strict=True)
        for one in of_job
        if isinstance(one, Sibling)
    )
    jobs.add_dependencies(connection, between)
    late = dict(ready.unsatisfiable(connection, time.time(), ids))
    why = {_in_vain(ending.reason) for ending in late.values()}
    notes = dict.fromkeys(note for code in taken for note in code.notes)
    if due is not None:
        from queue_runner.store import schedules

        if not schedules.advance(connection, due.id, due.due_at, due.next_at, group, None):
            raise UsageError(f"schedule {due.id} is no longer due", "mpsq schedule list shows when each is")
    return Submitted(group, tuple(ids), (*notes, *sorted(why), *preflight.note(tried, planned.jobs)))


def _in_vain(reason: str) -> str:
    kind, _, text = reason.partition(": ")
    if kind == "deadline":
        return "its --deadline has passed: it will be skipped"
    return f"{text}: jobs that depend on it will be skipped"


def _take_snapshots(layout: Layout, planned: Plan) -> list[snapshot.Taken]:
    """Snapshot the current code of each job of a plan, once for all jobs that run from the same place.

    Raises: MpsqError when it cannot be stored.
    """
    taken: dict[tuple[object, ...], snapshot.Taken] = {}
    found = []
    for job in planned.jobs:
        if (place := _place(job.spec)) not in taken:
            name = job.spec.env_name  # looked up again: now it cannot be removed before the job is stored
            taken[place] = replace(_take(layout, job), packages=venvs.find(layout, name).packages if name else {})
        found.append(taken[place])
    return found


def _place(spec: JobSpec) -> tuple[object, ...]:
    """Return the fields that determine the code of a job."""
    return spec.kind, spec.cwd, spec.copy, spec.allow_changed, spec.env_name, spec.workload, spec.framework


def _take(layout: Layout, job: NewJob) -> snapshot.Taken:
    spec, cwd = job.spec, Path(job.spec.cwd)
    try:
        if spec.kind == "workload":
            own = catalog.files_of(layout.workloads, str(spec.script))
            return snapshot.Taken(snapshot.of_workloads(jobs_dir(), layout.snapshots, git_commands.revision(cwd), own))
        return snapshot.of_command(cwd, layout.snapshots, copy=spec.copy, allow_changed=spec.allow_changed)
    except OSError as error:
        raise MpsqError(
            f"the code could not be snapshotted: {error.strerror}", "free some space and try again"
        ) from error
