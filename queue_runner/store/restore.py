"""Replacement of the database, damaged or not, by a backup. The old database is kept beside the backups.

A whole database is under its name at every moment: the new one is prepared beside it and renamed into place. The old
one's log is removed first, since SQLite would read it into the new file. Nobody writes meanwhile: a concurrent
submission is stored in the restored database.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct

from queue_runner.atomic_file import replacing
from queue_runner.errors import AlreadyRunning, DamageError, MpsqError, SchemaError
from queue_runner.host import failpoints, lane_locks, locks
from queue_runner.host.run_dir import RunDir
from queue_runner.model import DEFAULT_LANE
from queue_runner.paths import Layout
from queue_runner.store import backup, migrate
from queue_runner.store.engine import explain, lock_alone, write_back
from queue_runner.store.read import HEAD, reading, schema_revision, tuples

_RUN = re.compile(r"(\d{1,18})\.\d{1,9}")
_WHY = "the database was restored: check the queued jobs, then run mpsq resume"


class Restored(Struct, frozen=True):
    """The result of a restore. `source` is the backup, None for an empty database; `old` the path of the replaced one
    and `set_aside` the folder with the runs unknown to the restored one, None where there were none. `paused`: there
    are runs in it that have not ended."""

    source: Path | None
    old: Path | None
    set_aside: Path | None
    paused: bool


def restore(layout: Layout, source: Path | None = None) -> Restored:
    """Replace the database by `source`, when None the newest backup that this mpsq can read. The lane is paused if
    anything waits in it: runs completed since the backup would otherwise run again.

    Raises: MpsqError (no or a damaged backup, a run is active, disk), AlreadyRunning (a worker), SchemaError (newer).
    """
    stored = backup.stored(layout.backups)
    source = source or next(reversed([path for path in stored if not _is_newer(path)] or stored), None)
    if source is None:
        raise MpsqError(f"there is no backup in {layout.backups}", "give a file: mpsq db restore FILE")
    _refuse_unfit(source)
    return _replace(layout, source)


def begin_anew(layout: Layout) -> Restored:
    """Replace the database, lost or damaged, by an empty one. Its ids continue above those of the old queue's runs and
    backups, and the folders of the old runs are moved aside.

    Raises: MpsqError (the database is sound, a run is active, disk), AlreadyRunning (a worker).
    """
    try:
        sound = schema_revision(layout.db) is not None and not backup.problems(layout.db)
    except DamageError:
        sound = False
    if sound:
        raise MpsqError(
            "the queue is healthy",
            f"mpsq db restore --new replaces a lost queue; to start anew, move {layout.db} away first",
        )
    return _replace(layout, None)


def _replace(layout: Layout, source: Path | None) -> Restored:
    worker = locks.try_worker(layout.home)
    if worker is None:
        raise AlreadyRunning("a worker runs this queue", "stop it first: mpsq service stop, or Ctrl-C in its terminal")
    with worker, lock_alone(layout.db):
        _refuse_active(layout)
        try:
            with replacing(layout.db, durable=True) as partial:
                if source is None:
                    _create_above(partial, _highest_job(layout))
                else:
                    with reading(source, any_schema=True) as connection:
                        backup.copy_to(connection, partial)
                paused, known = _prepare(partial)
                old = _keep_old(layout)
                failpoints.reach("restore.before_rename")
        except OSError as error:
            raise MpsqError(
                f"the database could not be restored: {error.strerror or error}", "free some space"
            ) from error
        aside = _set_aside(layout, known)
    return Restored(source, old, aside, paused)


def _create_above(db: Path, highest: int) -> None:
    """Create a database whose next group and job have ids above `highest`: there are never more groups than jobs."""
    migrate.create(db)
    with closing(sqlite3.connect(db, isolation_level=None)) as connection:
        rows = [("groups", highest), ("jobs", highest)]
        connection.executemany("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", rows)
        connection.execute("PRAGMA journal_mode=DELETE")  # one plain file, to be renamed


def _highest_job(layout: Layout) -> int:
    """Return the highest id of a job of which a run's folder, a backup or a readable database is left."""
    names = (_RUN.match(path.name) for folder in (layout.runs, layout.set_aside) for path in folder.glob("*.*"))
    highest = max((int(name[1]) for name in names if name), default=0)
    for db in (layout.db, *layout.backups.glob("*.db")):
        with suppress(sqlite3.Error, MpsqError), reading(db, any_schema=True) as connection:
            for (seq,) in tuples(connection, "SELECT seq FROM sqlite_sequence WHERE name = 'jobs'"):
                highest = max(highest, seq)
    return highest


