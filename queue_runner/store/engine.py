"""Connections that write: WAL, every transaction BEGIN IMMEDIATE, durable before an id is printed.

SQLite before 3.51.3 can corrupt a database when two connections commit and checkpoint at once (the "WAL-reset"
bug), so no connection checkpoints automatically; the worker, under worker.lock, calls `checkpoint`.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from queue_runner.errors import DamageError, MpsqError
from queue_runner.host import locks
from queue_runner.store.read import DAMAGE, refuse_other, schema_revision

if TYPE_CHECKING:
    import sqlalchemy

BUSY_TIMEOUT_S = 30.0
_TRY_AGAIN_S = 0.001, 0.005
_ACCESS_WAIT_S = 60.0

Values = Mapping[str, Any] | Sequence[Any]


class _Driver(sqlite3.Connection):
    """The driver's connection. Only `Connection` ends its transactions: SQLAlchemy would roll back what it did not
    begin."""

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""


class Connection:
    """A connection, used for one transaction at a time. SQL texts, such as those of hot_sql, run on the driver.

    A statement of SQLAlchemy Core runs in the same transaction; SQLAlchemy is imported for the first one.
    """

    def __init__(self, db: Path, pragmas: Sequence[str]) -> None:
        self._driver = _connect(db, BUSY_TIMEOUT_S)
        for pragma in pragmas:
            self._driver.execute(f"PRAGMA {pragma}")

    def rows(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a statement selects or returns."""
        return self._driver.execute(sql, values).fetchall()

    def each(self, sql: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows one by one, without holding all of them in memory."""
        yield from self._driver.execute(sql, values)

    def row(self, sql: str, values: Values = ()) -> tuple[Any, ...] | None:
        """Return the first row; None if there is none."""
        return next(iter(self.rows(sql, values)), None)

    def column(self, sql: str, values: Values = ()) -> list[Any]:
        """Return the first value of each row."""
        return [row[0] for row in self.rows(sql, values)]

    def value(self, sql: str, values: Values = ()) -> Any:
        """Return the first value of the first row; None if there is no row."""
        row = self.row(sql, values)
        return None if row is None else row[0]

    def change(self, sql: str, values: Values = ()) -> int:
        """Run a statement that returns no rows; return how many it has changed."""
        return self._driver.execute(sql, values).rowcount

    def change_all(self, sql: str, rows: Iterable[Values]) -> None:
        """Run such a statement once for each of these rows."""
        rest = iter(rows)
        for first in rest:  # without a row the statement need not be compiled
            self._driver.executemany(sql, chain([first], rest))

    @cached_property
    def core(self) -> sqlalchemy.Connection:
        """The same connection for SQLAlchemy."""
        from sqlalchemy import StaticPool, create_engine

        engine = create_engine(
            "sqlite://", creator=lambda: self._driver, poolclass=StaticPool, pool_reset_on_return=None
        )
        core = engine.connect()
        core.begin()
        return core

    def execute(self, statement: sqlalchemy.Executable, values: Any = None) -> sqlalchemy.CursorResult[Any]:
        """Run a statement of SQLAlchemy Core."""
        return self.core.execute(statement, values)

    def begin(self) -> None:
        """Begin a read transaction: later commits of others are not visible in it."""
        self._driver.execute("BEGIN")

    def begin_writing(self) -> None:
        """Take the write lock. SQLite's own wait tries ten times a second, and loses for seconds against several
        processes that write one transaction after another: this one tries more often."""
        self._driver.execute("PRAGMA busy_timeout=0")
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        try:
            while not self._try_lock(deadline):
                time.sleep(random.uniform(*_TRY_AGAIN_S))
        finally:
            self._driver.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000:.0f}")

    def _try_lock(self, deadline: float) -> bool:
        try:
            self._driver.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            return False
        return True

    def commit(self) -> None:
        """Commit the transaction, unless it was rolled back."""
        if self._driver.in_transaction:
            self._driver.execute("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction and end it."""
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")

    def close(self) -> None:
        """Close the database."""
        self._driver.close()


class Engine:
    """The connections to a database."""

    def __init__(self, db: Path, *, keep_open: bool, foreign_keys: bool) -> None:
        self._db = db
        self._keep_open = keep_open
        self._pragmas = [*pragmas(), *([] if foreign_keys else ["foreign_keys=OFF"])]
        self._idle: list[Connection] = []
        self._lock = threading.Lock()

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Yield a connection that nobody else uses meanwhile. Changes that are not committed are rolled back."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or Connection(self._db, self._pragmas)
        try:
            yield connection
        finally:
            try:
                connection.rollback()
            except sqlite3.Error:
                connection.close()
                raise
            if self._keep_open:
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.close()

    def dispose(self) -> None:
        """Close the connections that were kept open."""
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def shared(self) -> AbstractContextManager[object]:
        """Return the lock that keeps others from having the database exclusively. A worker's own lock already does."""
        return nullcontext() if self._keep_open else shared(self._db)


def open_engine(db: Path, *, check: bool = True, keep_open: bool = False, foreign_keys: bool = True) -> Engine:
    """Return an engine on `db`.

    `keep_open` keeps connections until it is disposed: SQLite checkpoints when the last connection closes. Without
    `foreign_keys` references are not enforced.

    Raises: SchemaError when the schema of the file is not the one this code writes; MpsqError when there is none, or
    when the file cannot be opened.
    """
    if check:
        refuse_other(schema_revision(db), db)
    return Engine(db, keep_open=keep_open, foreign_keys=foreign_keys)


def _connect(db: Path, timeout_s: float) -> sqlite3.Connection:
    """Connect to a database that exists: SQLite would create an empty one in place of one that was removed."""
    address = f"file:{quote(bytes(db))}?mode=rw"
    return sqlite3.connect(
        address, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False, factory=_Driver
    )


def pragmas() -> list[str]:
    """Return the pragmas of every writing connection; F_FULLFSYNC is what makes fsync reach the disk on macOS.

    The page size applies to a new database only: a job is a row of 2 to 5 KB, of which a page of 4 KB, the default,
    holds one.
    """
    common = ["page_size=8192", "wal_autocheckpoint=0", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"]
    return [*common, "fullfsync=ON"] if sys.platform == "darwin" else common


@contextmanager
def looking(engine: Engine) -> Iterator[Connection]:
    """Read one consistent state through an engine that also writes; take no lock and change nothing.

    Raises: MpsqError as `writing`.
    """
    with _explaining(), engine.shared(), engine.connect() as connection:
        connection.begin()
        yield connection


@contextmanager
def writing(engine: Engine, *, alone: bool = False) -> Iterator[Connection]:
    """Run one transaction that holds the write lock from its first statement, and commit at the end.

    `alone`: the caller holds the lock of `lock_alone`.

    Raises: MpsqError with a remedy for a full disk, a read-only file, a damaged file or a lock that was never released.
    """
    with _explaining(), nullcontext() if alone else engine.shared(), engine.connect() as connection:
        connection.begin_writing()
        yield connection
        connection.commit()


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", error)  # SQLAlchemy wraps the errors of the driver
        if isinstance(cause, sqlite3.Error) and (explained := explain(cause)) is not error:
            raise explained from error
        raise


# -- who may write -----------------------------------------------------------------------------------------------------
# SQLite finds a database's log by its name: a program that closes a file which has since been replaced would remove the
# log of the new one. So every writer shares migrate.lock with the others, from opening the file to closing it, and an
# upgrade or a replacement has it exclusively.


def shared(db: Path) -> locks.Lock:
    """Return the lock shared by writers. Raises: MpsqError when another process holds it exclusively for a minute."""
    return locks.share(_access_lock(db), _ACCESS_WAIT_S, "an mpsq db restore or upgrade")


def lock_alone(db: Path) -> locks.Lock:
    """Return the exclusive lock: nobody else has `db` open for writing. Raises: MpsqError after waiting a minute."""
    if (lock := locks.alone(_access_lock(db), _ACCESS_WAIT_S)) is None:
        raise MpsqError(
            "another mpsq has had the database open for writing for a minute", "wait until it ends, then try again"
        )
    return lock


def _access_lock(db: Path) -> Path:
    return db.with_name("migrate.lock")


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


def write_back(db: Path) -> bool:
    """Move the whole log into the database; return False where a reader prevents it for 5 s. Nobody may write
    meanwhile. Raises: sqlite3.DatabaseError when it is damaged."""
    with closing(_connect(db, 5.0)) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        return not busy
