"""What `mpsq gc` removes: `find` lists it without changing anything, `collect` removes it.

Results and files of a job that has not ended are never included. Files that may be under construction, such as a
snapshot of a running submit, are left alone while they are young.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import units
from queue_runner.control.retention import JobFiles, Keep
from queue_runner.errors import MpsqError
from queue_runner.host import failpoints, locks, trash
from queue_runner.model import PREFLIGHT
from queue_runner.paths import Layout, preflight_cache
from queue_runner.source import archive
from queue_runner.store import backup, merges, private_files, read, removal
from queue_runner.store.engine import Engine, looking, open_engine, writing
from queue_runner.store.read import tuples
from queue_runner.workloads.venvs import RECORD

YOUNG_S = 3600.0
"""Minimum age of files without a row in the database: no submit takes nearly as long."""
PREPARED_S = 30 * 86_400.0
"""Minimum age of a file that was prepared for runs."""
KEPT = frozenset({"spec.json", "warden", "warden.lock"})
"""Files kept of a run's folder: the question, the ending, and a lock file, which is never unlinked. All are small."""
LOCK_WAIT_S = 5.0
"""How long to wait for a submitter that stores a snapshot."""
_BATCH = 100
"""Number of items set aside in one transaction: it delays the worker by a few milliseconds."""
_RUN = re.compile(r"(\d{1,18})\.(\d{1,9})")
_HASH = re.compile(r"[0-9a-f]{64}")

Stuck = Callable[[str], None]


class Item(Struct, frozen=True):
    """One thing to remove. `kind` is run, deleted, orphan, snapshot, cache, backup, merge or leftover; `key` is a run's
    id, the name of a file, or the hash of a bundle."""

    kind: str
    name: str
    reason: str
    size_bytes: int
    key: int | str
    paths: tuple[Path, ...]
    job: int | None = None


def _item(kind: str, path: Path, reason: str, name: str = "") -> Item:
    return Item(kind, name or path.name, reason, trash.used_bytes(path), path.name, (path,))


# -- find ------------------------------------------------------------------------------------------------------------


_JOBS = """
SELECT job_id, deleted_at, max(ended_at) AS ended_at, group_concat(run_id) AS run_ids, group_concat(number) AS numbers
FROM v_run WHERE kind <> 'import' GROUP BY job_id
HAVING sum(state <> 'DONE') = 0
AND sum(run_id IN (SELECT resumed_from FROM runs WHERE state <> 'DONE' AND resumed_from IS NOT NULL)) = 0
"""
"""Jobs without a waiting or running run, and whose checkpoints no such run resumes from."""


def find(layout: Layout, keep: Keep, *, keep_backups: int, now: float) -> list[Item]:
    """Find everything that these rules allow to remove. Raises: MpsqError if there is no queue."""
    items = list(_leftovers(layout, now))
    folders = sorted(path for path in _entries(layout.runs) if _RUN.fullmatch(path.name))  # before the rows are read
    with read.reading(layout.db) as connection:
        items += (runs := list(_runs(layout, connection, keep, now)))
        known = set(_column(connection, "SELECT job_id || '.' || number FROM v_run"))
        for path in folders:
            if path.name not in known and _is_old(path, now):
                items.append(_item("orphan", path, "its run is not in the database"))
        used = archive.needed(layout.snapshots, map(str, _column(connection, removal.REFERENCED)))
        for path in sorted(_entries(layout.snapshots)):
            if _HASH.fullmatch(path.name) and path.name not in used and _is_old(path, now):
                items.append(_item("snapshot", path, "no job refers to it", path.name[:12]))
        items += _caches(layout, connection, {item.job for item in runs if item.kind == "run"})
        for merge in merges.abandoned(partial(tuples, connection), now):
            name, reason = merge.bundle_hash[:12], "its import was interrupted more than a day ago"
            items.append(Item("merge", name, reason, 0, merge.bundle_hash, ()))
    for path in backup.stored(layout.backups)[:-keep_backups]:
        items.append(_item("backup", path, f"older than the {keep_backups} newest"))
    return items


