"""Remove what gc_find.py has found. Each item is checked again in the transaction, or under the lock, that frees it.

Files are first set aside by a rename, so that a job that begins a moment later finds all of them or none; the trash is
then removed at the lowest priority. Trash that remains after a crash is removed by the next gc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from queue_runner import failpoints, units
from queue_runner.control.gc_find import Item
from queue_runner.errors import MpsqError
from queue_runner.host import locks, trash
from queue_runner.paths import Layout
from queue_runner.store import delete
from queue_runner.store.engine import Connection, Engine, open_engine, writing

LOCK_WAIT_S = 5.0
"""How long to wait for a submitter that stores a snapshot."""
_BATCH = 100
"""Number of runs whose files are set aside in one transaction: it delays the worker by a few milliseconds."""

Stuck = Callable[[str], None]


def collect(layout: Layout, items: Sequence[Item], stuck: Stuck) -> list[Item]:
    """Remove `items`. Returns those removed; `stuck` is called with a sentence for each that could not be removed.

    Raises: MpsqError when another gc is running, or the store refuses.
    """
    lock = locks.try_lock(layout.home / "gc.lock")
    if lock is None:
        raise MpsqError("another mpsq gc is running", "wait until it ends")
    engine = open_engine(layout.db, check=False)
    kinds: dict[str, list[Item]] = {}
    for item in items:
        kinds.setdefault(item.kind, []).append(item)
    gone: list[Item] = []
    with lock:
        for kind in ("leftover", "orphan", "backup"):
            gone += _removed(kinds.get(kind, ()), stuck)
        gone += _runs(layout, engine, kinds.get("deleted", []), stuck, deleted=True)
        gone += _runs(layout, engine, kinds.get("run", []), stuck, deleted=False)
        gone += _caches(layout, engine, kinds.get("cache", []), stuck)
        gone += _snapshots(layout, engine, kinds.get("snapshot", []), stuck)
        delete.forget_secrets(engine, layout)
    engine.dispose()
    return gone


def _removed(items: Iterable[Item], stuck: Stuck) -> Iterator[Item]:
    for item in items:
        if _remove(item.name, item.paths, stuck):
            yield item


def _remove(name: str, paths: Iterable[Path], stuck: Stuck) -> bool:
    try:
        trash.remove_gently(paths)
    except OSError as error:
        stuck(f"{name}: {error.filename or ''}: {error.strerror or error}")
        return False
    return True


def _runs(layout: Layout, engine: Engine, items: list[Item], stuck: Stuck, *, deleted: bool) -> Iterator[Item]:
    for start in range(0, len(items), _BATCH):
        batch = items[start : start + _BATCH]
        set_aside: list[Path] = []
        gone = []
        with writing(engine) as connection:
            free = delete.removable(connection, [int(item.key) for item in batch], deleted=deleted)
            for item in batch:
                if item.key in free and _set_aside(layout.runs, item, set_aside, stuck):
                    gone.append(item)
                    if not deleted:
                        _note(connection, item)
        failpoints.reach("gc.aside")
        _remove("runs", set_aside, stuck)
        yield from gone


def _note(connection: Connection, item: Item) -> None:
    assert item.job is not None
    said = f"{units.size(item.size_bytes)} of logs and checkpoints were removed: {item.reason}"
    delete.note_files_removed(connection, int(item.key), item.job, said)


def _set_aside(folder: Path, item: Item, set_aside: list[Path], stuck: Stuck) -> bool:
    try:
        set_aside.append(trash.set_aside(folder, item.paths))
    except FileNotFoundError:
        return False  # another process was first
    except OSError as error:
        stuck(f"{item.name}: {error.strerror or error}")
        return False
    return True


def _caches(layout: Layout, engine: Engine, items: list[Item], stuck: Stuck) -> Iterator[Item]:
    if not items:
        return
    set_aside: list[Path] = []
    with writing(engine) as connection:
        gone = [
            item
            for item in items
            if delete.cache_is_free(connection, str(item.key))
            and _set_aside(layout.cache / "compile", item, set_aside, stuck)
        ]
    _remove("compiler caches", set_aside, stuck)
    yield from gone


def _snapshots(layout: Layout, engine: Engine, items: list[Item], stuck: Stuck) -> Iterator[Item]:
    """Remove snapshots under the lock that a submitter shares from its look at the snapshots until its jobs are
    stored."""
    if not items:
        return
    if (lock := locks.alone(layout.snapshots_lock, LOCK_WAIT_S)) is None:
        stuck("snapshots: mpsq submit is running; the next gc checks them")
        return
    set_aside: list[Path] = []
    gone = []
    with lock:
        with writing(engine) as connection:
            free = set(delete.forget_snapshots(connection, [str(item.key) for item in items]))
        for item in items:
            if item.key in free and _set_aside(layout.snapshots, item, set_aside, stuck):
                gone.append(item)
    _remove("snapshots", set_aside, stuck)
    yield from gone
