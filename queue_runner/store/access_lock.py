"""Who may have the database open for writing: many at once, or one alone who upgrades or replaces the file.

SQLite finds a database's log by its name: a program that closes a file which was replaced meanwhile would remove the
log of the new one. So whoever writes shares migrate.lock with the others who do, from opening the file to closing it.
"""

from __future__ import annotations

import time
from pathlib import Path

from queue_runner.errors import MpsqError
from queue_runner.host import locks

_LOCK_WAIT_S = 60.0


def shared(db: Path) -> locks.Lock:
    """With others who write. Raises: MpsqError when somebody has it alone for a minute."""
    return locks.share(_lock(db), _LOCK_WAIT_S, "an mpsq db restore or upgrade")


def alone(db: Path) -> locks.Lock:
    """Nobody else has `db` open for writing while this is held. Raises: MpsqError when somebody has for a minute."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while (lock := locks.try_lock(_lock(db))) is None:
        if time.monotonic() > deadline:
            raise MpsqError("another mpsq has been writing to the database for a minute", "look for it, then try again")
        time.sleep(0.02)
    return lock


def _lock(db: Path) -> Path:
    return db.with_name("migrate.lock")
