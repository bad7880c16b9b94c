"""The content of a bundle in a separate database, with the ids of the machine that ran it.

Both sides make one, and compute in it from the points alone the claims of a bundle: summaries, taints, the report.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from queue_runner import reports
from queue_runner.bundles import fingerprint_facts, question
from queue_runner.bundles.parts import BadBundle, Part
from queue_runner.errors import MpsqError
from queue_runner.host.warden_records import RunEnd
from queue_runner.ingest import summarize_run
from queue_runner.model import Ending, Outcome, RunId, State, parse_selector
from queue_runner.monitor.answers.run_query import Options
from queue_runner.spec import JobSpec
from queue_runner.store import read, results
from queue_runner.store.engine import open_engine, writing
from queue_runner.store.jobs import Claimed
from queue_runner.tables import finite
from queue_runner.worker.finish import summarize_safely

_BATCH = 1000
WRONG = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError, RecursionError)
"""The errors of computing with nonsense."""


class Scratch:
    """The content of one bundle in a database that nothing else uses."""

    def __init__(self, db: Path, connection: sqlite3.Connection) -> None:
        self.db = db
        self.connection = connection
        self._waiting: list[list[Any]] = []
        self._part: Part | None = None

    def add(self, part: Part, row: list[Any]) -> None:
        """Add a row, as JSON has it. Raises: BadLine, BadBundle for one that contradicts another."""
        checked = part.check(row)
        if part is not self._part or len(self._waiting) >= _BATCH:
            self.flush()
            self._part = part
        self._waiting.append(_stored(part, checked))

    def flush(self) -> None:
        """Write the rows that wait. Raises: BadBundle."""
        if self._part is None or not self._waiting:
            return
        columns = _names(self._part)
        marks = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {self._part.name} ({', '.join(columns)}) VALUES ({marks})"
        tags = [(row[0], tag) for row in self._waiting for tag in row.pop()] if self._part.name == "jobs" else []
        try:
            self.connection.executemany(sql, self._waiting)
            self.connection.executemany("INSERT INTO job_tags VALUES (?, ?)", tags)
        except (sqlite3.IntegrityError, OverflowError) as error:
            raise BadBundle(f"its {self._part.name} contradict one another ({error})") from error
        self._waiting = []

    def rows(self, part: Part, run_id: int | None = None) -> Iterator[list[Any]]:
        """Yield the rows of a part as JSON has them, in their order; of one run only with `run_id`."""
        columns = [column for column in part.columns if column.name != "tags"]
        where = "" if run_id is None else f" WHERE run_id = {run_id}"
        sql = f"SELECT {', '.join(column.name for column in columns)} FROM {part.name}{where} ORDER BY {part.order}"
        for row in read.tuples(self.connection, sql):
            values = [
                _parsed(column.name, value) if column.as_json and value is not None else finite(value)
                for column, value in zip(columns, row, strict=True)
            ]
            yield [*values, self.tags(row[0])] if part.name == "jobs" else values

    def tags(self, job: int) -> list[str]:
        """Return the tags of a job, sorted."""
        sql = "SELECT tag FROM job_tags WHERE job_id = ? ORDER BY tag"
        return [tag for (tag,) in read.tuples(self.connection, sql, [job])]

    def judge(self) -> None:
        """Compute the summary and the taints of every run from its points; what the bundle's own taints add stays.

        Raises: BadBundle where the content makes no sense.
        """
        self.flush()
        claimed = read.tuples(self.connection, "SELECT run_id, kind, severity, detail FROM taints").fetchall()
        self.connection.execute("DELETE FROM taints")
        self.connection.execute("DELETE FROM summaries")
        sql = (
            "SELECT r.id, r.job_id, r.number, r.outcome, r.exit_code, r.signal, r.reason, j.spec_json,"
            " e.real_s, e.slept_s, e.paused_s"
            " FROM runs r JOIN jobs j ON j.id = r.job_id LEFT JOIN exits e ON e.run_id = r.id"
            " WHERE r.machine_hash IS NOT NULL ORDER BY r.id"
        )
        ran = read.tuples(self.connection, sql).fetchall()
        self.connection.commit()
        engine = open_engine(self.db, check=False)
        try:
            with writing(engine) as connection:
                for run_id, job, number, outcome, code, signal, reason, spec, real_s, slept_s, paused_s in ran:
                    run = Claimed(run_id, RunId(job, number), JobSpec.from_json(spec), "", "")
                    ending = Ending(Outcome(outcome), code, signal, reason or "")
                    exit_ = RunEnd(real_s=real_s, slept_s=slept_s, paused_s=paused_s)
                    assessment = summarize_safely(connection, run, None, ending, exit_)
                    summarize_run.save(connection, run_id, assessment)
                for run_id, *taint in claimed:
                    results.save_taints(connection, run_id, [(taint[0], taint[1], taint[2])])
        except WRONG as error:
            raise BadBundle(f"its points make no sense ({type(error).__name__}: {error})") from error
        finally:
            engine.dispose()

    def report(self) -> dict[str, Any]:
        """Return the rows of the default report over all runs, as JSON has them. Raises: BadBundle."""
        try:
            groups = read.tuples(self.connection, "SELECT DISTINCT group_id FROM v_run ORDER BY group_id")
            selectors = [parse_selector(f"g{group}") for (group,) in groups]
            result = reports.run(reports.DEFAULT, self.connection, Options(selectors=selectors))
        except WRONG as error:
            raise BadBundle(f"no report can be made of it ({type(error).__name__}: {error})") from error
        keys = [column.key for column in result.columns]
        rows = [{key: finite(row.get(key)) for key in keys} for row in result.rows]
        return dict(json.loads(json.dumps({"report": reports.DEFAULT, "rows": rows})))

    def check(self) -> None:
        """Check what single rows cannot show. Raises: BadBundle."""
        self.flush()
        for digest, kind, data in read.tuples(self.connection, "SELECT hash, kind, data_json FROM fingerprints"):
            if results.fingerprint_hash(kind, json.loads(data)) != digest:
                raise BadBundle(f"the fingerprint {digest[:7]} is not what its hash says")
        for sql, problem in _MUST_BE_NONE:
            if row := read.tuples(self.connection, sql).fetchone():
                raise BadBundle(problem.format(*row))
        for table, _, parent, _ in read.tuples(self.connection, "PRAGMA foreign_key_check"):
            raise BadBundle(f"a row of {table} belongs to none of {parent}")


_MUST_BE_NONE = (
    (
        "SELECT r.id FROM runs r LEFT JOIN runs o ON o.id = r.resumed_from AND o.id < r.id"
        " AND o.job_id = r.job_id WHERE r.resumed_from IS NOT NULL AND o.id IS NULL",
        "run {} resumes from none of its job",
    ),
    (
        "SELECT g.id FROM groups g WHERE NOT EXISTS (SELECT 1 FROM runs r JOIN jobs j ON j.id = r.job_id"
        " WHERE j.group_id = g.id AND r.machine_hash IS NOT NULL)",
        "of the submission g{} nothing ran on a machine",
    ),
    (
        "SELECT f.hash FROM runs r JOIN fingerprints f ON f.hash = r.machine_hash WHERE f.kind <> 'machine' UNION"
        " SELECT f.hash FROM runs r JOIN fingerprints f ON f.hash = r.software_hash WHERE f.kind <> 'software'",
        "the fingerprint {} has another kind",
    ),
    (
        "SELECT run_id FROM hellos WHERE run_id IN (SELECT id FROM runs WHERE machine_hash IS NULL)",
        "run {} has results and no machine",
    ),
)


def _names(part: Part) -> list[str]:
    """Return the columns of a part in its table, as `_stored` fills them."""
    if part.name == "jobs":
        return [*(name for name in part.names if name != "tags"), *_FROM_SPEC, "spec_hash"]
    more = {"runs": ["state"], "ingests": ["tail_hash"]}
    return [*part.names, *more.get(part.name, [])]


def _parsed(name: str, text: str) -> Any:
    value = json.loads(text)
    return {field: value[field] for field in question.FIELDS} if name == "spec_json" else value


_FROM_SPEC = ("name", "kind", "workload", "framework", "device", "compile", "dtype", "config")


def _stored(part: Part, values: list[Any]) -> list[Any]:
    """Return the values as the table has them; of jobs the tags come last."""
    stored = [
        json.dumps(value, sort_keys=True) if column.as_json and value is not None else value
        for column, value in zip(part.columns, values, strict=True)
    ]
    if part.name == "jobs":
        fields = values[part.names.index("spec_json")]
        question.check(fields)
        spec = JobSpec.from_json(json.dumps({name: fields[name] for name in question.FIELDS if name in fields}))
        stored[part.names.index("spec_json")] = spec.to_json()
        *stored, tags = stored
        return [*stored, *(getattr(spec, name) for name in _FROM_SPEC), spec.content_hash(), tags]
    if part.name == "fingerprints":
        _, kind, data = values
        fingerprint_facts.check(kind, data)
    return [*stored, *([str(State.DONE)] if part.name == "runs" else [""] if part.name == "ingests" else [])]


@contextmanager
def scratch(source: sqlite3.Connection) -> Iterator[Scratch]:
    """Yield an empty database with the schema of `source`, a queue's; it is removed afterwards."""
    sql = (
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
        " ORDER BY type = 'trigger', type = 'view', type = 'index'"
    )
    with tempfile.TemporaryDirectory(prefix="mpsq-bundle-") as folder:
        db = Path(folder) / "bundle.db"
        with closing(sqlite3.connect(db)) as connection:
            connection.row_factory = read.as_dict
            connection.execute("PRAGMA synchronous=OFF")
            for (statement,) in read.tuples(source, sql).fetchall():
                connection.execute(statement)
            try:
                yield Scratch(db, connection)
            except sqlite3.OperationalError as error:
                if "full" not in str(error):
                    raise
                raise MpsqError(f"no room for the content of a bundle in {folder}", "free some space") from error
