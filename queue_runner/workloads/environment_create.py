"""Creation and removal of the environments of `mpsq env`: a venv with the packages requested from pip, and a record.

An environment exists when its record does, which is written last. An interrupted creation leaves nothing; the remains
of a killed one are removed by the next. An environment that a job still needs cannot be removed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from queue_runner.atomic_file import replacing
from queue_runner.errors import MpsqError, UsageError
from queue_runner.host import locks, trash
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.workloads import environments, pip_install
from queue_runner.workloads.environments import RECORD, Venv

_TOOLS = frozenset({"pip", "setuptools", "wheel"})
"""Packages that come with a venv and affect no result."""


def create(
    layout: Layout,
    name: str,
    pip: Sequence[str],
    python: str | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> Venv:
    """Create a venv from `python` (ours when None) and install `pip`, arguments of `pip install`. `on_start` is called
    after all checks, before the slow part.

    Raises: UsageError for an invalid or existing name and for options of pip that install outside the venv; MpsqError
    with the last output lines of venv or pip, after everything has been removed.
    """
    if not environments.NAME.fullmatch(name):
        raise UsageError(f'an environment cannot be named "{name}"', "use letters, digits, dots, dashes and _")
    words = list(pip)
    pip_install.refuse_elsewhere(words)
    base = _base(python)
    layout.envs.mkdir(mode=0o700, exist_ok=True)
    folder = layout.envs / name
    with _making(layout, name) as lock, _ended_gently():
        if (folder / RECORD).exists():
            raise UsageError(f'environment "{name}" already exists', f"mpsq env remove {name}, or choose another name")
        if folder.is_symlink() or folder.exists():
            trash.remove(folder)  # incomplete, from a killed process
        on_start()
        try:
            return _make(Venv(name, folder), base, words, lock)
        except BaseException:
            with contextlib.suppress(OSError):
                trash.remove(folder)
            raise


def remove(layout: Layout, name: str) -> Path:
    """Remove an environment and return its former folder.

    Raises: UsageError when there is none; MpsqError when a schedule or a waiting or running job needs it, or it cannot
    be removed.
    """
    folder = layout.envs / name
    incomplete = environments.NAME.fullmatch(name) and folder.is_dir() and not (folder / RECORD).exists()
    if not incomplete:
        folder = _known(layout, name)
    with _making(layout, name), _alone(layout):
        scheduled, users = _needed_by(layout, name, folder)
        if scheduled:
            raise MpsqError(
                f'schedule "{scheduled[0]}" submits to environment "{name}"', f"mpsq schedule remove {scheduled[0]}"
            )
        if users:
            listed = ", ".join(map(str, users[:5])) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
            raise MpsqError(
                f'environment "{name}" is needed by {"jobs" if len(users) > 1 else "job"} {listed}, not ended yet',
                f"wait until they end, or run mpsq cancel {' '.join(map(str, users[:5]))}",
            )
        try:
            removed = trash.set_aside(layout.envs, [folder])
        except OSError as error:
            raise MpsqError(f"{folder} cannot be removed: {error.strerror}", "fix its permissions") from error
    with contextlib.suppress(OSError):  # already renamed; gc finishes the removal
        trash.remove(removed)
    return folder


def _known(layout: Layout, name: str) -> Path:
    try:
        return environments.find(layout, name).folder
    except UsageError:
        raise
    except MpsqError:  # an unreadable record is removed like any other
        return layout.envs / name


def _needed_by(layout: Layout, name: str, folder: Path) -> tuple[list[str], list[int]]:
    """Return the schedules that name it, and the unfinished jobs that use it, by its name or its interpreter's path."""
    if not read.is_there(layout.db):
        return [], []
    of_schedules = "SELECT name, command_json FROM schedules ORDER BY id"
    of_jobs = (
        "SELECT DISTINCT job_id FROM v_run WHERE state <> 'DONE' AND (json_extract(spec_json, '$.env_name') = ?"
        " OR substr(json_extract(spec_json, '$.python'), 1, ?) = ?) ORDER BY job_id"
    )
    inside = f"{folder}/"
    with read.reading(layout.db) as connection:
        rows = list(connection.execute(of_schedules))
        users = [int(row["job_id"]) for row in connection.execute(of_jobs, [name, len(inside), inside])]
    named = [str(row["name"]) for row in rows if name in _environments_of(json.loads(row["command_json"]))]
    return named, users


def _environments_of(words: Sequence[str]) -> set[str]:
    """Return the environments that a command line of mpsq submit names with --env-name."""
    options = words[: words.index("--")] if "--" in words else words
    texts = [word for before, word in zip(["", *options], options, strict=False) if before == "--env-name"]
    texts += [word.removeprefix("--env-name=") for word in options if word.startswith("--env-name=")]
    return {name.strip() for text in texts for name in text.split(",")}


@contextlib.contextmanager
def _making(layout: Layout, name: str) -> Iterator[locks.Lock]:
    lock = locks.try_lock(layout.envs / f".{name}.lock")
    if lock is None:
        raise MpsqError(f'environment "{name}" is being created or removed by another mpsq', "wait until it ends")
    with lock:
        yield lock


@contextlib.contextmanager
def _ended_gently() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: incomplete files are removed first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _alone(layout: Layout) -> Iterator[None]:
    """Exclude every submit, which looks up its environments under the same lock."""
    if (lock := locks.alone(layout.snapshots_lock, 30.0)) is None:
        raise MpsqError("another mpsq submit or mpsq gc has been running for 30 s", "try again when it has ended")
    with lock:
        yield


def _base(python: str | None) -> str:
    executable = shutil.which(str(Path(python).expanduser()) if python else sys.executable)
    if executable is None:
        raise UsageError(f'there is no interpreter "{python}"', "--python takes the path of a Python interpreter")
    return str(Path(executable).absolute())


def _make(venv: Venv, base: str, words: Sequence[str], lock: locks.Lock) -> Venv:
    with tempfile.TemporaryFile() as log:
        pip_install.run([base, "-m", "venv", str(venv.folder)], log, lock, "the venv cannot be created")
        if not venv.python.exists():
            raise UsageError(
                f"{base} did not create a venv: it is not a Python interpreter",
                "--python takes a Python 3 that has the module venv",
            )
        if words:
            install = [str(venv.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *words]
            pip_install.run(install, log, lock, f"pip could not install {pip_install.redacted(words)}")
        version, packages = pip_install.packages(venv.python)
    made = Venv(
        venv.name,
        venv.folder,
        version,
        tuple(pip_install.without_password(word) for word in words),
        {name: text for name, text in packages.items() if name not in _TOOLS},
        time.time(),
    )
    with replacing(venv.folder / RECORD, durable=False) as partial:
        partial.write_text(made.record(), encoding="utf-8")
    return made
