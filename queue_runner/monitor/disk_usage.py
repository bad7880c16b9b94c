"""Disk usage of the queue, in allocated blocks as `du` counts. A look takes a bounded time, however large the queue."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from queue_runner.host import trash
from queue_runner.paths import Layout

BUDGET_S = 0.1


@dataclass(frozen=True)
class DiskUse:
    """Disk usage in bytes. If not `exact`, not everything was measured and the first three are lower bounds."""

    runs_bytes: int
    snapshots_bytes: int
    cache_bytes: int
    free_bytes: int | None
    exact: bool


def look(layout: Layout, *, budget_s: float = BUDGET_S) -> DiskUse:
    """Return the current usage, as far as it can be measured in `budget_s` seconds."""
    deadline = time.monotonic() + budget_s
    runs, snapshots, cache = (_measure(folder, deadline) for folder in (layout.runs, layout.snapshots, layout.cache))
    return DiskUse(runs[0], snapshots[0], cache[0], _free(layout), runs[1] and snapshots[1] and cache[1])


def _measure(folder: Path, deadline: float) -> tuple[int, bool]:
    """Return the size of the files in a folder, and whether all of them were measured before the deadline."""
    total = 0
    for status in trash.walk(folder):
        if time.monotonic() > deadline:
            return total, False
        total += status.st_blocks * trash.BLOCK_BYTES
    return total, True


def _free(layout: Layout) -> int | None:
    try:
        return shutil.disk_usage(layout.home).free
    except OSError:
        return None
