"""Folders on the disk: what they take, and how they are removed whatever a job did to them. No link is followed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

TRASH = ".trash-"
"""How the name of a folder begins that is being removed: set aside by a rename, so that nothing is ever half there."""
BLOCK_BYTES = 512  # of st_blocks (stat(2)), whatever the file system's own


def used_bytes(*paths: Path) -> int:
    """What files and folders take on the disk, in bytes; a file with several names counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for status in (status for path in paths for status in walk(path)):
        if (key := (status.st_dev, status.st_ino)) not in seen:
            seen.add(key)
            total += status.st_blocks * BLOCK_BYTES
    return total


def walk(path: Path) -> Iterator[os.stat_result]:
    """The status of a file, or of a folder and all below it; no link is followed."""
    todo = [str(path)]
    while todo:
        name = todo.pop()
        try:
            status = os.lstat(name)
            yield status
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(name) as entries:
                    todo += [entry.path for entry in entries]
        except OSError:
            continue  # it has gone, or is closed to us


def set_aside(folder: Path, found: Iterable[Path]) -> Path:
    """Rename files and folders below `folder` into a new trash folder there: they are gone at once, or not at all.

    Raises: OSError when the disk refuses; what was renamed until then lies in the trash.
    """
    trash = Path(tempfile.mkdtemp(prefix=TRASH, dir=folder))
    for number, path in enumerate(found):
        path.rename(trash / f"{number}-{path.name[:200]}")
    return trash


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, also one whose owner has closed it to himself. Nothing there is fine.

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
        if os.path.lexists(path):  # something inside went while we looked
            shutil.rmtree(path)


def _open(path: Path) -> None:
    todo = [str(path)]
    while todo:
        name = todo.pop()
        Path(name).chmod(0o700)
        with os.scandir(name) as entries:
            todo += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def remove_gently(paths: Iterable[Path]) -> None:
    """`remove` each, in a thread of the lowest priority: it must not take processors from a run that is measured. Only
    there: whoever holds the database's write lock is waited for and must not be slow.

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
        if sys.platform.startswith("linux"):  # a thread has a niceness of its own there: sched(7)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        elif hasattr(os, "PRIO_DARWIN_THREAD"):  # Python 3.12; setpriority(2) of macOS
            os.setpriority(os.PRIO_DARWIN_THREAD, 0, os.PRIO_DARWIN_BG)
