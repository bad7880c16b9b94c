"""Merging: the runs of a bundle become runs of this queue, under the machine that they ran on.

Everything is checked before anything is written, and all bundles of a call are stored or none.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from queue_runner.analysis.validity import disturbance
from queue_runner.bundles import file, identity
from queue_runner.bundles.parts import OF_RUN, BadBundle
from queue_runner.bundles.scratch import Scratch, scratch
from queue_runner.model import Outcome, RunId, State, Verb
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import jobs, migrate, results
from queue_runner.store.engine import Connection, open_engine, writing
from queue_runner.store.read import reading

Row = Mapping[str, Any]

SAME_WITHIN = 1e-9
"""Relative difference of two numbers of a report that is rounding: logarithms differ between C libraries."""
_BATCH = 1000
_MEASURED = (*(part.name for part in OF_RUN), "summaries")


@dataclass(frozen=True)
class Merged:
    """What came of one bundle. `report` is how the report inside compares with the one made here: equal, or why it
    could not be compared."""

    file: str
    bundle: str
    groups: list[str]
    jobs: int
    runs: int
    known: int
    own: int
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
        found = [_read(name, data, content) for (name, data), content in zip(bundles, contents, strict=True)]
        engine = open_engine(layout.db, check=False)
        with writing(engine) as connection:
            return [_Store(connection, one).all() for one in found]


def _read(name: str, data: bytes, content: Scratch) -> _Read:
    try:
        head = file.unpack(data, content)
        content.judge()
        return _Read(name, head, content, _compared(head, content.report()))
    except BadBundle as error:
        raise BadBundle(f"{error.message.partition(': ')[2]} ({name})", error.hint) from error


def _compared(head: file.Head, made: Mapping[str, Any]) -> str:
    """Compare the report inside with the one made here of the points alone. Raises: BadBundle where they differ."""
    if not head.comparable:
        return f"not compared: mpsq {head.mpsq} computes otherwise; the numbers here are computed by this one"
    where = _difference(made, head.report)
    if where is not None:
        raise BadBundle(f"its report is not that of its points (at {where})")
    return "equal to the one inside"


def _difference(made: Any, told: Any, place: str = "report") -> str | None:
    """Return where two JSON values differ by more than rounding; None if nowhere."""
    if type(made) is dict and type(told) is dict and made.keys() == told.keys():
        return next((at for key in made if (at := _difference(made[key], told[key], f"{place}.{key}"))), None)
    if type(made) is list and type(told) is list and len(made) == len(told):
        pairs = enumerate(zip(made, told, strict=True))
        return next((at for i, pair in pairs if (at := _difference(*pair, f"{place}[{i}]"))), None)
    if type(made) is float and type(told) is float:
        return None if math.isclose(made, told, rel_tol=SAME_WITHIN, abs_tol=1e-300) else place
    return None if type(made) is type(told) and made == told else place


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
        self._counts = dict.fromkeys(("jobs", "runs", "known", "own", "iterations"), 0)

    def all(self) -> Merged:
        """Store what is not here yet. Raises: BadBundle for what differs from what is here, or would change it."""
        for group in self._read("SELECT * FROM groups ORDER BY id"):
            if (mine := self._group(group)) is not None:
                self._groups.append(f"g{mine}")
        said = [_machine(self._content, hash) for hash in sorted({*self._machines.values()})]
        one = self._bundle
        return Merged(one.name, one.head.hash, self._groups, machines=said, report=one.report, **self._counts)

    def _read(self, sql: str, *values: Any) -> list[Row]:
        return self._content.execute(sql, values).fetchall()

    def _group(self, group: Row) -> int | None:
        mine: int | None = None
        for job in self._read("SELECT * FROM jobs WHERE group_id = ? ORDER BY id", group["id"]):
            runs = self._read("SELECT * FROM runs WHERE job_id = ? ORDER BY id", job["id"])
            if _is_own(self._connection, group, job):
                self._counts["own"] += len(runs)
                continue
            name, machine = identity.of_job(group, job), self._machines[group["id"]]
            asked = identity.of_question(JobSpec.from_json(job["spec_json"]))
            known = self._connection.row(
                "SELECT m.job_id, j.group_id, m.question_hash, m.machine_hash FROM merged_jobs m"
                " JOIN jobs j ON j.id = m.job_id WHERE m.identity = ?",
                (name,),
            )
            if known is not None:
                job_id, mine, question_hash, machine_hash = known
                if question_hash != asked:
                    raise self._differs(f"job {job['id']}", f"{job_id}", "with another question", job_id)
                if machine_hash != machine:
                    raise self._differs(f"job {job['id']}", f"{job_id}", "of another machine", job_id)
            else:
                if mine is None:
                    mine = jobs.add_group(self._connection, group["title"], group["seed"])
                job_id = self._job(mine, job)
                self._connection.change("INSERT INTO merged_jobs VALUES (?, ?, ?, ?)", (job_id, name, asked, machine))
                self._counts["jobs"] += 1
            for run in runs:
                self._run(run, job_id, machine)
        return mine

    def _differs(self, its: str, here: str, how: str, job_id: int) -> BadBundle:
        return BadBundle(
            f"its {its} is here already, as {here}, {how} ({self._bundle.name})",
            f"mpsq delete --results {job_id} removes the one that is here",
        )

    def _job(self, group: int, job: Row) -> int:
        """Add a job that this queue can never run: to its verbs it is an imported one."""
        spec = JobSpec.from_json(job["spec_json"])
        tags = tuple(row["tag"] for row in self._read("SELECT tag FROM job_tags WHERE job_id = ?", job["id"]))
        asked = spec.changed(kind="import", merged={"kind": spec.kind, "machine": self._machines[job["group_id"]]})
        return jobs.add_job(self._connection, group, NewJob(asked, terms=Terms(note=job["note"], tags=tags)))

    def _run(self, run: Row, job_id: int, machine: str) -> None:
        there, content_hash = RunId(run["job_id"], run["number"]), identity.of_content(self._bundle.content, run)
        known = self._connection.row(
            "SELECT r.id, m.content_hash FROM runs r LEFT JOIN merged_runs m ON m.run_id = r.id"
            " WHERE r.job_id = ? AND r.number = ?",
            (job_id, run["number"]),
        )
        if known is not None:
            run_id, known_hash = known
            if known_hash != content_hash:
                raise self._differs(f"run {there}", f"{job_id}.{run['number']}", "with other content", job_id)
            self._here[run["id"]] = run_id
            self._counts["known"] += 1
            return
        if run["replaces"]:
            self._check_replaced(there, job_id, run["replaces"])
        values = {name: run[name] for name in identity.KEPT}
        values |= {
            "machine_hash": self._fingerprint(run["machine_hash"] or machine),
            "software_hash": self._fingerprint(run["software_hash"]),
            "resumed_from": self._here.get(run["resumed_from"]),
        }
        run_id = jobs.add_run(self._connection, job_id, position=run["position"], state=State.DONE, **values)
        self._here[run["id"]] = run_id
        self._new.add(run_id)
        jobs.record(
            self._connection,
            job_id=job_id,
            run_id=run_id,
            actor="user",
            verb=Verb.IMPORT,
            target=State.DONE,
            reason=f"merged from bundle {self._bundle.head.hash[:12]}, where it is run {there}",
        )
        values_ = (run_id, self._now, self._bundle.head.hash, content_hash)
        self._connection.change("INSERT INTO merged_runs VALUES (?, ?, ?, ?)", values_)
        copied = {table: _copy(self._content, self._connection, table, run["id"], run_id) for table in _MEASURED}
        self._counts["iterations"] += copied["iterations"]
        self._counts["runs"] += 1

    def _check_replaced(self, run: RunId, job_id: int, repeat: int) -> None:
        """Check that a new run replaces none that another bundle brought, unless the machine disturbed that one:
        --until-valid replaces no other. Raises: BadBundle."""
        rows = self._connection.records(
            "SELECT r.id, r.number, r.outcome, r.reason,"
            " (SELECT group_concat(kind) FROM taints WHERE run_id = r.id) AS taints"
            " FROM runs r WHERE r.job_id = ? AND r.repeat = ? ORDER BY r.attempt, r.id",
            (job_id, repeat),
        )
        for row in rows:
            counts = row is rows[-1] or row["outcome"] == Outcome.SUCCEEDED
            if row["id"] not in self._new and counts and not disturbance(row["outcome"], row["reason"], row["taints"]):
                raise BadBundle(
                    f"its run {run} would replace {job_id}.{row['number']}, which another bundle brought and nothing"
                    f" disturbed ({self._bundle.name})",
                    f"mpsq delete --results {job_id} removes the one that is here",
                )

    def _fingerprint(self, hash: str | None) -> str | None:
        if hash is None:
            return None
        (row,) = self._read("SELECT kind, data_json FROM fingerprints WHERE hash = ?", hash)
        return results.save_fingerprint(self._connection, row["kind"], json.loads(row["data_json"]))


def _copy(source: sqlite3.Connection, target: Connection, table: str, old: int, new: int) -> int:
    """Copy the rows of a run; return how many."""
    rows = source.execute(f"SELECT * FROM {table} WHERE run_id = ?", [old])
    n = 0
    while some := rows.fetchmany(_BATCH):
        names = ", ".join(f'"{name}"' for name in some[0])
        marks = ", ".join("?" * len(some[0]))
        values = [tuple({**row, "run_id": new}.values()) for row in some]
        target.change_all(f"INSERT INTO {table} ({names}) VALUES ({marks})", values)
        n += len(some)
    return n


def _is_own(connection: Connection, group: Row, job: Row) -> bool:
    """Return whether the bundle's job is one of this queue itself."""
    row = connection.row(
        "SELECT 1 FROM jobs j JOIN groups g ON g.id = j.group_id WHERE j.id = ? AND j.created_at = ?"
        " AND g.id = ? AND g.created_at = ? AND j.id NOT IN (SELECT job_id FROM merged_jobs)",
        (job["id"], job["created_at"], group["id"], group["created_at"]),
    )
    return row is not None


def _machine(content: sqlite3.Connection, hash: str) -> str:
    row = content.execute("SELECT data_json FROM fingerprints WHERE hash = ?", [hash]).fetchone()
    data = json.loads(row["data_json"])
    parts = [str(data.get("cpu") or data.get("model") or "?")]
    parts += [f"{data['memory_gib']} GiB"] if isinstance(data.get("memory_gib"), int) else []
    return f"{', '.join(parts)} (machine {hash[:7]})"
