"""What a power failure leaves of a disk: names in the order of their changes up to the last flush or a later one, and
of each file its flushed content, that with a part of the rest, or all.

The model is that of a journal which keeps the order of names (ext4, xfs, btrfs, APFS): flushing anything also makes
every earlier change of names durable. The content of a file is durable only when that file is flushed.
"""

# the calls of os are what this is about
# ruff: noqa: PTH103, PTH112
from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Callable
from typing import Any

REAL: dict[str, Callable[..., Any]] = {
    name: getattr(os, name) for name in ("open", "close", "read", "pread", "pwrite", "link", "unlink", "rename", "stat")
}


class Disk:
    """The journal of one simulated disk, whose files are below `folders`. SQLite's files belong to sqlite_files."""

    def __init__(self, chance: random.Random) -> None:
        self.random = chance
        self.folders: list[str] = []
        self.graveyard = ""
        self.changes: list[tuple[str, str, str, str]] = []  # kind, path, other path, link to the old file
        self.flushed: dict[int, bytes] = {}
        self._n = 0

    def begin(self, graveyard: str, *folders: str) -> None:
        """Take the files of these folders for durable."""
        self.graveyard, self.folders = graveyard, [*folders]
        os.makedirs(graveyard, exist_ok=True)
        for path in self._files():
            self.flushed[REAL["stat"](path).st_ino] = _content(path)

    def covers(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and any(os.fspath(path).startswith(at) for at in self.folders)

    def changed(self, what: str, path: str, other: str = "") -> None:
        """Note a change of names that is about to be made, with a link to what it removes."""
        link = ""
        removed = other if what in ("rename", "replace") else path if what == "unlink" else ""
        if removed and os.path.lexists(removed) and not os.path.isdir(removed):
            self._n += 1
            link = f"{self.graveyard}/{self._n}"
            REAL["link"](removed, link, follow_symlinks=False)
        self.changes.append((what, path, other, link))

    def flush_names(self) -> None:
        """Everything about names is durable now."""
        for _, _, _, link in self.changes:
            if link:
                REAL["unlink"](link)
        self.changes.clear()

    def fsync(self, fd: int) -> None:
        """Everything about names is durable now, and the content of this file."""
        self.flush_names()
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode):
            self.flushed[status.st_ino] = _content(f"/proc/self/fd/{fd}")

    def lose(self) -> None:
        """Undo changes that were not flushed, as far as the seed says."""
        keep = self.random.randint(0, len(self.changes)) if self.random.random() < 0.7 else 0
        for what, path, other, link in reversed(self.changes[keep:]):
            self._undo(what, path, other, link)
        self.changes.clear()
        for path in self._files():
            self._tear(path)

    def _undo(self, what: str, path: str, other: str, link: str) -> None:
        try:
            if what in ("rename", "replace"):
                if os.path.lexists(other):
                    REAL["rename"](other, path)
                if link:
                    REAL["rename"](link, other)
            elif what == "unlink":
                if link:
                    REAL["rename"](link, path)
            elif what in ("create", "link"):
                if os.path.lexists(path):
                    REAL["unlink"](path)
            elif what == "mkdir":
                shutil.rmtree(path, ignore_errors=True)
            elif what == "rmdir":
                os.makedirs(path, exist_ok=True)
        except OSError:
            pass  # a folder above it was not durable either

    def _tear(self, path: str) -> None:
        """Give a file the content that it may have after the failure."""
        status = REAL["stat"](path)
        before, now = self.flushed.get(status.st_ino, b""), _content(path)
        if now != before:
            choice = self.random.random()
            if now.startswith(before):
                after = now if choice < 0.3 else now[: self.random.randint(len(before), len(now))]
                after = before if choice > 0.6 else after
            else:
                after = now if choice < 0.5 else before
            if after != now:
                with open(path, "wb") as file:
                    file.write(after)
        self.flushed[status.st_ino] = _content(path)

    def _files(self) -> list[str]:
        paths = []
        for folder in self.folders:
            for place, _, names in os.walk(folder):
                for name in sorted(names):
                    path = f"{place}/{name}"
                    if not is_of_sqlite(path) and stat.S_ISREG(os.lstat(path).st_mode):
                        paths.append(path)
        return sorted(paths)


def is_of_sqlite(path: str) -> bool:
    """Return whether SQLite writes this file itself."""
    return path.endswith((".db", ".db-wal", ".db-shm", ".db-journal"))


def _content(path: str) -> bytes:
    descriptor = REAL["open"](path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := REAL["pread"](descriptor, 1 << 20, sum(map(len, parts))):
            parts.append(part)
        return b"".join(parts)
    finally:
        REAL["close"](descriptor)
