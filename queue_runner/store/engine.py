"""Connections that write: WAL, every transaction BEGIN IMMEDIATE, durable before an id is printed.

SQLite before 3.51.3 can corrupt a database when two connections commit and checkpoint at once (the "WAL-reset"
bug), so no connection checkpoints automatically; the worker, under worker.lock, calls `checkpoint`.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import cast
from urllib.parse import quote

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event, exc

from queue_runner.errors import DamageError, MpsqError
from queue_runner.store import access_lock
from queue_runner.store.read import DAMAGE, refuse_other, schema_revision

BUSY_TIMEOUT_S = 30.0
_TRY_AGAIN_S = 0.001, 0.005


def open_engine(db: Path, *, check: bool = True, keep_open: bool = False, foreign_keys: bool = True) -> Engine:
    """Return an engine on `db` whose transactions take the write lock when they begin.

    `keep_open` keeps one connection for the life of the engine: SQLite checkpoints when the last connection closes.
    Without `foreign_keys` references are not enforced.

    Raises: SchemaError when the schema of the file is not the one this code writes; MpsqError when there is none, or
    when the file cannot be opened.
    """
    if check:
        refuse_other(schema_revision(db), db)
    engine = create_engine(
        f"sqlite:///{db}", poolclass=QueuePool if keep_open else NullPool, creator=lambda: _connect(db, BUSY_TIMEOUT_S)
    )
    event.listen(engine, "connect", _on_connect)
    if not foreign_keys:
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=OFF"))
    event.listen(engine, "begin", _on_begin)
    return engine


def _connect(db: Path, timeout_s: float) -> sqlite3.Connection:
    """Connect to a database that exists: SQLite would begin an empty one in place of one that was removed."""
    address = f"file:{quote(str(db))}?mode=rw"
    return sqlite3.connect(address, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False)


def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
    for pragma in pragmas():
        connection.execute(f"PRAGMA {pragma}")


def pragmas() -> list[str]:
    """Return the pragmas of every writing connection; F_FULLFSYNC is what makes fsync reach the disk on macOS.

    The page size is that of a new database, and of no other: a job is a row of 2 to 5 KB, of which pages of 4 KB, the
    default, have one each.
    """
    wanted = ["page_size=8192", "wal_autocheckpoint=0", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"]
    return [*wanted, "fullfsync=ON"] if sys.platform == "darwin" else wanted


def _on_begin(connection: Connection) -> None:
    if connection.get_execution_options().get("reads"):
        connection.exec_driver_sql("BEGIN")
        return
    raw = cast("sqlite3.Connection", connection.connection.dbapi_connection)
    raw.execute("PRAGMA busy_timeout=0")
    try:
        _take_write_lock(raw)
    except sqlite3.Error as error:
        raise exc.DBAPIError("BEGIN IMMEDIATE", None, error) from error
    finally:
        raw.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000:.0f}")


def _take_write_lock(connection: sqlite3.Connection) -> None:
    """Begin to write, trying often: SQLite's own wait tries ten times a second, and loses for seconds against several
    processes that write one transaction after another."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(*_TRY_AGAIN_S))


@contextmanager
def looking(engine: Engine) -> Iterator[Connection]:
    """Read one consistent state through an engine that also writes; take no lock and change nothing.

    Raises: MpsqError as `writing`.
    """
    try:
        with _shared(engine), engine.execution_options(reads=True).connect() as connection:
            yield connection
    except exc.DBAPIError as error:
        raise explain(error.orig if error.orig is not None else error) from error


@contextmanager
def writing(engine: Engine, *, alone: bool = False) -> Iterator[Connection]:
    """Run one transaction that holds the write lock from its first statement, and commit at the end.

    `alone`: the caller holds access_lock.alone.

    Raises: MpsqError with a remedy for a full disk, a read-only file, a damaged file or a lock that was never released.
    """
    try:
        with nullcontext() if alone else _shared(engine), engine.begin() as connection:
            yield connection
    except exc.DBAPIError as error:
        raise explain(error.orig if error.orig is not None else error) from error


def _shared(engine: Engine) -> AbstractContextManager[object]:
    if isinstance(engine.pool, QueuePool):  # the worker's: its own lock excludes anybody who needs exclusive access
        return nullcontext()
    return access_lock.shared(Path(str(engine.url.database)))


def explain(error: BaseException) -> BaseException:
    """Return the user's message for an SQLite error; an error that no user can cause is returned unchanged."""
    text = str(error)
    for sign, message, hint in (
        ("disk is full", "the disk is full: nothing was stored", "free some space and run the command again"),
        ("disk I/O error", "the disk refused to write the database", "check the disk and the free space: mpsq doctor"),
        ("readonly database", "the database cannot be written", "check the owner and mode of the file: mpsq db path"),
        ("unable to open", "the database cannot be opened", "check the folder of the file: mpsq db path"),
        (
            "malformed",
            "the database file is damaged",
            "mpsq db check shows the damage, mpsq db restore restores a backup",
        ),
        ("not a database", "the database file is not an SQLite database", "mpsq db restore restores the newest backup"),
        (
            "database is locked",
            "another program has locked the database for 30 s",
            "close the program that has mpsq.db open",
        ),
    ):
        if sign in text:
            return (DamageError if sign in DAMAGE else MpsqError)(message, hint)
    return error


def checkpoint(db: Path) -> None:
    """Move the log into the database. Only the holder of worker.lock may call this; TRUNCATE excludes writers."""
    with suppress(sqlite3.OperationalError), closing(_connect(db, 1.0)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # fails where one is busy: the next checkpoint will do
