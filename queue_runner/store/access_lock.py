"""The lock on writing to the database: shared by many writers, or exclusive for an upgrade or a replacement.

SQLite finds a database's log by its name: a program that closes a file which has since been replaced would remove the
log of the new one. So every writer shares migrate.lock with the others, from opening the file to closing it.
"""

from __future__ import annotations

from pathlib import Path

from queue_runner.errors import MpsqError
from queue_runner.host import locks

_LOCK_WAIT_S = 60.0


def shared(db: Path) -> locks.Lock:
    """Return the lock shared by writers. Raises: MpsqError when another process holds it exclusively for a minute."""
    return locks.share(_lock(db), _LOCK_WAIT_S, "an mpsq db restore or upgrade")


def alone(db: Path) -> locks.Lock:
    """Return the exclusive lock: nobody else has `db` open for writing. Raises: MpsqError after waiting a minute."""
    if (lock := locks.alone(_lock(db), _LOCK_WAIT_S)) is None:
        raise MpsqError(
            "another mpsq has had the database open for writing for a minute", "wait until it ends, then try again"
        )
    return lock


def _lock(db: Path) -> Path:
    return db.with_name("migrate.lock")
