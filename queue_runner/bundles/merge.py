"""Merging: the runs of a bundle become runs of this queue, under the machine that they ran on.

Everything is checked before anything is stored. Summaries and taints are computed from the points. What the runs
measured is stored in small transactions (store/merges.py); the last one adds the runs, and nothing counts before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from queue_runner.analysis.neighbour_share import SHARE
from queue_runner.bundles import batches, convert, reading
from queue_runner.bundles.batches import Batches
from queue_runner.bundles.reading import KEPT, Content, ReaderProcess, RunContent
from queue_runner.bundles.rows import BadBundle, GroupRow, RunRow
from queue_runner.errors import MpsqError
from queue_runner.host import failpoints, locks
from queue_runner.host.warden_records import RunEnd
from queue_runner.ingest.summarize_run import Assessment, assess, assess_safely, points_of
from queue_runner.machine_records import Machine, known_fields
from queue_runner.model import Ending, Outcome, RunId
from queue_runner.paths import Layout
from queue_runner.spec import NewJob, Terms
from queue_runner.store import jobs, merges, migrate, results
from queue_runner.store.engine import Connection, Engine, looking, open_engine, writing

UNKNOWN = ""
"""The hash of a merged run's content or a merged job's question that earlier versions computed in another way."""
WAIT_S = 600.0
"""How long one merge waits for another."""


class Merged(Struct, frozen=True, rename={"from_here": "own"}):
    """The result of merging one bundle. `from_here` counts the runs of this queue itself."""

    file: str
    bundle: str
    groups: list[str]
    jobs: int
    runs: int
    known: int
    from_here: int
    iterations: int
    machines: list[str]


class _Plan(Struct):
    """The changes that a bundle makes here. `new` are runs by their place in the bundle. `known` has the ids of runs
    here by their ids there. `jobs` has those of jobs, None for a new one, and `groups` those of submissions, whose
    `machines` are those of their runs that were never started."""

    new: dict[int, RunRow] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)
    jobs: dict[int, int | None] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)
    machines: dict[int, str] = field(default_factory=dict)
    from_here: int = 0
    n_merged: int = 0

    @property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps(sorted(self.new)).encode()).hexdigest()


def temporary_folder(layout: Layout) -> AbstractContextManager[str]:
    """Return a folder for bundles, below the home: mpsq gc removes it if the command is killed."""
    can_write = os.access(layout.backups, os.W_OK)  # a queue on a read-only disk is exported, too
    return tempfile.TemporaryDirectory(prefix=".partial-", dir=layout.backups if can_write else None)


def merge(layout: Layout, bundles: Sequence[tuple[str, Path]]) -> list[Merged]:
    """Store the runs of bundles, given by name and path, that are not here yet.

    Raises: BadBundle, with nothing stored, for anything but whole and sound bundles; MpsqError (store).
    """
    migrate.ensure(layout)
    with temporary_folder(layout) as folder, _alone(layout), reading.ReaderProcess() as process:
        temporary = [Path(folder) / f"{k}.mpsq" for k in range(len(bundles))]
        # measurements come before their runs, to which they refer
        engine = open_engine(layout.db, check=False, foreign_keys=False)
        sound = [_Import(engine, process, *bundle, path) for bundle, path in zip(bundles, temporary, strict=True)]
        for bundle in sound:
            with looking(engine) as connection:
                bundle.plan(connection)
        return [bundle.store() for bundle in sound]


def _alone(layout: Layout) -> locks.Lock:
    """Exclude other merges: two could bring the same runs."""
    lock = locks.alone(layout.merge_lock, WAIT_S)
    if lock is None:
        raise MpsqError("another mpsq import has been merging bundles for 10 min", "wait until it ends, then try again")
    return lock


def _n_merged(connection: Connection) -> int:
    """Return the number of merged jobs and runs: as merges exclude each other, an equal one means the same ones."""
    return int(connection.value("SELECT (SELECT count(*) FROM merged_runs) + (SELECT count(*) FROM merged_jobs)"))


def _ran_here(connection: Connection, group: GroupRow, job_id: int, created_at: float) -> bool:
    """Return whether the bundle's job is a job of this queue itself."""
    sql = (
        "SELECT 1 FROM jobs j JOIN groups g ON g.id = j.group_id WHERE j.id = ? AND j.created_at = ?"
        " AND g.id = ? AND g.created_at = ? AND j.id NOT IN (SELECT job_id FROM merged_jobs)"
    )
    return connection.row(sql, (job_id, created_at, group.id, group.created_at)) is not None


