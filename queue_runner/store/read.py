"""Read-only access, with the standard library only so that a reading command starts fast.

Connections are `mode=ro`: a reader can neither change, checkpoint nor migrate anything.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from queue_runner.errors import DamageError, MpsqError, SchemaError, UsageError
from queue_runner.lanes import ELSEWHERE, is_remote, parts
from queue_runner.model import DEFAULT_LANE, IDS, PREFLIGHT, Outcome, Selector, State
from queue_runner.paths import Layout
from queue_runner.units import counted, rough

Row = dict[str, Any]

DAMAGE = ("malformed", "not a database")
"""SQLite's messages for a damaged file."""
_REFUSED = ("disk I/O error", "unable to open")
"""SQLite's messages where it cannot make the small files beside a database; a full disk is one cause."""
_FULL_BELOW_BYTES = 1 << 20
_RUN = re.compile(r"\d+\.\d+(-\d+)?")
_BACKUP = re.compile(r"(mpsq|replaced)-.*\.db")

HEAD = "0022"
"""The schema revision that this code reads and writes: the newest migration. Here so that readers start fast."""


def no_queue(db: Path) -> MpsqError:
    """Return the error for a missing database: there is no queue yet, or it was lost."""
    return lost(db) or MpsqError("there is no queue here yet", "submit a job first: mpsq submit nanogpt --config tiny")


def lost(db: Path) -> DamageError | None:
    """Return the error for a missing or empty database whose queue has left runs or backups: a new queue would begin
    at job 1 and take their names. None where nothing was lost, and for any other file."""
    place = Layout(db.parent)
    if db != place.db:
        return None
    runs = [*_named(_RUN, place.runs), *_named(_RUN, place.set_aside)]
    backups = _named(_BACKUP, place.backups)
    counts = [counted(len(names), what) for names, what in ((runs, "run"), (backups, "backup")) if names]
    if not counts:
        return None
    newest = next((name for name in reversed(backups) if name.startswith("mpsq-")), None)
    hint = "mpsq db restore --new starts a new queue and moves the old runs aside"
    if newest:
        hint = f"mpsq db restore restores the newest backup, {newest}; {hint}"
    state = "empty" if db.exists() else "missing"
    return DamageError(f"the database {db} is {state}, but its folder still has {' and '.join(counts)}", hint)


def is_there(db: Path) -> bool:
    """Return whether there is a queue. Raises: DamageError where it was lost."""
    if schema_revision(db) is not None:
        return True
    if error := lost(db):
        raise error
    return False


def _named(pattern: re.Pattern[str], folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if pattern.fullmatch(path.name))
    except OSError:
        return []


