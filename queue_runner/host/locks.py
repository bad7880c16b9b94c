"""Kernel locks (flock): who may act for a queue, and who may be using an accelerator.

A lock belongs to an open file description. It is inherited with the descriptor and released when the last copy is
closed, however its holders die. So a lock is released by closing only: LOCK_UN would release it for every copy.
Lock files are never unlinked, or two processes could hold "the same" lock on two files.

A query never takes the lock: `is_held` tries a *shared* lock and releases it at once, and a process refused the
exclusive lock checks whether a shared one would be granted. If so, nobody holds the lock and it met a query, which is
over in microseconds: it tries again. Thus a query never makes a try fail, and a failed try met a real holder.

Some locks are shared by many short holders (`share`) and at times needed by one process alone (`alone`). flock grants
any shared lock beside another, so that a stream of sharers would keep it from that process forever. Both therefore pass
a second lock first, whose file is named .turn: who waits to be alone holds it, and newcomers queue behind.
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
from queue_runner.warden.files import grants
from queue_runner.warden.process_tree import row

_HOLDER_BYTES_MAX = 4096
_QUESTIONS_LAST_S = 1.0
"""How long a try waits for others' queries: a query takes microseconds, unless its process is stopped."""
_DEATH_LASTS_S = 1.0
"""How long a try waits for the second lock of a process that has released the first: one that dies, in any order."""

_BASES = (Path("/var/tmp"), Path("/tmp"))


class Lock:
    """A lock, held until closed. `fd` may be passed on deliberately (pass_fds). `inner` is held as long."""

    def __init__(self, path: Path, fd: int, inner: Lock | None = None) -> None:
        self.path = path
        self._fd: int | None = fd
        self._inner = inner

    @property
    def fd(self) -> int:
        """File descriptor of the lock. Raises: ValueError after close."""
        if self._fd is None:
            raise ValueError(f"{self.path.name} was closed")
        return self._fd

    def write_holder(self, about: Mapping[str, Any] | None = None) -> None:
        """Write to the file who took the lock: {pid, start, host, at} and `about`. The text outlives the holder.

        Raises: OSError when it cannot be written, ValueError when it is longer than 4 KiB.
        """
        this_process = row(os.getpid())
        holder = {
            "pid": os.getpid(),
            "start": this_process.start if this_process else None,
            "host": socket.gethostname(),
            "at": time.time(),
            **(about or {}),
        }
        text = json.dumps(holder, separators=(",", ":")).encode() + b"\n"
        if len(text) > _HOLDER_BYTES_MAX:
            raise ValueError("the description of a lock's holder is too long")
        os.pwrite(self.fd, text, 0)  # readers use the first line only, so old text after it is harmless
        os.ftruncate(self.fd, len(text))

    def forget_holder(self) -> None:
        """Remove what the last process that held the lock alone wrote: its run has nothing to do with those that share
        the lock now, and macOS cannot tell one kind of holder from the other. Raises: OSError."""
        if os.fstat(self.fd).st_size:
            os.ftruncate(self.fd, 0)

    def touch(self) -> None:
        """Update the file's times, so that cleaners of old temporary files leave it alone. Call about daily."""
        os.utime(self.fd)

    def close(self) -> None:
        """Release this copy of the lock, after the inner one. Idempotent."""
        if self._inner is not None:
            self._inner.close()
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock_dir() -> Path:
    """Return the directory of this user's locks on this machine, created with mode 0700 if missing.

    It is MPSQ_LOCKS, or else a folder of /var/tmp named by the user id. It must be the same from a terminal, ssh, cron,
    launchd and systemd, and differ between machines. XDG_RUNTIME_DIR ends with a login session. TMPDIR differs between
    sessions. A home may be on NFS and shared by machines. /tmp is cleaned after days. A service with
    systemd's PrivateTmp= would see another one: ours does not set it. Cleaners of /var/tmp remove files unused for 30
    days; the warden touches the lane's hourly.

    Raises: MpsqError when the folder cannot be created, is another user's, or is open to others.
    """
    if chosen := os.environ.get("MPSQ_LOCKS"):
        folder = Path(chosen)
        if not folder.is_absolute():
            raise MpsqError(f"MPSQ_LOCKS is a relative path: {chosen}", "give an absolute path: locks are per machine")
    else:
        base = next((base for base in _BASES if base.is_dir()), _BASES[-1])
        folder = base / f"mpsq-{os.getuid()}"
    hint = "set MPSQ_LOCKS to a folder of your own on a local disk, the same for all your queues"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=bool(chosen))
        status = folder.stat() if chosen else folder.lstat()
    except OSError as error:
        raise MpsqError(f"the lock folder {folder} cannot be created: {error.strerror}", hint) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise MpsqError(f"the lock folder {folder} belongs to another user", hint)
    if status.st_mode & 0o077:
        if chosen:
            raise MpsqError(f"the lock folder {folder} is open to other users", f"chmod 700 {folder}")
        folder.chmod(0o700)
    return folder


def worker_lock_path(home: Path) -> Path:
    """Return the path of the worker lock of the queue at `home`, named by the folder itself, not by a path to it.

    Raises: OSError when the home does not exist, MpsqError as lock_dir.
    """
    status = home.stat()
    return lock_dir() / f"worker-{status.st_dev:x}-{status.st_ino}.lock"


