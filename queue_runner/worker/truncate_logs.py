"""Truncation of large logs of ended runs to their head and tail."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from queue_runner.atomic_file import replacing
from queue_runner.run_dir import RunDir


def compact_logs(folder: RunDir, keep_bytes: int) -> None:
    """Cut each log of an ended run that is larger than `keep_bytes` to its first and last half of that.

    The new file replaces the old one by a rename. If the disk refuses, nothing is done: the log stays whole.
    """
    for path in (folder.stdout, folder.stderr):
        try:
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size > keep_bytes:
                _cut(path, status.st_size, keep_bytes // 2)
        except OSError:
            continue


def _cut(path: Path, size: int, half: int) -> None:
    with replacing(path, durable=False) as partial, path.open("rb") as source, partial.open("wb") as target:
        _copy(source.fileno(), 0, half, target.fileno())
        os.write(target.fileno(), b"\n[mpsq: %d bytes in the middle of this log were not kept]\n" % (size - 2 * half))
        _copy(source.fileno(), size - half, half, target.fileno())


def _copy(source: int, offset: int, count: int, target: int) -> None:
    while count and (data := os.pread(source, min(count, 1 << 20), offset)):
        os.write(target, data)
        offset += len(data)
        count -= len(data)
