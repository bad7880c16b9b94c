"""Disk usage of folders, and their removal whatever a job did to them. No link is followed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

TRASH = ".trash-"
"""Prefix of a folder being removed: set aside by a rename, so that nothing is ever partially there."""
_BLOCK_BYTES = 512  # of st_blocks (stat(2)), whatever the file system's own


def used_bytes(*paths: Path) -> int:
    """Return the disk usage of files, and of folders with all below them, in bytes. A file with several names counts
    once, and no link is followed."""
    visited: set[tuple[int, int]] = set()
    total, todo = 0, [*map(str, paths)]
    while todo:
        name = todo.pop()
        with contextlib.suppress(OSError):  # gone, or not accessible
            status = os.lstat(name)
            if (key := (status.st_dev, status.st_ino)) not in visited:
                visited.add(key)
                total += status.st_blocks * _BLOCK_BYTES
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(name) as entries:
                    todo += [entry.path for entry in entries]
    return total


def set_aside(folder: Path, paths: Iterable[Path]) -> Path:
    """Rename files and folders below `folder` into a new trash folder there: each is gone at once, or not at all.

    Raises: OSError when a rename fails; earlier ones are in the trash then.
    """
    trash = Path(tempfile.mkdtemp(prefix=TRASH, dir=folder))
    for number, path in enumerate(paths):
        path.rename(trash / f"{number}-{path.name[:200]}")
    return trash


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, even without permissions for its owner. A missing path is ignored.

    Raises: OSError for what cannot be removed.
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        try:
            shutil.rmtree(path)
        except PermissionError:
            _open(path)
            shutil.rmtree(path)
    except FileNotFoundError:
        if os.path.lexists(path):  # something inside disappeared meanwhile
            shutil.rmtree(path)


def _open(path: Path) -> None:
    todo = [str(path)]
    while todo:
        name = todo.pop()
        Path(name).chmod(0o700)
        with os.scandir(name) as entries:
            todo += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def remove_gently(paths: Iterable[Path]) -> None:
    """Call `remove` on each in a thread of the lowest priority, so as not to take processors from a measured run. Only
    that thread is slowed: a holder of the database's write lock blocks others and must not be slow.

    Raises: OSError as remove, for the first that cannot be removed.
    """
    failed: list[OSError] = []

    def work() -> None:
        _lower_this_thread()
        try:
            for path in paths:
                remove(path)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _lower_this_thread() -> None:
    with contextlib.suppress(OSError):
        if sys.platform.startswith("linux"):  # threads have their own niceness there: sched(7)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        elif hasattr(os, "PRIO_DARWIN_THREAD"):  # Python 3.12; setpriority(2) of macOS
            os.setpriority(os.PRIO_DARWIN_THREAD, 0, os.PRIO_DARWIN_BG)
