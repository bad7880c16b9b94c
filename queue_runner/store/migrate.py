"""Migration of the database to this code's schema, automatic and safe: created at first use, upgraded after a backup.

An existing file is upgraded only under worker.lock with no run active (docs/supervision.md), inside one transaction.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from queue_runner.errors import DamageError, MpsqError, RunActive, SchemaError
from queue_runner.host import locks
from queue_runner.host.run_dir import RunDir
from queue_runner.paths import Layout, migrations_dir
from queue_runner.store import backup, merges
from queue_runner.store.engine import Connection, lock_alone, open_engine, writing
from queue_runner.store.read import BEFORE_UPGRADE, HEAD, lost, reading, schema_revision, tuples

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger(__name__)


def ensure(layout: Layout) -> None:
    """Ensure that the database has this code's schema; fast when it has.

    Raises: SchemaError when the file is newer, or older while a worker or a run is active; MpsqError as `upgrade`.
    """
    if schema_revision(layout.db) != HEAD:
        upgrade(layout)


@contextmanager
def writing_to(layout: Layout) -> Iterator[Connection]:
    """Run one transaction as `engine.writing` in the database, which is given this code's schema first if it has not.

    Raises: as `ensure`, and as `engine.writing`.
    """
    engine = open_engine(layout.db, check=False)
    if layout.db.exists() and layout.db.stat().st_size:
        with writing(engine) as connection:
            if _is_current(connection):  # looked up here: one connection more takes as long as all the rest
                yield connection
                return
    upgrade(layout)
    with writing(engine) as connection:
        yield connection


def _is_current(connection: Connection) -> bool:
    try:
        return bool(connection.value("SELECT version_num FROM alembic_version") == HEAD)
    except sqlite3.OperationalError:  # there is no such table
        return False


def upgrade(layout: Layout, *, holds_worker_lock: bool = False) -> str | None:
    """Create or upgrade the database. Return the path of the backup, None where there was nothing to back up.

    Raises: SchemaError (newer file, worker running, run active), DamageError (the old one was lost), MpsqError (disk).
    """
    with lock_alone(layout.db):
        revision = schema_revision(layout.db)
        if revision == HEAD:
            return None
        if revision is None:
            if error := lost(layout.db):
                raise error
            create(layout.db)
            return None
        _refuse_newer(revision)
        worker = nullcontext() if holds_worker_lock else locks.try_worker(layout.home)
        if worker is None:
            raise SchemaError(
                f"the database is at schema {revision}, this mpsq needs {HEAD}, and an older worker is running",
                "restart the worker: mpsq service install, or stop mpsq worker and start it again",
            )
        with worker:
            _refuse_active(layout)
            saved = backup.make(layout, label=f"before-{HEAD}")
            create(layout.db)
            _vacuum(layout.db)
            _name_old_backups(layout)
            return str(saved)


def _vacuum(db: Path) -> None:
    """Remove deleted data from the upgraded file and its log, if the disk allows it. Nobody else may use the database
    meanwhile."""
    try:
        with closing(sqlite3.connect(db, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        log.warning("the database is upgraded, but its file still contains deleted data: %s", error)


def _name_old_backups(layout: Layout) -> None:
    """Log the backups that contain environments of jobs: those from before revision 0011."""
    if old := [path.name for path in backup.stored(layout.backups) if _has_environments(path)]:
        log.warning(
            "these backups in %s still contain the environments of jobs, with any secrets; delete them when you no"
            " longer need them: %s",
            layout.backups,
            ", ".join(old),
        )


def _has_environments(copy: Path) -> bool:
    try:
        return (schema_revision(copy) or "") < "0011"
    except MpsqError as error:
        log.warning("the backup %s cannot be read: %s", copy, error.message)
        return False


def _refuse_newer(revision: str) -> None:
    from alembic.script import ScriptDirectory

    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision not in known:
        raise SchemaError(
            f"the database is at schema {revision}, which is newer than this mpsq ({HEAD})",
            f"use the mpsq that made it, or {BEFORE_UPGRADE}",
        )


def _refuse_active(layout: Layout) -> None:
    """Refuse while a run is active, i.e. its warden lives. Without a warden, the worker ends it after the upgrade."""
    with reading(layout.db, any_schema=True) as connection:
        running = tuples(connection, "SELECT job_id || '.' || number FROM runs WHERE state = 'RUNNING'").fetchall()
    for (name,) in running:
        if RunDir(layout.run_dir(name)).is_supervised():
            raise RunActive(
                f"run {name} is active: the schema is not changed meanwhile", "wait until it ends, then try again"
            )


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_dir()).replace("%", "%%"))
    return config


def create(db: Path) -> None:
    """Create a database, or bring one to this code's schema. Nobody else may use it meanwhile."""
    from alembic import command

    os.close(os.open(db, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))  # it contains command lines and folders
    engine = open_engine(db, check=False, foreign_keys=False)  # a table that is made anew is missing for a moment
    config = _config()
    with writing(engine, alone=True) as connection:
        config.attributes["connection"] = connection.core
        command.upgrade(config, "head")
        if dangling := merges.dangling(connection.rows):
            raise DamageError(
                f"the database was not upgraded: dangling references in {', '.join(dangling)}",
                "mpsq db check shows them; mpsq db restore restores a backup",
            )
    engine.dispose()
