"""What the queue takes of the disk, without walking it each time.

A finished run's folder, a snapshot and a folder of the cache are measured once and remembered, a line each, in a file
of the home. A look lists the names and adds up what is known; of the rest it measures as much as its time allows, and
says so when that was not all. Sizes are of the blocks in use, as `du` has them.
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
"""The longest that one folder is measured; of a larger one a lower bound is kept, and tried again when it is old."""
_OLD_S = 600.0
"""A cache grows: its folders are measured again after so long."""
_TIDY_BYTES = 1 << 17
"""The file is written anew when it is larger than this and holds mostly what has been superseded."""


@dataclass(frozen=True)
class DiskUse:
    """Bytes; `exact` is False where not all was measured, and the first three are lower bounds."""

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
    """What is in use now. `active` are the runs (12.3) that still write: they are measured and not remembered."""
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
    """Measure the folder of a run that writes no more, or of which something was deleted."""
    if (folder := layout.run_dir(run)).is_dir():
        _remember(layout, {f"runs/{run}": _measure(folder, time.monotonic() + _ONE_S)})


def _names(layout: Layout) -> Iterator[str]:
    """What is measured, relative to the home: runs/12.3, snapshots/HASH, cache/data/NAME."""
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


# -- what is remembered: "bytes, unix seconds, 1 where it is all of it, name" a line; the last line of a name counts --


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
        except ValueError:  # torn by a full disk: it is measured again
            continue
    return known, len(lines)


def _text(found: dict[str, _Known]) -> bytes:
    told = (f"{of.size} {of.at:.0f} {int(of.whole)} {name}\n" for name, of in found.items() if "\n" not in name)
    return "".join(told).encode("utf-8", "surrogateescape")


def _remember(layout: Layout, found: dict[str, _Known]) -> None:
    with contextlib.suppress(OSError):  # a queue that may only be read, or a full disk: it is measured again
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
