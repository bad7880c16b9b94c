"""Find what `mpsq gc` would remove, and why, without changing anything. gc_remove.py removes it.

Nothing of a job that has not ended and no row of results is ever included. Files that may be under construction - a
snapshot by a submitter, a run's folder by a worker - are left alone while they are young.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from queue_runner.control.retention import Ended, Keep
from queue_runner.host import locks, trash
from queue_runner.model import PREFLIGHT
from queue_runner.paths import Layout, preflight_cache
from queue_runner.store import backup, read
from queue_runner.workloads.environments import RECORD

YOUNG_S = 3600.0
"""Minimum age of files without a row in the database: no submit takes nearly as long."""
KEPT = frozenset({"spec.json", "warden", "warden.lock"})
"""Files kept of a run's folder: the question, the ending, and a lock file, which is never unlinked. All are small."""
_RUN = re.compile(r"(\d{1,18})\.(\d{1,9})")
_HASH = re.compile(r"[0-9a-f]{64}")
_JOBS = """
SELECT job_id, deleted_at, max(ended_at) AS ended_at, group_concat(run_id) AS ids, group_concat(number) AS numbers
FROM v_run WHERE kind <> 'import' GROUP BY job_id
HAVING sum(state <> 'DONE') = 0
AND sum(run_id IN (SELECT resumed_from FROM runs WHERE state <> 'DONE' AND resumed_from IS NOT NULL)) = 0
"""


@dataclass(frozen=True)
class Item:
    """One thing to remove. `kind` is run, deleted, orphan, snapshot, cache, backup or leftover; `key` is a run's id, or
    the name of a file."""

    kind: str
    name: str
    reason: str
    size_bytes: int
    key: int | str
    paths: tuple[Path, ...]
    job: int | None = None


def find(layout: Layout, keep: Keep, *, keep_backups: int, now: float) -> list[Item]:
    """Find everything that these rules allow to remove. Raises: MpsqError if there is no queue."""
    leftovers = [*_leftovers(layout, now), *_incomplete(layout, now)]
    folders = sorted(path for path in _entries(layout.runs) if _RUN.fullmatch(path.name))  # before the rows are read
    with read.reading(layout.db) as connection:
        jobs = list(connection.execute(_JOBS))
        known = {row["run"] for row in connection.execute("SELECT job_id || '.' || number AS run FROM v_run")}
        found = [*_runs(layout, jobs, keep, now), *_orphans(folders, known, now)]
        dropped = {item.job for item in found if item.kind == "run"}
        found += [*_snapshots(layout, connection, now), *_caches(layout, connection, dropped)]
    return [*leftovers, *found, *_backups(layout, keep_backups)]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_old(path: Path, now: float) -> bool:
    try:
        return abs(now - path.lstat().st_mtime) > YOUNG_S
    except OSError:
        return False


def _leftovers(layout: Layout, now: float) -> Iterator[Item]:
    """Yield what an earlier removal, copy or backup left when it was killed."""
    for folder in (layout.runs, layout.snapshots, layout.cache / "compile", layout.backups, layout.envs):
        for path in sorted(_entries(folder)):
            removed = path.name.startswith(trash.TRASH)
            half = path.name.startswith(".partial-") or path.suffix == ".partial"
            if removed or (half and _is_old(path, now)):
                size = trash.used_bytes(path)
                why = "left by an interrupted removal" if removed else "left by an interrupted copy"
                yield Item("leftover", f"{folder.name}/{path.name}", why, size, path.name, (path,))


def _incomplete(layout: Layout, now: float) -> Iterator[Item]:
    """Yield environments whose construction was killed."""
    for path in sorted(_entries(layout.envs)):
        lock = layout.envs / f".{path.name}.lock"
        if path.name.startswith(".") or (path / RECORD).exists() or not _is_old(path, now) or locks.is_held(lock):
            continue
        size = trash.used_bytes(path)
        yield Item("leftover", f"envs/{path.name}", "an incomplete environment", size, path.name, (path,))


def _runs(layout: Layout, jobs: list[read.Row], keep: Keep, now: float) -> Iterator[Item]:
    ended = []
    files: dict[int, list[tuple[int, str, tuple[Path, ...], int]]] = {}
    for job in jobs:
        job_id = job["job_id"]
        for run_id, number in zip(job["ids"].split(","), job["numbers"].split(","), strict=True):
            folder = layout.runs / f"{job_id}.{number}"
            if job["deleted_at"] is not None:
                if folder.exists() or folder.is_symlink():
                    why = "its job was deleted"
                    yield Item("deleted", folder.name, why, trash.used_bytes(folder), int(run_id), (folder,), job_id)
            elif paths := tuple(sorted(path for path in _entries(folder) if path.name not in KEPT)):
                files.setdefault(job_id, []).append((int(run_id), folder.name, paths, trash.used_bytes(*paths)))
        if job_id in files:
            ended.append(Ended(job_id, job["ended_at"] or 0.0, sum(size for *_, size in files[job_id])))
    for job_id, why in sorted(keep.dropped(ended, now).items()):
        for run_id, name, paths, size in files[job_id]:
            yield Item("run", name, why, size, run_id, paths, job_id)


def _orphans(folders: list[Path], known: Collection[str], now: float) -> Iterator[Item]:
    for path in folders:
        if path.name not in known and _is_old(path, now):
            yield Item(
                "orphan", path.name, "its run is not in the database", trash.used_bytes(path), path.name, (path,)
            )


_REFERRED = (
    "SELECT snapshot_hash AS h FROM jobs UNION SELECT json_extract(spec_json, '$.tree') FROM jobs"
    " UNION SELECT tree_hash FROM snapshots WHERE hash IN (SELECT snapshot_hash FROM jobs)"
)
"""Names of folders of snapshots/: of workloads, and of the trees of commands."""


def _snapshots(layout: Layout, connection: sqlite3.Connection, now: float) -> Iterator[Item]:
    used = {row["h"] for row in connection.execute(_REFERRED)}
    for path in sorted(_entries(layout.snapshots)):
        if _HASH.fullmatch(path.name) and path.name not in used and _is_old(path, now):
            yield Item("snapshot", path.name[:12], "no job refers to it", trash.used_bytes(path), path.name, (path,))


def _caches(layout: Layout, connection: sqlite3.Connection, dropped: Collection[int | None]) -> Iterator[Item]:
    """Yield compiler caches of questions that no job with kept files asks any more, and of preflights that ended."""
    jobs = connection.execute("SELECT id, substr(spec_hash, 1, 16) AS prefix FROM jobs WHERE deleted_at IS NULL")
    needed = {row["prefix"] for row in jobs if row["id"] not in dropped} | {
        preflight_cache(f"{row['job_id']}.{PREFLIGHT}")
        for row in connection.execute("SELECT job_id FROM runs WHERE number = ? AND state <> 'DONE'", [PREFLIGHT])
    }
    for path in sorted(_entries(layout.cache / "compile")):
        if not path.name.startswith(".") and path.name not in needed:
            why = "compiled for jobs whose files are removed"
            yield Item("cache", path.name, why, trash.used_bytes(path), path.name, (path,))


def _backups(layout: Layout, keep: int) -> Iterator[Item]:
    for path in backup.stored(layout.backups)[:-keep]:
        yield Item("backup", path.name, f"older than the {keep} newest", trash.used_bytes(path), path.name, (path,))
