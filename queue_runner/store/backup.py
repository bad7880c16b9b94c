"""Backups of the database: copied through SQLite's backup API, checked, and restored.

A backup counts only after a check: copies of a damaged database would in time replace every good one.
"""

from __future__ import annotations

import re
import sqlite3
import time
from calendar import timegm
from contextlib import suppress
from functools import partial
from pathlib import Path

from queue_runner.atomic_file import replacing
from queue_runner.errors import DamageError, MpsqError
from queue_runner.paths import Layout
from queue_runner.store import merges
from queue_runner.store.read import DAMAGE, no_queue, reading, schema_revision, tuples

AUTO = "auto"
BY_HAND = "by-hand"
RESCUED = "rescued"
"""Label of the copy of a database that was removed while a worker had it open."""
_NAME = re.compile(r"mpsq-\d{8}-\d{6}-[a-z0-9-]+\.db")


def make(layout: Layout, label: str = BY_HAND) -> Path:
    """Copy the database as of one moment, while others use it, and check the copy. Return the new file, which is as
    private as the original.

    Raises: MpsqError when there is nothing to copy, it is damaged, or the disk refuses; no partial backup is left.
    """
    with reading(layout.db, any_schema=True) as source:
        return make_from(source, layout, label)


def make_from(source: sqlite3.Connection, layout: Layout, label: str) -> Path:
    """Make a backup as `make` does, of the database that `source` has open, whatever is under its name now."""
    target = next_name(layout.backups, f"mpsq-%Y%m%d-%H%M%S-{label}.db")
    try:
        layout.backups.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(target, durable=True) as partial:
            copy_to(source, partial)
            errors = problems(partial)
            if errors:
                raise DamageError(
                    f"the database is damaged and was not backed up: {errors[0]}",
                    f"mpsq db check says more; {remedy(layout)}",
                )
            if schema_revision(partial) is None:
                raise no_queue(layout.db)
    except OSError as error:
        raise MpsqError(f"the backup could not be written: {error.strerror or error}", _FREE) from error
    return target


_FREE = "free some space, then mpsq db backup"


def copy_to(source: sqlite3.Connection, partial: Path) -> None:
    """Copy a database into an empty file. Raises: MpsqError."""
    copy = sqlite3.connect(partial, isolation_level=None)
    try:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one plain file, without a log of its own
    except sqlite3.Error as error:
        if any(sign in str(error) for sign in DAMAGE):
            raise DamageError("the database is damaged and was not backed up", "mpsq db check says more") from error
        raise MpsqError(f"the backup could not be written: {error}", _FREE) from error
    finally:
        copy.close()


def problems(db: Path, *, quick: bool = False) -> list[str]:
    """Return what SQLite finds wrong with a file: nothing when it is sound. `quick` omits indexes and references.

    Raises: MpsqError when the file cannot be opened.
    """
    lines: list[str] = []
    with reading(db, any_schema=True) as connection:
        try:
            check = "PRAGMA quick_check" if quick else "PRAGMA integrity_check"
            lines += [str(line) for (line,) in tuples(connection, check)]
            dangling = [] if quick else merges.dangling(partial(tuples, connection))
            lines += [f"dangling reference in {table}" for table in dangling]
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY):
                raise  # nothing was read
            lines.append(f"SQLite cannot read it: {error}")
    return [line for line in lines if line != "ok"]


def rotate(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` of the automatic backups of the worker; other backups stay."""
    for path in [path for path in stored(folder) if path.name.endswith(f"-{AUTO}.db")][:-keep]:
        path.unlink(missing_ok=True)


def stored(folder: Path) -> list[Path]:
    """Return every backup, the oldest first: their names sort by time."""
    return sorted(path for path in folder.glob("mpsq-*.db") if _NAME.fullmatch(path.name))


def next_name(folder: Path, pattern: str) -> Path:
    """Return a path for now, or for the second after the newest copy: the clock may have been set back, and names sort
    in the order in which they were made. `pattern` is a name with the time for strftime in it."""
    at = time.time()
    for path in folder.glob("*.db"):
        with suppress(ValueError):
            stamp = "-".join(path.name.split("-")[1:3]).removesuffix(".db")
            at = max(at, timegm(time.strptime(stamp, "%Y%m%d-%H%M%S")) + 1)
    return folder / time.strftime(pattern, time.gmtime(at))


def remedy(layout: Layout) -> str:
    """Return the advice for a damaged database."""
    if stored(layout.backups):
        return "stop the worker, then run mpsq db restore to restore the newest backup"
    return "there is no backup: mpsq db restore --new starts a new queue and keeps the damaged database in backups/"
