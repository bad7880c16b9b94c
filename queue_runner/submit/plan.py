"""Submit: a request becomes ordered jobs, their code is snapshotted, and all is stored in one transaction."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from queue_runner import config_file, extensions, units
from queue_runner.errors import MpsqError, UsageError
from queue_runner.host import failpoints, job_environments, locks, wakeup
from queue_runner.model import Condition, Dependency, parse_selector
from queue_runner.paths import Layout, jobs_dir
from queue_runner.source import git_commands, snapshot
from queue_runner.spec import DECIDED, FIRST_ROUNDS, Aim, JobSpec, NewJob, Until
from queue_runner.submit import expand, notes, run_order, trials
from queue_runner.submit.submit_options import Request

if TYPE_CHECKING:
    from queue_runner.store.engine import Connection
    from queue_runner.submit.find_max.search import SearchRange


class Sibling(Struct, frozen=True):
    """A job of the same plan, by its index, that another job waits for."""

    job: int
    condition: Condition


class Plan(Struct, frozen=True, dict=True):
    """The jobs of a request, and what else is stored with them.

    Every job waits for all of `after` and for its entry of `own_after`, if that is not empty. Rounds follow `until`;
    the `aim` holds for all reports. `names` are those that the user gave. `commits` has, by index, the commits of jobs
    that run these, not the code in their folders. `check_code` is called with the jobs and their code before, and
    `check_queue` in the transaction that stores them; both may refuse by a UsageError.
    """

    title: str
    seed: int
    jobs: tuple[NewJob, ...]
    warnings: tuple[str, ...] = ()
    after: tuple[Dependency, ...] = ()
    own_after: tuple[tuple[Dependency | Sibling, ...], ...] = ()
    until: Until | None = None
    aim: Aim = field(default_factory=Aim)
    names: frozenset[str] = frozenset()
    commits: Mapping[int, str] = field(default_factory=dict)
    check_code: Callable[[Layout, Sequence[JobSpec]], None] | None = None
    check_queue: Callable[[Connection], None] | None = None

    @cached_property
    def order(self) -> list[tuple[int, int]]:
        """The order of the runs: pairs of (index into jobs, repeat from 1)."""
        return run_order.rounds([job.repeats for job in self.jobs], self.seed)


class Submitted(Struct, frozen=True):
    """The result of a submission: the 4 of g4, its job ids in the order of the plan, their runs in the order of the
    queue, and notes on their code."""

    group: int
    jobs: tuple[int, ...]
    runs: tuple[str, ...]
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
    specs = _started(request, cells, shared, several=not alone or len(cells) > 1)
    until = rounds_until(request, len(specs))
    count = len(specs) * (request.repeats if until is None else FIRST_ROUNDS)
    if count > run_order.MAX_RUNS:
        raise UsageError(f"{count:,} runs are too many", f"a submission can have at most {run_order.MAX_RUNS:,} runs")
    if request.whole_node or any(
        v is not None for v in (request.on, request.partition, request.time_s, request.sbatch, request.nodes_at_once)
    ):
        specs = extensions.placement().placed(request, specs)
    terms, after = shared.terms(request)
    planned = Plan(
        request.title,
        seed,
        tuple(NewJob(spec, request.repeats, terms) for spec in specs),
        tuple(notes.notes(request, specs, shared)),
        after,
        aim=aim(request),
        names=frozenset(filter(None, [request.name])),
    )
    return planned if until is None else in_rounds(planned, until)


def in_rounds(planned: Plan, until: Until, first: int = FIRST_ROUNDS) -> Plan:
    """Return the plan with this number of initial rounds, which others follow."""
    return replace(planned, jobs=tuple(replace(job, repeats=first) for job in planned.jobs), until=until)


def rounds_until(request: Request, n_rows: int) -> Until | None:
    """Return when no further round follows; None without --until. Raises: UsageError where it cannot work."""
    if request.until is None:
        if request.budget_s is not None:
            raise UsageError("--budget needs --until", "add --until decided, and leave out --repeats if it is given")
        return None
    if request.repeats != 1:
        raise UsageError("--until and --repeats contradict each other", "give one of them")
    refuse_search_in_rounds(request.find_max)
    if n_rows < 2 and request.until == DECIDED:
        raise UsageError(
            "--until decided needs two jobs or more to compare, and there is one",
            "sweep an option, as in --device cpu,mps; or use --until 1%, which narrows the interval of a single job",
        )
    return Until(request.until, request.budget_s)


def refuse_search_in_rounds(search: SearchRange | None) -> None:
    """Raise UsageError for a search in a submission with --until."""
    if search is not None:
        raise UsageError(
            "--find-max and --until cannot be combined: a search for a limit has no rounds", "leave out --until"
        )


def aim(request: Request) -> Aim:
    """Return what the request asks about."""
    return Aim(request.by, request.same_within or {})


def _started(request: Request, specs: Sequence[JobSpec], shared: expand.Shared, *, several: bool) -> list[JobSpec]:
    """Return the cells with how their runs are started and tried.

    The gate waits for those of a comparison, of `mpsq bench` and `mpsq run`, but not of --find-max, which finds out
    what fits in memory; and where --gate-timeout is given.

    Raises: UsageError when the options contradict each other.
    """
    if request.no_gate and request.gate_timeout_s is not None:
        raise UsageError("--no-gate and --gate-timeout contradict each other", "give one of them")
    is_timed = request.find_max is None
    is_measured = is_timed and (request.measures or len(specs) > 1)
    gate = (is_measured or request.gate_timeout_s is not None) and not request.no_gate
    is_tried = trials.is_wanted(request, several=several)
    return [
        spec.changed(
            gate=gate,
            gate_s=request.gate_timeout_s if gate else None,
            preflight=shared.trial(request, spec.framework) if is_tried else {},
        )
        for spec in specs
    ]


def drawn(seed: int | None) -> int:
    """Return the seed of an order; a new one if `seed` is None. Raises: UsageError for one that cannot be stored."""
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise UsageError(f"--order-seed {seed} is out of range", "use a number of 18 digits at most")
    return seed if seed is not None else int.from_bytes(os.urandom(4), "big")


class DueTime(Struct, frozen=True):
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

    with locks.share(layout.snapshots_lock):  # an existing snapshot must not be removed before it is referenced
        taken = _take_snapshots(layout, planned)
        if planned.check_code is not None:
            specs = [code.applied_to(job.spec) for job, code in zip(planned.jobs, taken, strict=True)]
            planned.check_code(layout, specs)
        failpoints.reach("submit.planned")
        with migrate.writing_to(layout) as connection:
            stored = _insert(layout, connection, planned, taken, due)
            failpoints.reach("submit.before_commit")
    failpoints.reach("submit.committed")
    wakeup.ring(layout.fifo)
    shared = [] if due is not None else _shared_names(layout, planned.names, stored.group)
    return replace(stored, notes=(*stored.notes, *shared))


def _shared_names(layout: Layout, names: Iterable[str], group: int) -> list[str]:
    """Return a note on each of the names that older jobs have, too. The submission is stored: it does not fail where
    these cannot be read."""
    from queue_runner.store import read

    if not (names := [name for name in names if parse_selector(name).name]):
        return []
    older = """
    SELECT name, id FROM jobs WHERE name IN (SELECT value FROM json_each(?)) AND group_id < ? AND deleted_at IS NULL
    ORDER BY name, id
    """
    notes = []
    with suppress(MpsqError), read.reading(layout.db) as connection:
        rows = read.tuples(connection, older, [json.dumps(names), group])
        for name, same in islice(groupby(rows, key=itemgetter(0)), MOST_NAMED):
            ids = [str(id) for _, id in same]
            which = f"job{'s' * (len(ids) > 1)} {units.listed(ids, MOST_NAMED)}"
            notes.append(f'"{name}" also selects {which}, of the same name; g{group} selects only the new submission')
    return notes


MOST_NAMED = 5
"""Jobs that a note names, of which the rest is counted, and names with a note."""


def _insert(
    layout: Layout, connection: Connection, planned: Plan, taken: Sequence[snapshot.Taken], due: DueTime | None
) -> Submitted:
    """Store every job of the plan in an open transaction, and its environments apart from it. Advance the schedule.

    Raises: UsageError when a dependency does not exist, or the schedule is no longer due; OSError when an environment
    cannot be written.
    """
    from queue_runner.store import added_rounds, jobs, ready, resolve

    if planned.check_queue is not None:
        planned.check_queue(connection)
    ids_of = cache(partial(resolve.dependencies, connection))  # many jobs wait for the same others
    own_after = planned.own_after or ((),) * len(planned.jobs)
    after = [  # before the group is stored: @last is the one before it
        ids_of((*planned.after, *(other for other in others if isinstance(other, Dependency)))) for others in own_after
    ]

    environments = job_environments.Saver(layout)
    new: Iterable[NewJob] = (  # made when they are stored: of 100,000 jobs they take 70 MB
        NewJob(
            environments.stored(code.applied_to(job.spec)),
            job.repeats,
            replace(job.terms, after=ids, schedule_id=due.id if due else job.terms.schedule_id),
        )
        for job, code, ids in zip(planned.jobs, taken, after, strict=True)
    )
    for stored in {code.snapshot.hash: code.snapshot for code in taken if code.snapshot is not None}.values():
        jobs.save_snapshot(connection, stored)
    tried: Sequence[int] = ()
    if any(job.spec.preflight for job in planned.jobs):
        new = tuple(new)
        tried = trials.choose(layout, connection, new)
    title, actor = (due.title, "schedule") if due else (planned.title, "user")
    group, ids = jobs.submit(connection, title, planned.seed, new, planned.order, actor, tried)
    if planned.until is not None:
        added_rounds.open_until(connection, group, planned.until)
    added_rounds.set_aim(connection, group, planned.aim)
    between = (
        (id, ids[other.job], other.condition)
        for id, others in zip(ids, own_after, strict=True)
        for other in others
        if isinstance(other, Sibling)
    )
    jobs.add_dependencies(connection, between)
    may_be_late = any(after) or any(job.terms.deadline_at is not None for job in planned.jobs)
    late = ready.unsatisfiable(connection, time.time(), ids) if may_be_late else ()
    why = {_in_vain(ending.reason) for _, ending in late}
    notes = dict.fromkeys(note for code in taken for note in code.notes)
    if due is not None:
        from queue_runner.store import schedules

        if not schedules.advance(connection, due.id, due.due_at, due.next_at, group, None):
            raise UsageError(
                f"schedule {due.id} is no longer due", "mpsq schedule list shows when each schedule is due"
            )
    runs = tuple(f"{ids[cell]}.{repeat}" for cell, repeat in planned.order)
    return Submitted(group, tuple(ids), runs, (*notes, *sorted(why), *trials.note(tried, planned.jobs)))


def _in_vain(reason: str) -> str:
    kind, _, text = reason.partition(": ")
    if kind == "deadline":
        return "jobs whose --deadline has passed will be skipped"
    return f"{text}: jobs that depend on it will be skipped"


def _take_snapshots(layout: Layout, planned: Plan) -> list[snapshot.Taken]:
    """Snapshot the current code of each job of a plan, once for all jobs that run from the same place.

    Raises: MpsqError when it cannot be stored.
    """
    taken: dict[tuple[object, ...], snapshot.Taken] = {}
    code = []
    for number, job in enumerate(planned.jobs):
        commit = planned.commits.get(number, "")
        if (place := (*_place(job.spec), commit)) not in taken:
            name = job.spec.env_name  # looked up again: now it cannot be removed before the job is stored
            taken[place] = replace(_take(layout, job, commit), packages=_packages(layout, name) if name else {})
        code.append(taken[place])
    return code


def _packages(layout: Layout, name: str) -> Mapping[str, str]:
    from queue_runner.workloads import venvs

    return venvs.find(layout, name).packages


def _place(spec: JobSpec) -> tuple[object, ...]:
    """Return the fields that determine the code of a job."""
    place = spec.kind, spec.cwd, spec.copy, spec.allow_changed, spec.env_name, spec.workload, spec.framework
    return (*place, spec.tree)


def _take(layout: Layout, job: NewJob, commit: str) -> snapshot.Taken:
    spec, cwd = job.spec, Path(job.spec.cwd)
    if spec.tree:
        return snapshot.Taken(None)  # it was stored for an earlier job
    try:
        if spec.kind == "workload":
            from queue_runner.workloads import catalog

            files = catalog.files_of(layout.workloads, str(spec.script))
            revision = git_commands.revision(cwd)
            return snapshot.Taken(snapshot.of_workloads(jobs_dir(), layout.snapshots, revision, files))
        not_code = config_file.load(layout.config).not_code
        if commit:
            return snapshot.of_commit(cwd, commit, layout.snapshots, not_code=not_code)
        return snapshot.of_command(
            cwd, layout.snapshots, copy=spec.copy, allow_changed=spec.allow_changed, not_code=not_code
        )
    except OSError as error:
        raise MpsqError(f"mpsq could not copy the code: {error.strerror}", "free some space and try again") from error