def _is_newer(source: Path) -> bool:
    """Return whether a later mpsq made this backup, after its upgrade."""
    with suppress(MpsqError, sqlite3.Error):
        return (schema_revision(source) or "") > HEAD
    return False


def _refuse_unfit(source: Path) -> None:
    if not source.is_file():
        raise MpsqError(
            f"there is no file {source}",
            "backups are in backups/ beside the database; mpsq db path shows where that is",
        )
    if errors := backup.problems(source):
        raise MpsqError(f"{source.name} is damaged: {errors[0]}", "give an older backup")
    revision = schema_revision(source)
    if revision is None:
        raise MpsqError(f"{source.name} does not contain a queue", "give another file")
    if revision > HEAD:
        raise SchemaError(f"{source.name} is at schema {revision}, newer than {HEAD}", "use the mpsq that made it")


def _refuse_active(layout: Layout) -> None:
    """Refuse while anything is left of a run: the restored database may not know it, and nobody would end it."""
    active = [path.parent.name for path in layout.runs.glob("*/warden.lock") if RunDir(path.parent).is_supervised()]
    active += lane_locks.runs_of(layout.home)
    if active:
        run = active[0]
        raise MpsqError(
            f"run {run} is active",
            f"wait until it ends, or cancel it with mpsq cancel {run}; after a crash, mpsq worker ends it",
        )


def _prepare(db: Path) -> tuple[bool, set[str]]:
    """Pause the lane of a restored database where something waits. Return whether it does, and the runs it knows."""
    connection = sqlite3.connect(db)
    try:
        waits = connection.execute("SELECT 1 FROM runs WHERE state <> 'DONE' LIMIT 1").fetchone() is not None
        if waits:
            lane = {"name": DEFAULT_LANE, "paused_at": time.time(), "paused_reason": _WHY}
            columns = {row[1] for row in connection.execute("PRAGMA table_info(lanes)")}
            names = [name for name in lane if name in columns]  # an older schema has no reason
            connection.execute(f"INSERT OR IGNORE INTO lanes (name) VALUES ('{DEFAULT_LANE}')")
            assignments = ", ".join(f"{name} = :{name}" for name in names)
            connection.execute(f"UPDATE lanes SET {assignments} WHERE name = :name", lane)
            connection.commit()
        return waits, {f"{job}.{number}" for job, number in connection.execute("SELECT job_id, number FROM runs")}
    finally:
        connection.close()


def _set_aside(layout: Layout, known: set[str]) -> Path | None:
    """Move the folders of later runs away: their numbers will be reused."""
    unknown = [path for path in layout.runs.glob("*.*") if _RUN.fullmatch(path.name) and path.name not in known]
    if not unknown:
        return None
    try:
        for path in unknown:
            RunDir(path).set_aside(layout.set_aside)
    except OSError as error:
        raise MpsqError(
            f"the database was restored, but run {path.name} could not be moved aside: {error.strerror or error}",
            f"before you start the worker, move out of {layout.runs} the folders of runs that the backup lacks",
        ) from error
    return layout.set_aside


def _keep_old(layout: Layout) -> Path | None:
    """Copy the old database to the backups, then remove its log: SQLite would read it into the new database.

    The log is removed only when the database has all of it, or is damaged and both were copied: whoever is killed here
    loses nothing. Raises: MpsqError while a reader keeps SQLite from writing the log back; OSError.
    """
    log = Path(f"{layout.db}-wal")
    layout.backups.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = backup.next_name(layout.backups, "replaced-%Y%m%d-%H%M%S.db")
    exists = layout.db.exists()
    try:
        if exists and not write_back(layout.db):
            raise MpsqError(
                f"another program reads the database, so the latest jobs are still in {log.name}",
                "wait until that program has ended, or end it, then run mpsq db restore again",
            )
        damaged = False
    except sqlite3.OperationalError as error:
        raise explain(error) from error
    except sqlite3.DatabaseError:
        damaged = True
    failpoints.reach("restore.before_copy")
    if exists:
        with replacing(copy, durable=True) as partial:
            shutil.copyfile(layout.db, partial)
    if log.exists() and (damaged or not exists):
        with replacing(Path(f"{copy}-wal"), durable=True) as partial:
            shutil.copyfile(log, partial)
    failpoints.reach("restore.copied")
    log.unlink(missing_ok=True)
    Path(f"{layout.db}-shm").unlink(missing_ok=True)
    return copy if exists else None
