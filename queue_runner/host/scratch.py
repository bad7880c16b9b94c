"""Private folders of commands in the system's temporary folder. The next command removes those of killed processes.

Each is locked (flock) until its process ends, in whichever container that is. So no folder in use is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from queue_runner.warden.files import grants

_PREFIX = "mpsq-scratch-"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Yield a new folder, which is removed at the end. Raises: OSError."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or of a command that has just ended
            _remove_unused(path)
    while (made := _make()) is None:
        pass
    path, lock = made
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[Path, int] | None:
    """Return a new folder and the descriptor of its lock; None if another command took it for an unused one before it
    was locked."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with contextlib.suppress(FileNotFoundError):
        lock = _open(path)
        with contextlib.suppress(OSError):  # on a file system without locks, nobody removes it either
            fcntl.flock(lock, fcntl.LOCK_SH)
        if path.exists():
            return path, lock
        os.close(lock)
    return None


def _remove_unused(path: Path) -> None:
    lock = _open(path)
    try:
        if os.fstat(lock).st_uid == os.getuid() and grants(lock, fcntl.LOCK_EX):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