def _column(connection: sqlite3.Connection, sql: str) -> list[str | int]:
    return [value for row in read.tuples(connection, sql) for value in row]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_old(path: Path, now: float, age_s: float = YOUNG_S) -> bool:
    try:
        return abs(now - path.lstat().st_mtime) > age_s
    except OSError:
        return False


def _leftovers(layout: Layout, now: float) -> Iterator[Item]:
    """Yield the remains of a removal, copy, backup or construction that was killed, and the prepared values of runs of
    long ago: a run without its file computes them anew."""
    for folder in (layout.runs, layout.snapshots, layout.cache / "compile", layout.backups, layout.envs):
        for path in sorted(_entries(folder)):
            name = f"{folder.name}/{path.name}"
            if path.name.startswith(trash.TRASH):
                yield _item("leftover", path, "left by an interrupted removal", name)
            elif (path.name.startswith(".partial-") or path.suffix == ".partial") and _is_old(path, now):
                yield _item("leftover", path, "left by an interrupted copy", name)
    for path in sorted(_entries(layout.envs)):
        is_whole = path.name.startswith(".") or (path / RECORD).exists()
        if not is_whole and _is_old(path, now) and not locks.is_held(layout.envs / f".{path.name}.lock"):
            yield _item("leftover", path, "an incomplete environment", f"envs/{path.name}")
    for path in sorted(_entries(layout.cache / "prepared")):
        if _is_old(path, now, PREPARED_S):
            yield _item("leftover", path, "prepared for runs that ended long ago", f"prepared/{path.name}")


def _runs(layout: Layout, connection: sqlite3.Connection, keep: Keep, now: float) -> Iterator[Item]:
    """Yield the folders of deleted jobs, and the files of ended jobs that no rule keeps."""
    by_job: dict[int, list[Item]] = {}
    ended = []
    for job, deleted_at, ended_at, run_ids, numbers in read.tuples(connection, _JOBS).fetchall():
        for run_id, number in zip(run_ids.split(","), numbers.split(","), strict=True):
            folder = layout.runs / f"{job}.{number}"
            if deleted_at is not None:
                if folder.exists() or folder.is_symlink():
                    size = trash.used_bytes(folder)
                    yield Item("deleted", folder.name, "its job was deleted", size, int(run_id), (folder,), job)
            elif paths := tuple(sorted(path for path in _entries(folder) if path.name not in KEPT)):
                item = Item("run", folder.name, "", trash.used_bytes(*paths), int(run_id), paths, job)
                by_job.setdefault(job, []).append(item)
        if job in by_job:
            ended.append(JobFiles(job, ended_at or 0.0, sum(item.size_bytes for item in by_job[job])))
    for job_id, reason in sorted(keep.dropped(ended, now).items()):
        yield from (replace(item, reason=reason) for item in by_job[job_id])


def _caches(layout: Layout, connection: sqlite3.Connection, dropped: Collection[int | None]) -> Iterator[Item]:
    """Yield compiler caches that only jobs without files and ended preflights used."""
    jobs = read.tuples(connection, "SELECT id, substr(spec_hash, 1, 16) FROM jobs WHERE deleted_at IS NULL")
    needed = {prefix for job_id, prefix in jobs if job_id not in dropped}
    preflights = _column(connection, f"SELECT job_id FROM runs WHERE number = {PREFLIGHT} AND state <> 'DONE'")
    needed |= {preflight_cache(f"{job_id}.{PREFLIGHT}") for job_id in preflights}
    for path in sorted(_entries(layout.cache / "compile")):
        if not path.name.startswith(".") and path.name not in needed:
            yield _item("cache", path, "compiled for jobs whose files are removed")


# -- remove ----------------------------------------------------------------------------------------------------------