def as_dict(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> Row:
    """Make a row a mapping by column: a row_factory."""
    return {column[0]: value for column, value in zip(cursor.description, values, strict=True)}


@contextmanager
def reading(db: Path, *, any_schema: bool = False, patience_s: float = 30.0) -> Iterator[sqlite3.Connection]:
    """Open a read-only connection whose rows are dicts. A database that is locked is waited for `patience_s` seconds.

    Raises: MpsqError when the file is absent, damaged or unreadable; SchemaError when its schema is not the one that
    this code reads, unless `any_schema`.
    """
    if not db.exists():
        raise no_queue(db)
    with ExitStack() as copies:
        try:
            address = _archived(db, copies) or f"file:{quote(bytes(db))}?mode=ro"
            connection = sqlite3.connect(address, uri=True, timeout=patience_s, isolation_level=None)
        except (sqlite3.Error, OSError) as error:
            raise MpsqError(f"the database cannot be opened: {error}", "mpsq db path shows where it is") from error
        connection.row_factory = as_dict
        yield from _used(connection, db, any_schema)


def _archived(db: Path, copies: ExitStack) -> str | None:
    """Return the address of a database that nobody uses in a folder where SQLite cannot make its small files, such as a
    read-only disk; None for any other. One that still has a log is copied. Raises: OSError."""
    log = Path(f"{db}-wal")
    if os.access(db.parent, os.W_OK) or Path(f"{db}-shm").exists():
        return None
    if not log.exists() or not log.stat().st_size:
        return f"file:{quote(bytes(db))}?mode=ro&immutable=1"
    import tempfile  # takes milliseconds

    folder = Path(copies.enter_context(tempfile.TemporaryDirectory(prefix="mpsq-")))
    for path in (db, log):
        shutil.copy(path, folder)
    (folder / "runs").symlink_to(db.parent / "runs")  # where a reader looks for the ends that are not stored
    return f"file:{quote(bytes(folder / db.name))}?mode=ro"


def _used(connection: sqlite3.Connection, db: Path, any_schema: bool) -> Iterator[sqlite3.Connection]:
    """Yield the connection, then close it. Raises: MpsqError for the errors of SQLite."""
    try:
        if not any_schema:
            check_schema(connection, db)
        yield connection
    except sqlite3.DatabaseError as error:
        if any(sign in str(error) for sign in _REFUSED) and shutil.disk_usage(db.parent).free < _FULL_BELOW_BYTES:
            raise MpsqError("the disk is full: the database cannot be read", "free some space: mpsq gc") from error
        if "database is locked" in str(error):
            message = "another program has locked the database: it cannot be read"
            raise MpsqError(message, "close the program that has mpsq.db open") from error
        kind = DamageError if any(sign in str(error) for sign in DAMAGE) else MpsqError
        raise kind(f"the database cannot be read: {error}", "mpsq db check shows the damage") from error
    finally:
        connection.close()


def check_schema(connection: sqlite3.Connection, db: Path) -> None:
    """Check the schema. Raises: SchemaError when it is not the one this code reads, MpsqError when there is none."""
    refuse_other(_revision(connection), db)


def tuples(connection: sqlite3.Connection, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
    """Return the rows of a query as tuples."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor.execute(sql, values)


def value(connection: sqlite3.Connection, sql: str, *values: Any) -> Any:
    """Return the only column of the first row of a query; None without one."""
    (result,) = tuples(connection, sql, values).fetchone() or (None,)
    return result


LAST_EVALUATIONS = """
SELECT run_id, step, max(value) FILTER (WHERE split = 'train' AND i = step),
    max(value) FILTER (WHERE split = 'val' AND i = step)
FROM (SELECT run_id, split, value, i, max(offset), max(i) OVER (PARTITION BY run_id) AS step FROM evals
    WHERE metric = 'loss' AND split IN ('train', 'val') AND run_id IN ({runs}) GROUP BY run_id, split)
GROUP BY run_id
"""
"""The step of the last evaluation of each of `{runs}`, and its losses of both splits, NULL if it has none. SQLite takes
the other columns from the row of max(offset)."""


LAST_METRICS = """
SELECT run_id, name, value, max(offset) FROM metrics WHERE name NOT GLOB '*[./]*' AND run_id IN ({runs})
GROUP BY run_id, name ORDER BY name
"""
"""The last value of each metric of each of `{runs}`; a name with a dot or a slash is that of a cell."""


def schema_revision(db: Path) -> str | None:
    """Return the revision of the schema in `db`; None where there is no schema yet.

    Raises: MpsqError when the file is not an SQLite database.
    """
    if not db.exists() or db.stat().st_size == 0:
        return None
    with reading(db, any_schema=True) as connection:
        return _revision(connection)


def _revision(connection: sqlite3.Connection) -> str | None:
    names = {name for (name,) in tuples(connection, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "alembic_version" not in names:
        if names:
            raise MpsqError("this database was not made by mpsq", "move it away or set MPSQ_HOME to another folder")
        return None
    revision: str | None = value(connection, "SELECT version_num FROM alembic_version")
    return revision


def refuse_other(revision: str | None, db: Path) -> None:
    """Raise SchemaError for any revision but the one of this code, MpsqError where there is no schema yet."""
    if revision is None:
        raise no_queue(db)
    if revision != HEAD:
        word = "newer" if revision > HEAD else "older"
        message = f"the database is at schema {revision}, {word} than schema {HEAD} of this mpsq"
        raise SchemaError(message, remedy_of_schema(revision))


BEFORE_UPGRADE = "go back to the backup from before its upgrade: mpsq db restore"


def remedy_of_schema(revision: str | None) -> str:
    """Return what to do about a database of another revision: an upgrade of a newer one would be refused."""
    newer = revision is not None and revision > HEAD
    return f"use the mpsq that made it, or {BEFORE_UPGRADE}" if newer else "run mpsq db upgrade"


RERUN_JOBS = """
SELECT rerun_of FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND rerun_of IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.job_id = rerun_of AND r.state <> 'DONE')
"""
"""Of these jobs those that have ended and that others of them repeat: what waits for a name waits for the others."""


class Repetition(Struct, frozen=True):
    """The newest job that repeats another one, its submission, and whether each of its repeats has succeeded."""

    job: int
    group: int
    is_ok: bool


_REPEATED_BY = """
WITH RECURSIVE failed AS (SELECT id, job_id, ended_at FROM runs WHERE id IN (SELECT value FROM json_each(?))),
again(first, job) AS (
    SELECT rerun_of, id FROM jobs
    WHERE id > (SELECT min(job_id) FROM failed) AND rerun_of IN (SELECT job_id FROM failed)
    UNION SELECT again.first, j.id FROM again JOIN jobs j ON j.rerun_of = again.job AND j.id > again.job
) SELECT failed.id, j.id, j.group_id, NOT EXISTS (
    SELECT 1 FROM runs r WHERE r.job_id = j.id AND r.outcome IS NOT 'SUCCEEDED' AND NOT EXISTS (
        SELECT 1 FROM runs later WHERE later.job_id = j.id AND later.repeat = r.repeat AND later.attempt > r.attempt)
) FROM again CROSS JOIN jobs j ON j.id = again.job CROSS JOIN failed ON failed.job_id = again.first
WHERE j.deleted_at IS NULL AND j.created_at >= coalesce(failed.ended_at, 0) AND EXISTS (
    SELECT 1 FROM runs r WHERE r.job_id = j.id AND NOT (r.state = 'DONE' AND r.outcome IN ('CANCELLED', 'SKIPPED'))
) ORDER BY j.id
"""
"""CROSS JOIN keeps the order of the tables: else SQLite reads all jobs."""


def repeated_by(connection: sqlite3.Connection, failed: Iterable[int]) -> dict[int, Repetition]:
    """Return, by run_id, the newest job that repeats that of each of these runs, itself or through others, and was
    submitted after the run ended. A job that was cancelled repeats nothing."""
    rows = tuples(connection, _REPEATED_BY, [json.dumps([*failed])])
    return {run_id: Repetition(job, group, bool(is_ok)) for run_id, job, group, is_ok in rows}


def condition_of(selector: Selector) -> tuple[str, list[Any]]:
    """Return the condition of a selector, with its values: on v_run, or on runs joined with jobs."""
    condition, values = _condition_without_tags(selector)
    conditions = [condition, *["job_id IN (SELECT job_id FROM job_tags WHERE tag = ?)"] * len(selector.tags)]
    return " AND ".join(filter(None, conditions)), [*values, *selector.tags]


_NAMED = (
    "SELECT id FROM jobs WHERE name = ? AND (deleted_at IS NOT NULL)"
    " = NOT EXISTS (SELECT 1 FROM jobs WHERE name = ? AND deleted_at IS NULL)"
)
"""The jobs of a name: those that are not deleted, else the deleted ones."""


def _condition_without_tags(selector: Selector) -> tuple[str, list[Any]]:
    if selector.last:
        return "group_id = (SELECT max(id) FROM groups)", []
    if selector.name is not None:
        return f"job_id IN ({_NAMED})", [selector.name, selector.name]
    if selector.group is not None:
        return "group_id = ?", [selector.group]
    if selector.number is not None:
        return "job_id = ? AND number = ?", [selector.job, selector.number]
    return ("job_id = ?", [selector.job]) if selector.job is not None else ("", [])


JOB_EXISTS = "SELECT count(*) FROM jobs WHERE id = ?"


def names_nothing(selector: Selector, *, job_exists: bool = False) -> UsageError:
    """Return the error for a selector that names nothing which exists. `job_exists`: the job of the run does."""
    if selector.tags:
        return UsageError(f"there is no job that matches {selector.text}", "mpsq list --all --json shows the tags")
    if selector.last:
        return UsageError("@last does not exist: the queue is empty", "submit a job first")
    if selector.name is not None:
        return UsageError(f'no job is named "{selector.name}"', IDS)
    kind = "group" if selector.group is not None else "run" if selector.number is not None else "job"
    remedy = f"mpsq list --runs {selector.job} shows the runs of job {selector.job}"
    return UsageError(
        f"there is no {kind} {selector.text}".rstrip(), remedy if job_exists else "mpsq list --all shows every job"
    )


def where(selector: Selector, connection: sqlite3.Connection) -> tuple[str, list[Any]]:
    """Return a condition on v_run, with its values, for a selector.

    Raises: UsageError when the selector names nothing that exists.
    """
    condition, values = condition_of(selector)
    try:
        match = connection.execute(f"SELECT 1 FROM v_run WHERE {condition} LIMIT 1", values).fetchone()
    except OverflowError:
        match = None
    if not match:
        exists = selector.number is not None and value(connection, JOB_EXISTS, selector.job)
        raise names_nothing(selector, job_exists=bool(exists))
    return condition, values


def count_waiting(connection: sqlite3.Connection) -> int:
    """Return how many runs wait, held ones included."""
    return int(value(connection, "SELECT count(*) FROM runs WHERE state IN ('QUEUED', 'HELD')"))


def longest_timeout_s(connection: sqlite3.Connection, jobs: Sequence[int]) -> float | None:
    """Return the longest --timeout of these jobs; None if none has one."""
    sql = "SELECT max(json_extract(spec_json, '$.timeout_s')) FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
    longest: float | None = value(connection, sql, json.dumps(jobs))
    return longest


def count_preflights(connection: sqlite3.Connection) -> int:
    """Return how many of the runs that wait are preflights."""
    sql = "SELECT count(*) FROM runs WHERE state IN ('QUEUED', 'HELD') AND number = ?"
    return int(value(connection, sql, PREFLIGHT))


def waiting_specs(connection: sqlite3.Connection) -> list[str]:
    """Return the specifications, as JSON, of the jobs that have not ended."""
    jobs = "SELECT DISTINCT j.spec_json FROM jobs j JOIN runs r ON r.job_id = j.id WHERE r.state <> 'DONE'"
    return [spec for (spec,) in tuples(connection, jobs)]


class ScheduleRow(Struct, frozen=True):
    """A schedule. `title` is its command line. Times are in Unix seconds; `next_at` is None while it is paused."""

    id: int
    created_at: float
    name: str
    cron: str
    timezone: str
    title: str
    next_at: float | None
    last_at: float | None
    last_group_id: int | None
    last_error: str | None


def schedules(connection: sqlite3.Connection) -> list[ScheduleRow]:
    """Return every schedule; the next to submit first, paused ones last."""
    columns = ", ".join(ScheduleRow.__struct_fields__)
    rows = tuples(connection, f"SELECT {columns} FROM schedules ORDER BY next_at IS NULL, next_at, id")
    return [ScheduleRow(*row) for row in rows]


def schedule_name(connection: sqlite3.Connection, id: int | None) -> str | None:
    """Return the name of the schedule that submitted a job; None for a job submitted by a person."""
    if id is None:
        return None
    name: str | None = value(connection, "SELECT name FROM schedules WHERE id = ?", id)
    return name or f"number {id}, removed since"


class LaneRow(Struct, frozen=True):
    """The stored state of a lane, times in Unix seconds. One that was never blocked nor paused has no row, and reads as
    free."""

    name: str
    blocked_reason: str | None = None
    blocked_at: float | None = None
    paused_at: float | None = None
    paused_reason: str | None = None
    blocked_kind: str | None = None
    blocked_for: int | None = None
    next_try_at: float | None = None


def lanes_here(connection: sqlite3.Connection) -> list[LaneRow]:
    """Return this machine's lanes, without that of the machine as a whole."""
    rows = tuples(connection, "SELECT * FROM lanes WHERE name <> ? ORDER BY name", [DEFAULT_LANE])
    lanes = [LaneRow(*row) for row in rows]
    return [lane for lane in lanes if not is_remote(lane.name) and len(parts(lane.name)) == 1]


LANE = f"SELECT {', '.join(LaneRow.__struct_fields__)} FROM lanes WHERE name = ?"


def lane(connection: sqlite3.Connection, name: str) -> LaneRow:
    """Return the stored state of a lane."""
    return LaneRow(*(tuples(connection, LANE, [name]).fetchone() or (name,)))


class RemoteLane(Struct, frozen=True):
    """The runs that a group sends to one target. `done` of `runs` have ended; `running` is the run that its node works
    on, if any. `state` is its state in words. `silent`: its target does not answer, and is asked again at `next_try_at`
    (Unix seconds)."""

    lane: str
    runs: int
    done: int
    running: str | None
    state: str
    silent: int
    next_try_at: float | None

    @property
    def status(self) -> str:
        """Its state, with the time of the next try."""
        if self.next_try_at is None:
            return self.state
        left_s = self.next_try_at - time.time()
        return f"{self.state}; the next try is " + (f"in {rough(left_s)}" if left_s > 1 else "now")


_REMOTE_LANES = """
SELECT r.lane, count(*), sum(r.state = 'DONE'),
    max(CASE WHEN r.state = 'RUNNING' THEN r.job_id || '.' || r.number END),
    coalesce(l.blocked_reason, 'to be sent as a block'), l.blocked_kind IS 'silent', l.next_try_at
FROM runs r LEFT JOIN lanes l ON l.name = r.lane
WHERE r.lane IN (SELECT value FROM json_each(?))
GROUP BY r.lane ORDER BY min(r.id)
"""


def remote_lanes(connection: sqlite3.Connection) -> dict[str, RemoteLane]:
    """Return the lanes of other machines with runs that are not DONE by name, in the order of their submission."""
    sql = f"SELECT DISTINCT lane FROM runs WHERE {ELSEWHERE}"
    if not (names := [name for (name,) in tuples(connection, sql)]):
        return {}
    return {row[0]: RemoteLane(*row) for row in tuples(connection, _REMOTE_LANES, [json.dumps(names)])}


PROBES = (
    "SELECT j.id AS job_id, j.spec_json, r.state, r.outcome, r.exit_code, r.signal, r.reason, e.max_rss_bytes,"
    " r.machine_hash, COALESCE(h.device, j.device) AS device,"
    " json_extract(h.hello_json, '$.recommended_memory_bytes') AS recommended_bytes,"
    " (SELECT MAX(size) FROM (SELECT MAX(reserved_bytes) AS size FROM iterations WHERE run_id = r.id"
    " UNION ALL SELECT MAX(CAST(value AS INTEGER)) FROM metrics WHERE run_id = r.id AND name = 'peak_reserved_bytes'"
    " AND value BETWEEN 0 AND 9007199254740992)) AS reserved_bytes,"
    " EXISTS (SELECT 1 FROM taints WHERE run_id = r.id AND kind = 'swapping') AS swapped"
    " FROM jobs j"
    " JOIN runs r ON r.id = (SELECT id FROM runs WHERE job_id = j.id ORDER BY attempt DESC, id DESC LIMIT 1)"
    " LEFT JOIN hellos h ON h.run_id = r.id LEFT JOIN exits e ON e.run_id = r.id"
    " WHERE j.group_id = (SELECT group_id FROM jobs WHERE id = :job)"
    " AND COALESCE(json_extract(j.spec_json, '$.find_max'), '') = :find_max ORDER BY j.id"
)
"""The last attempt of every probe of a search (--find-max), including others of its group with the same request."""


class ProbeRow(Struct, frozen=True):
    """A row of PROBES. `outcome` is set when `state` is DONE; a size that was not recorded is None."""

    job_id: int
    spec_json: str
    state: State
    outcome: Outcome | None
    exit_code: int | None
    signal: int | None
    reason: str | None
    max_rss_bytes: int | None
    machine_hash: str | None
    device: str | None
    recommended_bytes: int | None
    reserved_bytes: int | None
    swapped: bool
