"""Doctor's checks of the queue itself: its folder, database, locks, worker, service, hooks and backups."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from queue_runner import config_file, units
from queue_runner.checks import Check, warn_if
from queue_runner.errors import MpsqError, OwnershipError
from queue_runner.host import child, locks, ownership, protected
from queue_runner.host.filesystem import nearest_existing, network_kind
from queue_runner.host.home import MIN_FREE_BYTES
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec
from queue_runner.store.backup import problems, remedy, stored
from queue_runner.store.read import HEAD, lost, reading, remedy_of_schema, schema_revision, waiting_specs
from queue_runner.submit.notes import paths_read

_NAMED = 3
_ASKED = 100
"""Jobs whose folders are asked whether they answer."""
_STALE_S = 7 * 86400.0
"""Warn when the newest backup lacks more than a week of changes."""
_WAL_BYTES = 256 << 20
"""A log of this size means no checkpoint for a long time: the worker makes one every five minutes."""
_LOW_BYTES = 2 << 30
_RETURNING = (3, 35)  # UPDATE ... RETURNING
_SHELL_WORDS = frozenset({"if", "for", "while", "case", "exit", "cd", "export", "eval", "exec", "trap", ".", ":"})


def of_queue(layout: Layout) -> Iterator[Check]:
    """Run all checks of the queue at `layout`."""
    yield from home(layout)
    yield from answering(layout)
    yield from guarded(layout)
    yield from store(layout)
    yield sqlite_version()
    yield lock_folder()
    yield worker(layout)
    yield service(layout)
    yield from hooks(layout)
    yield backups(layout)


def home(layout: Layout) -> Iterator[Check]:
    """Check that the queue's folder is local, writable, this user's alone, and has free space."""
    place = nearest_existing(layout.home)
    later = "" if layout.home.is_dir() else ", created by the first submit"
    if kind := network_kind(layout.home):
        yield Check(
            "home", "fail", f"{layout.home} is on a network file system ({kind})", "set MPSQ_HOME to a local folder"
        )
    elif not place.is_dir():
        yield Check("home", "fail", f"{place} is not a folder", "move it away, or set MPSQ_HOME to another folder")
    elif refused := _cannot_write(place):
        finding = f"{layout.home} cannot be {'created' if later else 'written'}: {refused}"
        yield Check("home", "fail", finding, "fix the permissions, or set MPSQ_HOME to a folder of your own")
        return
    elif error := _not_ours(layout):
        yield Check("home", "fail", error.message, error.hint)
    elif replaceable := ownership.replaceable(layout.home):
        finding = f"any user can replace {layout.home}, because any user may write {replaceable}"
        yield Check("home", "warn", finding, f"chmod o-w {replaceable}, or set MPSQ_HOME to a folder elsewhere")
    else:
        finding = f"{layout.home}{later}"
        fix = "set MPSQ_HOME to a path without a space: in an mpsq env there torch.compile fails on the CPU"
        yield warn_if(bool(re.search(r"\s", str(layout.home))), "home", finding, fix)
    free = shutil.disk_usage(place).free
    least = config_file.Config().min_free_bytes
    with contextlib.suppress(MpsqError):  # the settings have a check of their own
        least = config_file.load(layout.config).min_free_bytes
    verdict = "fail" if free < max(MIN_FREE_BYTES, least) else "warn" if free < _LOW_BYTES else "ok"
    fix = f"free some space: below {units.size(least)} (min_free_bytes) no run starts, and a run is stopped"
    yield Check("disk", verdict, f"{units.size(free)} free", fix)


def _not_ours(layout: Layout) -> OwnershipError | None:
    try:
        ownership.secure(layout)
        ownership.secure_runs(layout)
    except OwnershipError as error:
        return error
    return None


def answering(layout: Layout, limit_s: float = 3.0) -> Iterator[Check]:
    """Check that what waiting and running jobs read answers: a job in a folder that does not never begins."""
    texts: list[str] = []
    with contextlib.suppress(MpsqError), reading(layout.db) as connection:  # the store has a check of its own
        texts = waiting_specs(connection)[:_ASKED]
    if not texts:
        return
    try:
        unreachable = child.call(10 * limit_s, silent, texts, limit_s)
    except child.TookTooLong:
        unreachable = ["a folder of a waiting job"]
    named = f"no answer within {limit_s:.0f} s: " + ", ".join(unreachable[:_NAMED])
    fix = "reconnect the drive, or answer the prompt of macOS; mpsq cancel cancels the jobs that read it"
    yield warn_if(bool(unreachable), "folders of jobs", named if unreachable else "they answer", fix)


def silent(texts: Sequence[str], limit_s: float) -> list[str]:
    """Return the paths that these jobs read and that do not answer in time. For a child: its threads may stay."""
    asking: dict[str, str] = {}

    def ask(text: str) -> None:
        spec = JobSpec.from_json(text)
        asking[text] = spec.cwd
        for path in paths_read(spec):
            asking[text] = path
            os.path.exists(path)  # noqa: PTH110 - never raises
        del asking[text]

    threads = [threading.Thread(target=ask, args=[text], daemon=True) for text in texts]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    return sorted({*list(asking.values())})


def guarded(layout: Layout, *, system: str = sys.platform, user_home: Path | None = None) -> Iterator[Check]:
    """Check that nothing which the worker reads lies where macOS keeps programs in the background out."""
    if system != "darwin":
        return
    paths = [str(layout.home), sys.executable, os.path.realpath(".")]
    with contextlib.suppress(MpsqError), reading(layout.db) as connection:  # the store has a check of its own
        paths += [path for text in waiting_specs(connection) for path in paths_read(JobSpec.from_json(text))]
    places = list(protected.found(paths, system=system, user_home=user_home))
    named = units.listed(places, _NAMED)
    yield warn_if(bool(places), "protected folders", named or "the worker reads none", protected.REMEDY)


def _cannot_write(folder: Path) -> str | None:
    """Return why no folder can be made there, else None. Permissions alone are inconclusive: root has them in /proc."""
    try:
        with contextlib.suppress(FileNotFoundError):
            tempfile.TemporaryDirectory(prefix=".mpsq-doctor-", dir=folder).cleanup()
            return None
        return "no folder can be created there"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def store(layout: Layout) -> Iterator[Check]:
    """Check the database: its schema, its integrity, and the size of its log."""
    try:
        revision = schema_revision(layout.db)
        if revision is None:
            if error := lost(layout.db):
                raise error
            yield Check("store", "ok", "no queue yet; the first submit creates it")
            return
        damage = problems(layout.db, quick=True)
    except MpsqError as error:
        yield Check("store", "fail", error.message, error.hint or f"restore a backup of {layout.backups}")
        return
    if damage:
        yield Check("store", "fail", f"the database is damaged: {damage[0]}", remedy(layout))
    elif revision != HEAD:
        fix = remedy_of_schema(revision)
        yield Check("store", "fail", f"schema {revision}, this mpsq needs {HEAD}", fix)
    else:
        yield Check("store", "ok", f"sound, schema {revision}, {units.size(layout.db.stat().st_size)}")
    log = Path(f"{layout.db}-wal")
    size = log.stat().st_size if log.exists() else 0
    yield warn_if(
        size > _WAL_BYTES, "log of the store", units.size(size), "start a worker: only a worker checkpoints the log"
    )


def sqlite_version() -> Check:
    """Check that this Python's SQLite supports what the store needs."""
    finding = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < _RETURNING:
        return Check("sqlite", "fail", finding, "use a Python whose SQLite is 3.35 or newer")
    return Check("sqlite", "ok", finding)


