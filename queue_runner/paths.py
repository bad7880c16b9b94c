"""Paths of the queue's home, its contents, and the workloads and migrations shipped with this mpsq.

The home is never relative to the current folder: submit and worker must see the same queue wherever they start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from queue_runner.errors import MpsqError, UsageError

DEFAULT_LABEL = "dev.mpsq.worker"
"""Name of the worker's service, unless the setting service_label has another."""
_PACKAGE = Path(__file__).resolve().parent


class Below:
    """An attribute: the path of this name below the folder that another attribute of the object holds."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder, self._name = folder, name

    def __get__(self, owner: object, _type: type | None = None) -> Path:
        return _joined(getattr(owner, self._folder), self._name)


_joined: Callable[[Path, str], Path] = lru_cache(maxsize=256)(Path.__truediv__)


class Layout(Struct, frozen=True):
    """Paths inside one MPSQ_HOME. Constructing it does not touch the disk."""

    home: Path

    db = Below("home", "mpsq.db")
    config = Below("home", "config.toml")
    fifo = Below("home", "worker.fifo")
    snapshots_lock = Below("home", "snapshots.lock")
    merge_lock = Below("home", "merge.lock")
    runs = Below("home", "runs")
    set_aside = Below("runs", "set-aside")
    """Path of runs whose names others have been given, on the disk of the runs. Nothing removes it."""
    logs = Below("home", "logs")
    worker_log = Below("logs", "worker.log")
    backups = Below("home", "backups")
    snapshots = Below("home", "snapshots")
    cache = Below("home", "cache")
    shown_notes = Below("cache", "notes.json")
    """Path of the record of host/once_a_day.py."""
    blocks = Below("home", "blocks")
    """Path of what came back of blocks on boxes, which share no folder with this machine."""
    reserve = Below("home", "reserve")
    """Path of the file of queue_runner.host.reserve."""
    envs = Below("home", "envs")
    """Path of the environments of mpsq env."""
    workloads = Below("home", "workloads")
    """Path of the user's own workloads."""
    secrets = Below("home", "secrets")
    """Path of the files of --secret, by name."""
    words = Below("secrets", ".words")
    """Path of the secret words of jobs that earlier versions stored."""
    environments = Below("secrets", ".environments")
    """Path of the captured environments of jobs, which are in no database and no backup."""

    def run_dir(self, run_id: object) -> Path:
        """Return the folder of a run by its name, `12.3`."""
        return self.runs / str(run_id)


def home() -> Path:
    """Return the queue's home: MPSQ_HOME, else var/ of the checkout this code runs from, else the user's data folder.

    The path is absolute and need not exist. Raises: MpsqError when MPSQ_HOME is relative, or it is not valid UTF-8.
    """
    chosen = os.environ.get("MPSQ_HOME")
    place = Path(os.path.expanduser(chosen)) if chosen else home_of_checkout() or data_folder()  # noqa: PTH111
    if chosen and not place.is_absolute():
        hint = f"set it to an absolute path, such as {Path.cwd() / chosen}"
        raise MpsqError(f'MPSQ_HOME is a relative path: "{chosen}"', hint)
    try:
        str(place).encode()  # SQLite's own texts have it
    except UnicodeEncodeError:
        message = f"the path of the queue is not valid UTF-8: {os.fsencode(place)!r}"
        raise MpsqError(message, "set MPSQ_HOME to another folder") from None
    return place


def data_folder() -> Path:
    """Return the user's data folder of mpsq."""
    from platformdirs.unix import Unix  # deferred: every command needs the home, few get this far

    # ~/.local/share on macOS too: torch passes paths unquoted to the C++ compiler; "Application Support" has a space
    return Path(Unix("mpsq", appauthor=False).user_data_dir)


def launchd_log(label: str, user_home: Path) -> Path:
    """Return the log of a Mac's service: launchd opens it, which it cannot in every home of a queue."""
    return user_home / "Library" / "Logs" / "mpsq" / f"{'worker' if label == DEFAULT_LABEL else label}.log"


def layout() -> Layout:
    """Return the layout of `home()` without creating it. Raises: MpsqError as home, or if a file is in the way."""
    place = Layout(home())
    there = next((path for path in (place.home, *place.home.parents) if os.path.lexists(path)), place.home)
    if there.exists() and not there.is_dir():
        raise MpsqError(f"{there} is not a folder", "move it away, or set MPSQ_HOME to another folder")
    return place


def preflight_cache(run: str) -> str:
    """Return the name in cache/compile of the folder of a preflight, 12.0: it is thrown away at its end."""
    return f"preflight-{run}"


def home_of_checkout() -> Path | None:
    """Return var/ of the checkout, whose README.md git keeps; None for a wheel."""
    root = checkout()
    return None if root is None else root / "var"


def checkout() -> Path | None:
    """Return the root of the source checkout that this code runs from; None for a wheel."""
    root = _PACKAGE.parent
    try:
        project = (root / "pyproject.toml").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    ours = re.search(r'^name\s*=\s*"mpsq"\s*$', project, re.MULTILINE) is not None
    return root if ours and (root / "migrations").is_dir() else None


def jobs_dir() -> Path:
    """Return jobs/ of the checkout, or _jobs/ in the wheel: the workloads. Raises: MpsqError when neither exists."""
    return _beside("jobs")


def migrations_dir() -> Path:
    """Return Alembic's folder, migrations/ of the checkout or _migrations/ in the wheel. Raises: as jobs_dir."""
    return _beside("migrations")


def _beside(name: str) -> Path:
    root = checkout()
    folder = _PACKAGE / f"_{name}" if root is None else root / name
    if not folder.is_dir():
        raise MpsqError(f"this installation of mpsq lacks its {name}: {folder} does not exist", "reinstall mpsq")
    return folder


def expanded(text: str | Path) -> Path:
    """Return a path that a user gave, with the home of a leading ~. Raises: UsageError for ~user without a home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"{text} begins with the home of a user that does not exist", "write the whole path"
        ) from error