def collect(layout: Layout, items: Sequence[Item], stuck: Stuck) -> list[Item]:
    """Remove `items`. Returns those removed; `stuck` is called with a sentence for each that could not be removed.

    Each item that a job may need is checked again in the transaction, or under the lock, that frees it. Its files are
    first set aside by a rename, so that a job that starts a moment later finds all of them or none. The next gc removes
    what a crash leaves in the trash.

    Raises: MpsqError when another gc is running, or the store refuses.
    """
    lock = locks.try_lock(layout.home / "gc.lock")
    if lock is None:
        raise MpsqError("another mpsq gc is running", "wait until it ends")
    engine = open_engine(layout.db, check=False)
    by_kind: dict[str, list[Item]] = {}
    for item in items:
        by_kind.setdefault(item.kind, []).append(item)
    removed: list[Item] = []
    with lock:
        for kind in ("leftover", "orphan", "backup"):
            removed += [item for item in by_kind.get(kind, ()) if _remove(item.name, item.paths, stuck)]
        for kind in ("deleted", "run", "cache"):
            removed += _remove_unneeded(layout, engine, by_kind.get(kind, []), stuck)
        removed += _remove_snapshots(layout, engine, by_kind.get("snapshot", []), stuck)
        private_files.forget_secrets(engine, layout)
        removed += _undo_merges(layout, engine, by_kind.get("merge", []), stuck)
    engine.dispose()
    return removed


def _remove(name: str, paths: Sequence[Path], stuck: Stuck) -> bool:
    try:
        trash.remove_gently(paths)
    except OSError as error:
        stuck(f"{name}: {error.filename or ''}: {error.strerror or error}")
        return False
    return True


def _remove_unneeded(layout: Layout, engine: Engine, items: Sequence[Item], stuck: Stuck) -> Iterator[Item]:
    """Remove those of `items`, which are all of one kind, that no job needs."""
    for start in range(0, len(items), _BATCH):
        batch = items[start : start + _BATCH]
        is_cache = batch[0].kind == "cache"
        aside: list[Path] = []
        removed = []
        with writing(engine) as connection:
            if is_cache:
                free = {item.key for item in batch if removal.cache_is_free(connection, str(item.key))}
            else:
                run_ids = [int(item.key) for item in batch]
                free = {*removal.removable(connection, run_ids, deleted=batch[0].kind == "deleted")}
            for item in batch:
                folder = layout.cache / "compile" if is_cache else layout.runs
                if item.key in free and _set_aside(folder, item, aside, stuck):
                    removed.append(item)
                    if item.kind == "run" and item.job is not None:
                        note = f"{units.size(item.size_bytes)} of logs and checkpoints were removed: {item.reason}"
                        removal.note_files_removed(connection, int(item.key), item.job, note)
        failpoints.reach("gc.aside")
        _remove("compiler caches" if is_cache else "runs", aside, stuck)
        yield from removed


def _set_aside(folder: Path, item: Item, aside: list[Path], stuck: Stuck) -> bool:
    try:
        aside.append(trash.set_aside(folder, item.paths))
    except FileNotFoundError:
        return False  # another process was first
    except OSError as error:
        stuck(f"{item.name}: {error.strerror or error}")
        return False
    return True


def _undo_merges(layout: Layout, engine: Engine, items: Sequence[Item], stuck: Stuck) -> Iterator[Item]:
    """Remove what interrupted merges have stored, and nobody sees."""
    if not items:
        return
    if (lock := locks.try_lock(layout.merge_lock)) is None:
        stuck("interrupted imports: mpsq import is running; the next gc removes them")
        return
    with lock:
        for item in items:
            with looking(engine) as connection:
                merge = merges.find(connection, str(item.key))
            if merge is not None:
                merges.undo(engine, merge)
                yield item


def _remove_snapshots(layout: Layout, engine: Engine, items: Sequence[Item], stuck: Stuck) -> list[Item]:
    """Remove snapshots under the lock that a submitter shares until its jobs are stored."""
    if not items:
        return []
    if (lock := locks.alone(layout.snapshots_lock, LOCK_WAIT_S)) is None:
        stuck("snapshots: mpsq submit is running; the next gc checks them")
        return []
    aside: list[Path] = []
    with lock:
        with writing(engine) as connection:
            free = set(removal.forget_snapshots(connection, [str(item.key) for item in items]))
        remaining = {path.name for path in _entries(layout.snapshots)} - free
        free -= archive.needed(layout.snapshots, remaining)
        removed = [item for item in items if item.key in free and _set_aside(layout.snapshots, item, aside, stuck)]
    _remove("snapshots", aside, stuck)
    return removed