def lock_folder() -> Check:
    """Check that the folder of locks is usable."""
    try:
        folder = locks.lock_dir()
    except MpsqError as error:
        return Check("locks", "fail", error.message, error.hint)
    if kind := network_kind(folder):
        return Check(
            "locks", "fail", f"{folder} is on a network file system ({kind})", "set MPSQ_LOCKS to a local folder"
        )
    apart = "; a queue with another MPSQ_LOCKS may run beside this one" if os.environ.get("MPSQ_LOCKS") else ""
    return Check("locks", "ok", f"{folder}{apart}")


def worker(layout: Layout) -> Check:
    """Check whether a worker runs the queue."""
    alive, pid = locks.worker(layout.home) if layout.home.is_dir() else (False, None)
    if alive:
        return Check("worker", "ok", f"process {pid}" if pid else "running")
    return Check("worker", "warn", "no worker runs: submitted jobs wait", locks.START_A_WORKER)


def service(layout: Layout) -> Check:
    """Check whether the worker is a service, and a healthy one."""
    from queue_runner.host.services import for_this_machine

    try:
        status = for_this_machine(layout, config_file.load(layout.config)).status()
    except MpsqError as error:
        return Check("service", "warn", error.message, error.hint)
    if status.problems:
        return Check("service", "warn", *status.problems[0])
    if not status.installed:
        return Check("service", "ok", "not installed; mpsq service install runs the worker at every login")
    return Check("service", "ok" if status.running else "warn", status.detail, "mpsq service install")


def hooks(layout: Layout) -> Iterator[Check]:
    """Check that the hooks in the settings can be called."""
    try:
        settings = config_file.load(layout.config)
    except MpsqError as error:
        yield Check("hooks", "warn", error.message, error.hint)
        return
    lines = {name: getattr(settings, f"hook_{name}") for name in ("done", "failed", "idle")}
    missing = [f"hook_{name}: {word}" for name, line in lines.items() if (word := _missing(line))]
    if missing:
        yield Check("hooks", "warn", f"no such program: {', '.join(missing)}", "correct the setting: mpsq config set")
    else:
        configured = ", ".join(name for name, line in lines.items() if line) or "none"
        yield Check("hooks", "ok", configured + ("; the worker's log has their output" if configured != "none" else ""))


def _missing(line: str) -> str | None:
    """Return the first word of a command line if it is a plain name or path of a program that does not exist."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None  # left to sh to report
    if not words or not re.fullmatch(r"[\w./+-]+", words[0]) or words[0] in _SHELL_WORDS:
        return None
    return None if shutil.which(words[0]) else words[0]


def backups(layout: Layout) -> Check:
    """Check whether there is a backup, and how old the newest is."""
    newest = next(reversed(stored(layout.backups)), None) if layout.backups.is_dir() else None
    if newest is None:
        return Check("backups", "ok", "none yet: the worker makes one while no run is active")
    age_s = max(time.time() - newest.stat().st_mtime, 0.0)
    stale = age_s > _STALE_S and layout.db.exists() and layout.db.stat().st_mtime - newest.stat().st_mtime > _STALE_S
    finding = f"the newest is {units.rough(age_s)} old"
    return warn_if(stale, "backups", finding, "mpsq db backup makes one; the worker log shows why it has not")
