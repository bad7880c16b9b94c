"""Disk space kept for the commands that free some: on a full disk they could not even record what they do."""

from __future__ import annotations

import os
import shutil

from queue_runner.paths import Layout

SIZE_BYTES = 8 << 20
_KEPT_ABOVE_BYTES = 8 * SIZE_BYTES
"""Free space with which the reserve is made."""


def keep(layout: Layout) -> None:
    """Make the reserve if it is missing and there is room for it."""
    if layout.reserve.exists() or shutil.disk_usage(layout.home).free < _KEPT_ABOVE_BYTES:
        return
    with layout.reserve.open("wb") as file:
        file.write(os.urandom(SIZE_BYTES))  # a file system may store zeros in no space at all


def release(layout: Layout) -> None:
    """Give the reserve back to the disk if that is nearly full. For cancel, delete and gc, before their first write."""
    if layout.home.is_dir() and shutil.disk_usage(layout.home).free < SIZE_BYTES:
        layout.reserve.unlink(missing_ok=True)