class _Import:
    """A sound bundle, and its way into the store."""

    def __init__(self, engine: Engine, process: ReaderProcess, name: str, path: Path, temporary: Path) -> None:
        """Check a bundle. Raises: BadBundle."""
        self._engine = engine
        self._process = process
        self._name = name
        self._hashes: dict[int, str] = {}
        self._batches = Batches(engine)
        self._n_iterations = 0

        def note(_: Content, run: RunContent) -> None:
            self._hashes[run.run.id] = run.hash

        try:
            self._path = convert.current(path, temporary)
            self._content = reading.checked(process.frames(self._path), note)
            self._content.check_complete()
        except BadBundle as error:
            raise self._refused(error) from error

    def _refused(self, error: BadBundle) -> BadBundle:
        return BadBundle(f"{error.reason} ({self._name})", error.hint)

    def store(self) -> Merged:
        """Store the runs that are not here yet. Raises: BadBundle for a run that differs from the one here."""
        while True:
            with looking(self._engine) as connection:
                plan = self.plan(connection)
                merge = merges.find(connection, self._content.sha256)
            if merge is not None and merge.plan_hash != plan.hash:
                merges.undo(self._engine, merge)
                merge = None
            if not plan.new and None not in plan.jobs.values():
                return self._merged(plan, 0, 0)
            if merge is None:
                with writing(self._engine) as connection:
                    merge = merges.begin(connection, self._content.sha256, plan.hash, len(self._content.runs))
            merge = self._measurements(merge, plan)
            failpoints.reach("merge.measured")
            if self._runs(merge, plan):
                return self._merged(plan, sum(job is None for job in plan.jobs.values()), len(plan.new))

    def plan(self, connection: Connection) -> _Plan:
        """Compare the bundle with this queue. Raises: BadBundle for a run that differs from the one here."""
        content, plan, machines = self._content, _Plan(n_merged=_n_merged(connection)), self._content.machines()
        plan.machines = {group: of_group[0] for group, of_group in machines.items()}
        for job in content.jobs.values():
            group = content.groups[job.row.group_id]
            if _ran_here(connection, group, job.row.id, job.row.created_at):
                continue
            known = connection.row(
                "SELECT m.job_id, j.group_id, m.question_hash, m.machine_hash FROM merged_jobs m"
                " JOIN jobs j ON j.id = m.job_id WHERE m.identity = ?",
                (job.identity(group),),
            )
            plan.jobs[job.row.id] = None if known is None else known[0]
            if known is None:
                continue
            job_id, plan.groups[group.id], question, plan.machines[group.id] = known
            if question not in (job.question, UNKNOWN):
                raise self._differs(f"job {job.row.id}", f"{job_id}", "with another question", job_id)
            if plan.machines[group.id] not in machines[group.id]:
                raise self._differs(f"job {job.row.id}", f"{job_id}", "of another machine", job_id)
        for place, run in enumerate(content.runs.values()):
            if run.job_id not in plan.jobs:
                plan.from_here += 1
                continue
            job_here = plan.jobs[run.job_id]
            known = None if job_here is None else connection.row(
                "SELECT r.id, m.content_hash FROM runs r LEFT JOIN merged_runs m ON m.run_id = r.id"
                " WHERE r.job_id = ? AND r.number = ?",
                (job_here, run.number),
            )  # fmt: skip
            if known is None:
                plan.new[place] = run
                continue
            plan.known[run.id], content_hash = known
            if content_hash not in (self._hashes[run.id], UNKNOWN):
                named = f"{job_here}.{run.number}"
                raise self._differs(f"run {RunId(run.job_id, run.number)}", named, "with other content", job_here or 0)
        return plan

    def _differs(self, its: str, here: str, how: str, job_id: int) -> BadBundle:
        return BadBundle(
            f"its {its} is here already, as {here}, {how} ({self._name})",
            f"mpsq delete --results {job_id} removes the one that is here",
        )

    def _merged(self, plan: _Plan, n_jobs: int, n_runs: int) -> Merged:
        return Merged(
            file=self._name,
            bundle=self._content.sha256,
            groups=[f"g{plan.groups[group]}" for group in sorted(plan.groups)],
            jobs=n_jobs,
            runs=n_runs,
            known=len(plan.known),
            from_here=plan.from_here,
            iterations=self._n_iterations if n_runs else 0,
            machines=[self._machine(digest) for digest in sorted({*chain(*self._content.machines().values())})],
        )

    def _machine(self, digest: str) -> str:
        facts = known_fields(self._content.fingerprints[digest][1], Machine)
        memory = f", {facts.memory_gib} GiB" if facts.memory_gib is not None else ""
        return f"{facts.cpu or facts.model or '?'}{memory} (machine {digest[:7]})"

    # -- what the runs measured -----------------------------------------------------------------------------------

    def _measurements(self, merge: merges.Merge, plan: _Plan) -> merges.Merge:
        """Store what new runs measured, from the place at which an earlier try ended. Raises: BadBundle where the file
        is not what it was."""
        place = self._n_iterations = 0

        def take(_: Content, content: RunContent) -> None:
            nonlocal merge, place
            self._n_iterations += len(content.rows["iterations"]) if place in plan.new else 0
            if place >= merge.n_stored and place in plan.new:
                if not self._batches.is_empty and not self._batches.has_room(content.rows):
                    merge = self._write(merge, place)
                self._wait(merge.first_run_id + place, content)
            place += 1

        again = reading.read(self._process.frames(self._path), take)
        if again.sha256 != self._content.sha256:
            merges.undo(self._engine, merge)
            raise self._refused(BadBundle("it was changed while it was read", "import it again"))
        return self._write(merge, place) if not self._batches.is_empty or merge.n_stored < place else merge

    def _wait(self, run_id: int, content: RunContent) -> None:
        """Let what a run measured wait for the next transaction."""
        self._batches.add(run_id, content.rows)
        if content.run.machine_hash is None:
            return
        assessment = assessed(content, self._content)
        if assessment.summary is not None:
            values = (getattr(assessment.summary, name) for name in batches.SUMMARY)
            self._batches.add(run_id, {"summaries": [(run_id, *values)]})
        taints = [(run_id, taint.kind, taint.severity, taint.detail) for taint in assessment.taints]
        self._batches.add(run_id, {"taints": taints})

    def _write(self, merge: merges.Merge, n_stored: int) -> merges.Merge:
        """Store what waits. Only the last transaction records it."""

        def record(connection: Connection, is_last: bool) -> None:
            nonlocal merge
            merge = merges.advance(connection, merge, n_stored if is_last else merge.n_stored)

        self._batches.write(record)
        return merge

    # -- the runs --------------------------------------------------------------------------------------------------

    def _runs(self, merge: merges.Merge, plan: _Plan) -> bool:
        """Store the runs, with which all of the bundle counts; return False where the plan is no longer right."""
        content, now = self._content, time.time()
        here = plan.known | {run.id: merge.first_run_id + place for place, run in plan.new.items()}
        rows = [
            {
                **{name: getattr(run, name) for name in (*KEPT, "position", "software_hash")},
                "id": here[run.id],
                "machine_hash": run.machine_hash or plan.machines[content.jobs[run.job_id].row.group_id],
                "resumed_from": here.get(run.resumed_from or 0),
            }
            for run in plan.new.values()
        ]
        origin = f"merged from bundle {content.sha256[:12]}, where it is run "
        origins = [f"{origin}{RunId(run.job_id, run.number)}" for run in plan.new.values()]
        merged = [(here[run.id], now, content.sha256, self._hashes[run.id]) for run in plan.new.values()]
        with writing(self._engine) as connection:
            if _n_merged(connection) != plan.n_merged:
                return False
            merges.end(connection, merge)
            for kind, data in content.fingerprints.values():
                results.save_fingerprint(connection, kind, data)
            jobs_here = {id: here or self._job(connection, plan, id) for id, here in plan.jobs.items()}
            with_jobs = zip(rows, plan.new.values(), strict=True)
            rows = [row | {"job_id": jobs_here[run.job_id]} for row, run in with_jobs]
            jobs.add_ended_runs(connection, rows, origins)
            connection.change_all("INSERT INTO merged_runs VALUES (?, ?, ?, ?)", merged)
            failpoints.reach("merge.before_last_commit")
        return True

    def _job(self, connection: Connection, plan: _Plan, id: int) -> int:
        """Add a job that this queue can never run: to its verbs it is an imported one."""
        job = self._content.jobs[id]
        group = self._content.groups[job.row.group_id]
        if group.id not in plan.groups:
            plan.groups[group.id] = jobs.add_group(connection, group.title, group.seed)
            aim = [group.aim_json, plan.groups[group.id]]
            connection.change("UPDATE groups SET aim = ? WHERE id = ?", aim)
        merged = {"kind": job.spec.kind, "machine": plan.machines[group.id]}
        new = NewJob(job.spec.changed(kind="import", merged=merged), terms=Terms(note=job.row.note, tags=job.tags))
        job_here = jobs.add_job(connection, plan.groups[group.id], new)
        values = (job_here, job.identity(group), job.question, plan.machines[group.id])
        connection.change("INSERT INTO merged_jobs VALUES (?, ?, ?, ?)", values)
        return job_here


def assessed(content: RunContent, bundle: Content) -> Assessment:
    """Return the summary and the taints of a run of a bundle."""
    run, rows = content.run, content.rows
    end = rows["exits"][0] if rows["exits"] else None
    times = {} if end is None else {"real_s": end.real_s, "slept_s": end.slept_s, "paused_s": end.paused_s}
    exit_ = known_fields({**json.loads(end.exit_json if end is not None else "{}"), **times}, RunEnd)
    ending = Ending(Outcome(run.outcome), run.exit_code, run.signal, run.reason or "")
    before = bundle.runs.get(run.resumed_from or 0)
    resumed_from = None if before is None else str(RunId(before.job_id, before.number))
    shares = [row.value for row in rows["metrics"] if row.name == SHARE and row.value is not None]
    share = min(max(shares[0], 0.0), 1.0) if shares else None

    def columns(table: str, *names: str) -> Iterable[tuple[Any, ...]]:
        return zip(*(map(attrgetter(name), rows[table]) for name in names), strict=True)

    def compute() -> Assessment:
        points = points_of(columns, resumed_from, share)
        return assess(points, bundle.jobs[run.job_id].spec, ending, exit_, unobserved_matters=True)

    return assess_safely(compute)
