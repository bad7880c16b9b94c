"""Truncation of large logs of ended runs to their head and tail."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from queue_runner.run_dir import RunDir


def compact_logs(folder: RunDir, keep_bytes: int) -> None:
    """Cut each log of an ended run that is larger than `keep_bytes` to its first and last half of that.

    The new file replaces the old one by a rename. If the disk refuses, nothing is done: the log stays whole.
    """
    for path in (folder.stdout, folder.stderr):
        try:
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size > keep_bytes:
                path.with_suffix(".partial").unlink(missing_ok=True)  # a job may have put a link there
                _cut(path, status.st_size, keep_bytes // 2)
        except OSError:
            with contextlib.suppress(OSError):
                path.with_suffix(".partial").unlink(missing_ok=True)


def _cut(path: Path, size: int, half: int) -> None:
    partial = path.with_suffix(".partial")
    with path.open("rb") as source, partial.open("wb") as target:
        _copy(source.fileno(), 0, half, target.fileno())
        os.write(target.fileno(), b"\n[mpsq: %d bytes in the middle of this log were not kept]\n" % (size - 2 * half))
        _copy(source.fileno(), size - half, half, target.fileno())
    partial.replace(path)


def _copy(source: int, offset: int, count: int, target: int) -> None:
    while count and (data := os.pread(source, min(count, 1 << 20), offset)):
        os.write(target, data)
        offset += len(data)
        count -= len(data)
