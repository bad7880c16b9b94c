"""Kernel locks (flock): who may act for a queue, and who may be using an accelerator.

A lock belongs to an open file description. It is inherited by whoever inherits the descriptor and is gone when the last
copy is closed, however its holders die. So a lock is given up by closing only: LOCK_UN would take it from every copy.
Lock files are never unlinked, or two processes could hold "the same" lock on two files.

Asking is not taking: `is_held` tries a *shared* lock and lets go of it at once, and whoever tries for the exclusive one
and is refused looks whether a shared one would be granted. If so nobody holds the lock and it met a question, which is
over in microseconds: it tries again. A question thus never makes a try fail, and a try that fails met a real holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from queue_runner.errors import MpsqError

_HOLDER_BYTES_MAX = 4096
_QUESTIONS_LAST_S = 1.0
"""How long a try waits for others' questions to be over: a question takes microseconds, unless its asker is stopped."""

_BASES = (Path("/var/tmp"), Path("/tmp"))


class Lock:
    """A lock that is held, as long as it is not closed. `fd` may be handed over on purpose (pass_fds)."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd: int | None = fd

    @property
    def fd(self) -> int:
        """The descriptor. Raises: ValueError after close."""
        if self._fd is None:
            raise ValueError(f"{self.path.name} was closed")
        return self._fd

    def write_holder(self, about: Mapping[str, Any] | None = None) -> None:
        """Say in the file who took the lock: {pid, start, host} and what `about` adds. The text outlives the holder.

        Raises: OSError when the disk refuses, ValueError when it is longer than 4 KiB.
        """
        from queue_runner.host import process_table  # only here: most who import this never write

        own = process_table.look(os.getpid())
        holder = {
            "pid": os.getpid(),
            "start": own.process.start if own else None,
            "host": socket.gethostname(),
            **(about or {}),
        }
        text = json.dumps(holder, separators=(",", ":")).encode() + b"\n"
        if len(text) > _HOLDER_BYTES_MAX:
            raise ValueError("too much to say about a lock's holder")
        os.pwrite(self.fd, text, 0)  # readers take the first line only, so that the old rest after it does no harm
        os.ftruncate(self.fd, len(text))

    def touch(self) -> None:
        """Make the file young, so that a cleaner of old temporary files leaves it alone. Call it daily, or so."""
        os.utime(self.fd)

    def close(self) -> None:
        """Give this copy of the lock up. Twice does no harm."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock_dir() -> Path:
    """The directory of this user's locks on this machine; made, with mode 0700, if it is not there.

    MPSQ_LOCKS, or else a folder of /var/tmp named by the user's number. It must be the same from a terminal, ssh, cron,
    launchd and systemd, on this machine alone: XDG_RUNTIME_DIR is only set in a login session and goes with it, TMPDIR
    differs between sessions, a home may be on NFS and shared by machines, /tmp is cleaned after days. A service with
    systemd's PrivateTmp= would see another one: ours has none. Cleaners of /var/tmp take files unused for 30 days; the
    lane's is touched hourly by the warden.

    Raises: MpsqError when the folder cannot be made, is another user's, or is open to others.
    """
    if chosen := os.environ.get("MPSQ_LOCKS"):
        folder = Path(chosen)
        if not folder.is_absolute():
            raise MpsqError(f"MPSQ_LOCKS is a relative path: {chosen}", "give the whole path: locks are per machine")
    else:
        base = next((base for base in _BASES if base.is_dir()), _BASES[-1])
        folder = base / f"mpsq-{os.getuid()}"
    hint = "set MPSQ_LOCKS to a folder of your own on a local disk, for every mpsq of yours"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=bool(chosen))
        found = folder.stat() if chosen else folder.lstat()
    except OSError as error:
        raise MpsqError(f"the folder of the locks cannot be made: {folder}: {error.strerror}", hint) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise MpsqError(f"the folder of the locks is not yours: {folder}", hint)
    if found.st_mode & 0o077:
        if chosen:
            raise MpsqError(f"the folder of the locks is open to others: {folder}", f"chmod 700 {folder}")
        folder.chmod(0o700)
    return folder


def worker_lock_path(home: Path) -> Path:
    """The lock of the one worker of the queue at `home`, named by the folder itself and not by a path to it.

    Raises: OSError when the home is not there, MpsqError as lock_dir.
    """
    found = home.stat()
    return lock_dir() / f"worker-{found.st_dev:x}-{found.st_ino}.lock"


def lane_lock_path(lane: str) -> Path:
    """The lock of a lane, e.g. of "machine" or of one GPU. Raises: ValueError for a name that is no file name."""
    if not lane or not all(letter.isalnum() or letter in "-_." for letter in lane) or lane.startswith("."):
        raise ValueError(f"no lane can be named {lane!r}")
    return lock_dir() / f"lane-{lane}.lock"


def try_lock(path: Path) -> Lock | None:
    """Take the lock if nobody holds it, without waiting; None when somebody does.

    Raises: MpsqError when the file cannot be opened or its file system knows no locks.
    """
    deadline = time.monotonic() + _QUESTIONS_LAST_S
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                state = _try(fd)
                if state == "taken" and _is_file_at(fd, path):
                    return Lock(path, os.dup(fd))
            finally:
                os.close(fd)  # what _try found out by asking is given back with it
        except OSError as error:
            raise MpsqError(
                f"the lock {path} cannot be taken: {error.strerror}", "it must be a file of yours on a local disk"
            ) from error
        if state == "held" or time.monotonic() > deadline:
            return None
        if state == "asked":
            time.sleep(0.001)


def share(path: Path, wait_s: float = 30.0, by: str = "an mpsq gc") -> Lock:
    """Hold the lock together with others who share it, and apart from whoever takes it alone, which is waited for.

    `by` is who takes it alone.

    Raises: MpsqError when the file cannot be opened, or its holder keeps it for longer than `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise MpsqError(
            f"the lock {path} cannot be taken: {error.strerror}", "it must be a file of yours on a local disk"
        ) from error
    while not _grants(fd, fcntl.LOCK_SH):
        if time.monotonic() > deadline:
            os.close(fd)
            raise MpsqError(f"{path} has been locked for {wait_s:.0f} s", f"look for {by} that hangs, and end it")
        time.sleep(0.005)
    return Lock(path, fd)


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock now. Disturbs nobody (see above) and makes no file.

    Raises: OSError when a file that is there cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not _grants(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def read_holder(path: Path) -> dict[str, Any] | None:
    """What the last holder wrote about itself; whether it still holds the lock is for `is_held` to say."""
    try:
        with path.open("rb") as file:
            holder = json.loads(file.read(_HOLDER_BYTES_MAX).split(b"\n", 1)[0])
    except (OSError, ValueError):
        return None
    return holder if isinstance(holder, dict) else None


def _try(fd: int) -> str:
    """taken | held (by somebody else) | asked (somebody was only asking)."""
    if _grants(fd, fcntl.LOCK_EX):
        return "taken"
    return "asked" if _grants(fd, fcntl.LOCK_SH) else "held"


def _grants(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file_at(fd: int, path: Path) -> bool:
    """Whether the locked file is still the one that others will open."""
    try:
        at = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (mine.st_dev, mine.st_ino) == (at.st_dev, at.st_ino)
