"""Disk usage of the queue, without walking all files each time.

The folder of a finished run, a snapshot and a folder of the cache are measured once; each size is stored as a line of a
file in the home. A look lists the names and adds up the known sizes; it measures as many of the others as its time
allows, and marks the result as inexact if some are left. Sizes are those of the allocated blocks, as in `du`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from queue_runner.host import trash
from queue_runner.paths import Layout

BUDGET_S = 0.03
_ONE_S = 0.1
"""Time limit for measuring one folder; for a larger one a lower bound is kept and measured again once it is old."""
_OLD_S = 600.0
"""Age at which folders of the cache are measured again, since caches grow."""
_TIDY_BYTES = 1 << 17
"""Size above which the file is rewritten if most of its lines are superseded."""


@dataclass(frozen=True)
class DiskUse:
    """Disk usage in bytes. If not `exact`, not everything was measured and the first three are lower bounds."""

    runs_bytes: int
    snapshots_bytes: int
    cache_bytes: int
    free_bytes: int | None
    exact: bool


class _Known(NamedTuple):
    size: int
    at: float
    whole: bool


def look(layout: Layout, active: Collection[str] = (), *, budget_s: float = BUDGET_S) -> DiskUse:
    """Return the current usage. `active` are the runs (12.3) that still write: they are measured but not stored."""
    known, lines = _load(layout)
    now = time.time()
    learned: dict[str, _Known] = {}
    totals = {"runs": 0, "snapshots": 0, "cache": 0}
    exact = True
    names = dict.fromkeys(_names(layout))
    stale = []
    for name in names:
        found = known.get(name)
        if found is None or ((name.startswith("cache/") or not found.whole) and not 0 <= now - found.at < _OLD_S):
            stale.append((found.at if found is not None else 0.0, name))
        else:
            totals[name[: name.index("/")]] += found.size
            exact = exact and found.whole
    deadline = time.monotonic() + budget_s
    for _, name in sorted(stale):
        found = known.get(name)
        if time.monotonic() < deadline:
            found = _measure(layout.home / name, time.monotonic() + _ONE_S)
            if name.removeprefix("runs/") not in active:
                learned[name] = found
        exact = exact and found is not None and found.whole
        totals[name[: name.index("/")]] += found.size if found is not None else 0
    if learned:
        _remember(layout, learned)
        if lines > 2 * len(names) + 100:
            _tidy(layout, {name: value for name, value in {**known, **learned}.items() if name in names})
    return DiskUse(totals["runs"], totals["snapshots"], totals["cache"], _free(layout), exact)


def remember(layout: Layout, run: object) -> None:
    """Measure and store the folder of a run that no longer writes, or from which files were deleted."""
    if (folder := layout.run_dir(run)).is_dir():
        _remember(layout, {f"runs/{run}": _measure(folder, time.monotonic() + _ONE_S)})


def _names(layout: Layout) -> Iterator[str]:
    """Yield what to measure, relative to the home: runs/12.3, snapshots/HASH, cache/data/NAME."""
    for folder in (layout.runs, layout.snapshots, *(layout.cache / part for part in _list(layout.cache))):
        above = folder.relative_to(layout.home).as_posix()
        yield from (f"{above}/{name}" for name in _list(folder))


def _list(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except OSError:
        return []


def _measure(path: Path, deadline: float) -> _Known:
    total = 0
    for count, status in enumerate(trash.walk(path)):
        if count and time.monotonic() > deadline:
            return _Known(total, time.time(), False)
        total += status.st_blocks * trash.BLOCK_BYTES
    return _Known(total, time.time(), True)


def _free(layout: Layout) -> int | None:
    try:
        return shutil.disk_usage(layout.home).free
    except OSError:
        return None


# -- stored sizes: one line "bytes, unix seconds, 1 if complete, name"; the last line for a name counts --


def _load(layout: Layout) -> tuple[dict[str, _Known], int]:
    known: dict[str, _Known] = {}
    try:
        lines = layout.sizes.read_text("utf-8", "surrogateescape").split("\n")
    except OSError:
        return known, 0
    for line in lines:
        try:
            size, at, whole, name = line.split(" ", 3)
            known[name] = _Known(int(size), float(at), whole == "1")
        except ValueError:  # torn by a full disk: measure again
            continue
    return known, len(lines)


def _text(found: dict[str, _Known]) -> bytes:
    told = (f"{of.size} {of.at:.0f} {int(of.whole)} {name}\n" for name, of in found.items() if "\n" not in name)
    return "".join(told).encode("utf-8", "surrogateescape")


def _remember(layout: Layout, found: dict[str, _Known]) -> None:
    with contextlib.suppress(OSError):  # read-only queue or full disk: measured again next time
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(layout.sizes, flags, 0o600)
        try:
            os.write(descriptor, _text(found))
        finally:
            os.close(descriptor)


def _tidy(layout: Layout, found: dict[str, _Known]) -> None:
    with contextlib.suppress(OSError):
        if layout.sizes.stat().st_size < _TIDY_BYTES:
            return
        partial = layout.sizes.with_suffix(f".{os.getpid()}")
        partial.write_bytes(_text(found))
        partial.replace(layout.sizes)
