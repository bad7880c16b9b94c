"""Creation of a queue's home, and refusal of unsuitable places."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path

from queue_runner.errors import MpsqError
from queue_runner.host import ownership
from queue_runner.host.filesystem import nearest_existing, network_kind
from queue_runner.paths import Layout, home, home_of_checkout

MIN_FREE_BYTES = 16 * 2**20
"""With less than this on the home's disk, the store could not even record that a job failed."""

_PRIVATE = 0o700


def ensure_home(path: Path | None = None, *, need_bytes: int = MIN_FREE_BYTES, mounts: str | None = None) -> Layout:
    """Create the home and its folders (mode 0700) where missing, and check that the place is suitable for a queue.

    Args: `need_bytes` must be free on its disk; `mounts` replaces the system's mount table.
    Raises: MpsqError for a place that is unwritable, not a folder, on a network, full, or not this user's alone.
    """
    place = Layout(path or home())
    _refuse_sudo(place.home)
    if kind := network_kind(place.home, mounts):
        raise MpsqError(
            f"{place.home} is on a network file system ({kind}), which would corrupt the database",
            "set MPSQ_HOME to a folder on a local disk",
        )
    ownership.secure(place)
    for folder in (place.home, place.runs, place.logs, place.backups, place.snapshots, place.cache):
        _make(folder)
    if not os.environ.get("MPSQ_HOME") and not place.db.exists():
        _close(place.home)
    if not os.access(place.home, os.W_OK | os.X_OK):
        hint = "fix its permissions, or set MPSQ_HOME to another folder"
        raise MpsqError(f"{place.home} is not writable", hint)
    free = shutil.disk_usage(place.home).free
    if free < need_bytes:
        raise MpsqError(
            f"only {free / 2**20:.1f} MiB are free on the disk of {place.home}, and a queue needs"
            f" {need_bytes / 2**20:.0f} MiB",
            "free some space, or set MPSQ_HOME to a folder on another disk",
        )
    return place


def _refuse_sudo(path: Path) -> None:
    """Refuse sudo: files that root leaves in a user's queue lock the user out of it."""
    if os.geteuid() != 0 or not os.environ.get("SUDO_UID"):
        return
    try:
        owner = nearest_existing(path).stat().st_uid
    except OSError:
        return
    if owner != 0:
        raise MpsqError(f"{path} belongs to user {owner}, but mpsq runs as root through sudo", "run mpsq without sudo")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        blocker = next((p for p in (folder, *folder.parents) if os.path.lexists(p) and not p.is_dir()), folder)
        what = "a dangling symbolic link" if blocker.is_symlink() and not blocker.exists() else "not a folder"
        raise MpsqError(f"{blocker} is {what}", "move it away, or set MPSQ_HOME to another folder") from error
    except OSError as error:
        remedy = "set MPSQ_HOME to a folder that you can write to"
        if error.errno == errno.EPERM and sys.platform == "darwin":
            remedy = (
                "macOS keeps services out of Documents, Desktop, Downloads and other volumes: set MPSQ_HOME elsewhere"
            )
        raise MpsqError(f"{folder} cannot be created: {(error.strerror or str(error)).lower()}", remedy) from error


def _close(folder: Path) -> None:
    """Give a folder that was there before its queue the mode of ours: git makes var/ as the umask says."""
    status = folder.stat()
    if folder == home_of_checkout() and status.st_uid == os.geteuid():
        with contextlib.suppress(OSError):  # a disk that keeps no modes
            folder.chmod(_PRIVATE)
