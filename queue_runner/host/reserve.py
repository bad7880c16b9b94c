"""Disk space kept for the commands that free some: on a full disk they could not even record what they do."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from queue_runner.atomic_file import replacing
from queue_runner.paths import Layout

SIZE_BYTES = 8 << 20
PART_BYTES = SIZE_BYTES // 4
"""Bytes that one command releases: the rest serves the next ones, on a disk that other programs fill again."""
_KEPT_ABOVE_BYTES = 8 * SIZE_BYTES
"""Free space with which the reserve is made."""


def keep(layout: Layout) -> None:
    """Make the reserve if it is missing or incomplete, there is room for it, and no limit or quota forbids it."""
    with suppress(OSError):
        if layout.reserve.exists() and layout.reserve.stat().st_size == SIZE_BYTES:
            return
        if shutil.disk_usage(layout.home).free < _KEPT_ABOVE_BYTES:
            return
        with replacing(layout.reserve, durable=False) as partial, partial.open("wb") as file:
            if hasattr(os, "posix_fallocate"):  # not on a Mac
                os.posix_fallocate(file.fileno(), 0, SIZE_BYTES)
            if os.fstat(file.fileno()).st_blocks * 512 < SIZE_BYTES:  # it may store zeros in no space at all
                file.write(os.urandom(SIZE_BYTES))


def release(layout: Layout) -> None:
    """Give a part of the reserve back to the disk if that is full. For cancel, delete and gc, before their first
    write."""
    if not layout.home.is_dir() or shutil.disk_usage(layout.home).free >= PART_BYTES:
        return
    with suppress(OSError):  # there is no reserve, or none any more
        left = layout.reserve.stat().st_size - PART_BYTES
        if left > 0:
            os.truncate(layout.reserve, left)
        else:
            layout.reserve.unlink()