def try_worker(home: Path) -> Lock | None:
    """Take the queue at `home`: the worker lock, then worker.lock in the home. Workers with different MPSQ_LOCKS, or in
    containers that share the home, have only that in common. None when another process holds either.

    Raises: as worker_lock_path and try_lock.
    """
    outer = try_lock(worker_lock_path(home))
    if outer is None:
        return None
    with outer:
        inner = _wait_for(_lock_of_home(home), time.monotonic() + _DEATH_LASTS_S)
        return None if inner is None else Lock(outer.path, os.dup(outer.fd), inner)


def _lock_of_home(home: Path) -> Path:
    return home / "worker.lock"


def lane_lock_path(lane: str) -> Path:
    """Return the lock path of the machine ("machine"), of a GPU or of a processor ("cpu:3"). Raises: ValueError for an
    invalid file name."""
    lane = lane.replace(":", "-")
    if not lane or not all(letter.isalnum() or letter in "-_." for letter in lane) or lane.startswith("."):
        raise ValueError(f"invalid lane name: {lane!r}")
    return lock_dir() / f"lane-{lane}.lock"


def try_lock(path: Path, questions_last_s: float = _QUESTIONS_LAST_S) -> Lock | None:
    """Take the lock without waiting; None when it is held. One that others share looks like one that they only query:
    None after `questions_last_s`.

    Raises: MpsqError when the file cannot be opened or its file system does not support locks.
    """
    deadline = time.monotonic() + questions_last_s
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                state = _try(fd)
                if state == "taken" and _is_file_at(fd, path):
                    return Lock(path, os.dup(fd))
            finally:
                os.close(fd)  # also releases a shared lock that _try got by its query
        except OSError as error:
            raise _cannot(path, error) from error
        if state == "held" or time.monotonic() > deadline:
            return None
        if state == "asked":
            time.sleep(0.001)


def share(path: Path, wait_s: float = 30.0, by: str = "an mpsq gc") -> Lock:
    """Take the lock shared, waiting for a process that holds it alone or waits to. Not to be nested: see `alone`.

    `by` names that process.

    Raises: MpsqError when the file cannot be opened, or is not to be had for longer than `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    with _share(turn_of(path), path, deadline, wait_s, by):
        return _share(path, path, deadline, wait_s, by)


def alone(path: Path, wait_s: float) -> Lock | None:
    """Take the lock exclusively, waiting for those that share it while newcomers wait; None after `wait_s` seconds.

    Raises: MpsqError as try_lock.
    """
    deadline = time.monotonic() + wait_s
    turn = _wait_for(turn_of(path), deadline)
    if turn is None:
        return None
    with turn:
        return _wait_for(path, deadline)


def try_share(path: Path) -> Lock | None:
    """Take the lock shared without waiting; None when a process holds it alone. It passes those that wait to.

    Raises: MpsqError as try_lock.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _cannot(path, error) from error
        if not grants(fd, fcntl.LOCK_SH):
            os.close(fd)
            return None
        if _is_file_at(fd, path):
            return Lock(path, fd)
        os.close(fd)


def turn_of(path: Path) -> Path:
    """Return the lock that a process holds while it waits to hold `path` alone."""
    return path.with_suffix(".turn")


def _wait_for(path: Path, deadline: float) -> Lock | None:
    while (lock := try_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return lock


def _share(file: Path, path: Path, deadline: float, wait_s: float, by: str) -> Lock:
    try:
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _cannot(file, error) from error
    while not grants(fd, fcntl.LOCK_SH):
        if time.monotonic() > deadline:
            os.close(fd)
            raise MpsqError(f"{path} has been locked for {wait_s:.0f} s", f"look for {by} that hangs, and stop it")
        time.sleep(0.005)
    return Lock(file, fd)


def is_held(path: Path) -> bool:
    """Return whether the lock is held now. Disturbs nobody (see above) and creates no file.

    Raises: OSError when an existing file cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not grants(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def read_holder(path: Path) -> dict[str, Any] | None:
    """Return what the last holder wrote about itself; use `is_held` to check that it still holds the lock."""
    try:
        with path.open("rb") as file:
            holder = json.loads(file.read(_HOLDER_BYTES_MAX).split(b"\n", 1)[0])
    except (OSError, ValueError, RecursionError):  # a job inherits its lane's lock, and can write there
        return None
    return holder if isinstance(holder, dict) else None


START_A_WORKER = "start one: mpsq worker, or mpsq service install"


def worker(home: Path) -> tuple[bool, int | None]:
    """Return whether a worker holds this queue, and its process id if its lock contains it."""
    path = worker_lock_path(home)
    if not is_held(path):
        return is_held(_lock_of_home(home)), None
    pid = (read_holder(path) or {}).get("pid")
    return True, pid if isinstance(pid, int) else None


def _cannot(path: Path, error: OSError) -> MpsqError:
    return MpsqError(
        f"the lock {path} cannot be taken: {error.strerror}", "it must be a file of your own on a local disk"
    )


def _try(fd: int) -> str:
    """Return taken, held (by another process) or asked (another process was only querying)."""
    if grants(fd, fcntl.LOCK_EX):
        return "taken"
    return "asked" if grants(fd, fcntl.LOCK_SH) else "held"


def _is_file_at(fd: int, path: Path) -> bool:
    """Return whether the locked file is still the one that others will open."""
    try:
        at = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (mine.st_dev, mine.st_ino) == (at.st_dev, at.st_ino)
