"""Merging: the runs of a bundle become runs of this queue, under the machine that they ran on.

Everything is checked before anything is written, and all bundles of a call are stored or none.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from queue_runner.bundles import file, identity
from queue_runner.bundles.parts import OF_RUN, BadBundle, BundleGroup, BundleJob, BundleRun
from queue_runner.bundles.scratch import Scratch, scratch
from queue_runner.machine_records import read_machine
from queue_runner.model import RunId, State, Verb
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import jobs, migrate, results
from queue_runner.store.engine import Connection, open_engine, writing
from queue_runner.store.read import reading, tuples

SAME_WITHIN = 1e-9
"""Relative difference of two numbers of a report that is rounding: logarithms differ between C libraries."""
UNKNOWN = ""
"""The hash of a merged run's content or a merged job's question where migration 0014 or 0017 removed a part of it."""
_BATCH = 1000
_MEASURED = (*(part.name for part in OF_RUN), "summaries")


class Merged(Struct, frozen=True, rename={"from_here": "own"}):
    """The result of merging one bundle. `report` compares the report inside with the one made here: equal, or why it
    could not be compared. `from_here` counts the runs of this queue itself."""

    file: str
    bundle: str
    groups: list[str]
    jobs: int
    runs: int
    known: int
    from_here: int
    iterations: int
    machines: list[str]
    report: str


@dataclass(frozen=True)
class _Read:
    name: str
    head: file.Head
    content: Scratch
    report: str


def merge(layout: Layout, bundles: Sequence[tuple[str, bytes]]) -> list[Merged]:
    """Store the runs of bundles, given by name and content, that are not here yet.

    Raises: BadBundle, with nothing stored, for anything but whole and sound bundles; MpsqError (store).
    """
    migrate.ensure(layout)
    with ExitStack() as stack:
        with reading(layout.db) as connection:
            contents = [stack.enter_context(scratch(connection)) for _ in bundles]
        checked = [_read(name, data, content) for (name, data), content in zip(bundles, contents, strict=True)]
        engine = open_engine(layout.db, check=False)
        with writing(engine) as connection:
            return [_Store(connection, bundle).all() for bundle in checked]


def _read(name: str, data: bytes, content: Scratch) -> _Read:
    try:
        head = file.unpack(data, content)
        content.judge()
        return _Read(name, head, content, _compared(head, content.report()))
    except BadBundle as error:
        raise BadBundle(f"{error.message.partition(': ')[2]} ({name})", error.hint) from error


def _compared(head: file.Head, made: dict[str, Any]) -> str:
    """Compare the report inside with the one made here of the points alone. Raises: BadBundle where they differ."""
    if not head.comparable:
        return f"not compared: mpsq {head.mpsq} computes otherwise; this mpsq computed the numbers here"
    where = _difference(made, head.report)
    if where is not None:
        raise BadBundle(f"its report is not that of its points (at {where})")
    return "equal to the one inside"


def _difference(made: Any, claimed: Any, place: str = "report") -> str | None:
    """Return where two JSON values differ by more than rounding; None if nowhere."""
    if type(made) is dict and type(claimed) is dict and made.keys() == claimed.keys():
        pairs = ((f"{place}.{key}", made[key], claimed[key]) for key in made)
    elif type(made) is list and type(claimed) is list and len(made) == len(claimed):
        pairs = ((f"{place}[{i}]", *pair) for i, pair in enumerate(zip(made, claimed, strict=True)))
    elif type(made) is float and type(claimed) is float:
        return None if math.isclose(made, claimed, rel_tol=SAME_WITHIN, abs_tol=1e-300) else place
    else:
        return None if type(made) is type(claimed) and made == claimed else place
    return next((where for at, a, b in pairs if (where := _difference(a, b, at))), None)


class _Store:
    """Stores one bundle in an open transaction."""

    def __init__(self, connection: Connection, bundle: _Read) -> None:
        self._connection = connection
        self._bundle = bundle
        self._content = bundle.content.connection
        self._machines = identity.machines(bundle.content)
        self._now = time.time()
        self._here: dict[int, int] = {}
        self._new: set[int] = set()
        self._groups: list[str] = []
        self._counts = dict.fromkeys(("jobs", "runs", "known", "from_here", "iterations"), 0)

    def all(self) -> Merged:
        """Store the runs that are not here yet. Raises: BadBundle for a run that differs from the one here, or would
        change it."""
        for row in self._read("groups", BundleGroup._fields, "1 = ?", 1):
            if (mine := self._group(BundleGroup(*row))) is not None:
                self._groups.append(f"g{mine}")
        machines = [self._machine(digest) for digest in sorted({*self._machines.values()})]
        bundle = self._bundle
        return Merged(
            bundle.name, bundle.head.hash, self._groups, machines=machines, report=bundle.report, **self._counts
        )

    def _read(self, table: str, columns: Sequence[str], where: str, value: int | str) -> list[tuple[Any, ...]]:
        sql = f"SELECT {', '.join(columns)} FROM {table} WHERE {where} ORDER BY 1"
        return tuples(self._content, sql, [value]).fetchall()

    def _group(self, group: BundleGroup) -> int | None:
        mine: int | None = None
        for row in self._read("jobs", BundleJob._fields, "group_id = ?", group.id):
            job = BundleJob(*row)
            runs = [BundleRun(*values) for values in self._read("runs", BundleRun._fields, "job_id = ?", job.id)]
            if self._ran_here(group, job):
                self._counts["from_here"] += len(runs)
                continue
            name, machine = identity.of_job(group, job), self._machines[group.id]
            question = identity.of_question(JobSpec.from_json(job.spec_json))
            known = self._connection.row(
                "SELECT m.job_id, j.group_id, m.question_hash, m.machine_hash FROM merged_jobs m"
                " JOIN jobs j ON j.id = m.job_id WHERE m.identity = ?",
                (name,),
            )
            if known is not None:
                job_id, mine, question_hash, machine_hash = known
                if question_hash not in (question, UNKNOWN):
                    raise self._differs(f"job {job.id}", f"{job_id}", "with another question", job_id)
                if machine_hash != machine:
                    raise self._differs(f"job {job.id}", f"{job_id}", "of another machine", job_id)
            else:
                if mine is None:
                    mine = jobs.add_group(self._connection, group.title, group.seed)
                    self._connection.change("UPDATE groups SET aim = ? WHERE id = ?", [group.aim, mine])
                job_id = self._job(mine, job)
                self._connection.change(
                    "INSERT INTO merged_jobs VALUES (?, ?, ?, ?)", (job_id, name, question, machine)
                )
                self._counts["jobs"] += 1
            for run in runs:
                self._run(run, job_id, machine)
        return mine

    def _differs(self, its: str, here: str, how: str, job_id: int) -> BadBundle:
        return BadBundle(
            f"its {its} is here already, as {here}, {how} ({self._bundle.name})",
            f"mpsq delete --results {job_id} removes the one that is here",
        )

    def _ran_here(self, group: BundleGroup, job: BundleJob) -> bool:
        """Return whether the bundle's job is a job of this queue itself."""
        sql = (
            "SELECT 1 FROM jobs j JOIN groups g ON g.id = j.group_id WHERE j.id = ? AND j.created_at = ?"
            " AND g.id = ? AND g.created_at = ? AND j.id NOT IN (SELECT job_id FROM merged_jobs)"
        )
        return self._connection.row(sql, (job.id, job.created_at, group.id, group.created_at)) is not None

    def _job(self, group: int, job: BundleJob) -> int:
        """Add a job that this queue can never run: to its verbs it is an imported one."""
        spec = JobSpec.from_json(job.spec_json)
        merged = {"kind": spec.kind, "machine": self._machines[job.group_id]}
        terms = Terms(note=job.note, tags=tuple(self._bundle.content.tags(job.id)))
        return jobs.add_job(self._connection, group, NewJob(spec.changed(kind="import", merged=merged), terms=terms))

    def _run(self, run: BundleRun, job_id: int, machine: str) -> None:
        origin, content_hash = RunId(run.job_id, run.number), identity.of_content(self._bundle.content, run)
        known = self._connection.row(
            "SELECT r.id, m.content_hash FROM runs r LEFT JOIN merged_runs m ON m.run_id = r.id"
            " WHERE r.job_id = ? AND r.number = ?",
            (job_id, run.number),
        )
        if known is not None:
            run_id, known_hash = known
            if known_hash not in (content_hash, UNKNOWN):
                raise self._differs(f"run {origin}", f"{job_id}.{run.number}", "with other content", job_id)
            self._here[run.id] = run_id
            self._counts["known"] += 1
            return
        run_id = jobs.add_run(
            self._connection,
            job_id,
            position=run.position,
            state=State.DONE,
            machine_hash=self._fingerprint(run.machine_hash or machine),
            software_hash=self._fingerprint(run.software_hash),
            resumed_from=None if run.resumed_from is None else self._here.get(run.resumed_from),
            **{name: getattr(run, name) for name in identity.KEPT},
        )
        self._here[run.id] = run_id
        self._new.add(run_id)
        jobs.record(
            self._connection,
            job_id=job_id,
            run_id=run_id,
            actor="user",
            verb=Verb.IMPORT,
            target=State.DONE,
            reason=f"merged from bundle {self._bundle.head.hash[:12]}, where it is run {origin}",
        )
        values_ = (run_id, self._now, self._bundle.head.hash, content_hash)
        self._connection.change("INSERT INTO merged_runs VALUES (?, ?, ?, ?)", values_)
        copied = {table: _copy(self._content, self._connection, table, run.id, run_id) for table in _MEASURED}
        self._counts["iterations"] += copied["iterations"]
        self._counts["runs"] += 1

    def _fingerprint(self, hash: str | None) -> str | None:
        if hash is None:
            return None
        ((kind, data),) = self._read("fingerprints", ("kind", "data_json"), "hash = ?", hash)
        return results.save_fingerprint(self._connection, kind, json.loads(data))

    def _machine(self, digest: str) -> str:
        ((text,),) = self._read("fingerprints", ("data_json",), "hash = ?", digest)
        facts = read_machine(text)
        memory = f", {facts.memory_gib} GiB" if facts.memory_gib is not None else ""
        return f"{facts.cpu or facts.model or '?'}{memory} (machine {digest[:7]})"


def _copy(source: sqlite3.Connection, target: Connection, table: str, old: int, new: int) -> int:
    """Copy the rows of a run, whose first column is its ID; return how many."""
    rows = tuples(source, f"SELECT * FROM {table} WHERE run_id = ?", [old])
    names, marks = ", ".join(f'"{column[0]}"' for column in rows.description), ", ".join("?" * len(rows.description))
    n = 0
    while batch := rows.fetchmany(_BATCH):
        target.change_all(f"INSERT INTO {table} ({names}) VALUES ({marks})", [(new, *row[1:]) for row in batch])
        n += len(batch)
    return n
