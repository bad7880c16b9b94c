"""Make and remove environments of `mpsq env`: a venv with what pip was told to put there, and a record of it.

An environment is there when its record is, which is written last; whatever ends the making before, nothing is left, and
what a killed maker leaves is removed by the next one. Nothing can be removed that a job still needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from queue_runner import discard, locks, venvs
from queue_runner.errors import MpsqError, UsageError
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.venvs import RECORD, Venv

_SHOWN_LINES = 8
"""Of pip's output, the last: its error is there."""
_ELSEWHERE = ("-t", "--target", "--user", "--prefix", "--root", "--python", "--dry-run", "-e", "--editable")
"""Options of pip that put packages into another place than the environment, or none at all. What is editable changes
after it was recorded."""
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
_TOOLS = frozenset({"pip", "setuptools", "wheel"})
"""Come with a venv, and change no number."""

_PACKAGES = """
import importlib.metadata, json, platform, re
found = {}
for one in importlib.metadata.distributions():
    name = one.metadata["Name"]
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), one.version)
print(json.dumps([platform.python_version(), dict(sorted(found.items()))]))
"""

_REMEDIES = (
    (r"No matching distribution found|Could not find a version", "see what versions there are: an index of its own is"
     " named by --index-url, and pre-releases by --pre, inside of --pip"),
    (r"Temporary failure|Name or service|Connection|timed out|Max retries", "see whether that index can be reached from"
     " here; without a network: --no-index --find-links FOLDER inside of --pip"),
    (r"No space left|Disk quota", "free some space: torch with CUDA takes several GiB"),
    (r"ensurepip", "this Python has no venv: install it (apt install python3-venv), or name another by --python"),
    (r"conflict|ResolutionImpossible", "let pip choose: give fewer exact versions"),
    (r"not a supported wheel|Requires-Python|requires a different Python", "take another interpreter: --python PATH"),
)  # fmt: skip


def create(layout: Layout, name: str, pip: Sequence[str], python: str | None = None) -> Venv:
    """Make a venv from `python` (ours when None) and install what `pip` says, words as `pip install` takes them.

    Raises: UsageError for a name that cannot be or is taken and for options of pip that leave the venv; MpsqError with
    the last lines of what venv or pip said, after which there is nothing left.
    """
    if not venvs.NAME.fullmatch(name):
        raise UsageError(f'an environment cannot be named "{name}"', "letters, digits, dots and dashes, 64 at most")
    words = list(pip)
    _refuse_elsewhere(words)
    base = _base(python)
    layout.envs.mkdir(mode=0o700, exist_ok=True)
    folder = layout.envs / name
    with _making(layout, name) as lock, _ended_gently():
        if (folder / RECORD).exists():
            raise UsageError(f'there is an environment "{name}" already', f"mpsq env remove {name}, or another name")
        if folder.is_symlink() or folder.exists():
            discard.remove(folder)  # half made, by one that was killed
        try:
            return _make(Venv(name, folder), base, words, lock)
        except BaseException:
            with contextlib.suppress(OSError):
                discard.remove(folder)
            raise


def remove(layout: Layout, name: str) -> Path:
    """Remove an environment. Returns the folder that it was.

    Raises: UsageError when there is none; MpsqError when a job that waits or runs needs it, or it cannot be removed.
    """
    folder = layout.envs / name
    half_made = venvs.NAME.fullmatch(name) and folder.is_dir() and not (folder / RECORD).exists()
    if not half_made:
        folder = _known(layout, name)
    with _making(layout, name), _alone(layout):
        users = _users(layout, name, folder)
        if users:
            listed = ", ".join(map(str, users[:5])) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
            raise MpsqError(
                f'environment "{name}" is needed by {"jobs" if len(users) > 1 else "job"} {listed}, not yet ended',
                f"wait for what runs, or mpsq cancel {' '.join(map(str, users[:5]))}",
            )
        try:
            trash = discard.set_aside(layout.envs, [folder])
        except OSError as error:
            raise MpsqError(f"{folder} cannot be removed: {error.strerror}", "mend its permissions") from error
    with contextlib.suppress(OSError):  # out of sight already; gc finishes it
        discard.remove(trash)
    return folder


def _known(layout: Layout, name: str) -> Path:
    try:
        return venvs.find(layout, name).folder
    except UsageError:
        raise
    except MpsqError:  # a record that nobody can read is removed like any other
        return layout.envs / name


def _users(layout: Layout, name: str, folder: Path) -> list[int]:
    """The jobs that have not ended and run in it: by its name, or by its interpreter's path."""
    if not layout.db.exists():
        return []
    sql = (
        "SELECT DISTINCT job_id FROM v_run WHERE state <> 'DONE' AND (json_extract(spec_json, '$.env_name') = ?"
        " OR substr(json_extract(spec_json, '$.python'), 1, ?) = ?) ORDER BY job_id"
    )
    inside = f"{folder}/"
    with read.reading(layout.db) as connection:
        return [int(row["job_id"]) for row in connection.execute(sql, [name, len(inside), inside])]


@contextlib.contextmanager
def _making(layout: Layout, name: str) -> Iterator[locks.Lock]:
    lock = locks.try_lock(layout.envs / f".{name}.lock")
    if lock is None:
        raise MpsqError(f'environment "{name}" is just being made or removed by another mpsq', "wait for that to end")
    with lock:
        yield lock


@contextlib.contextmanager
def _ended_gently() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: what is half made is removed first."""
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
    """Apart from every submit: it looks its environments up under the same lock."""
    deadline = time.monotonic() + 30.0
    while (lock := locks.try_lock(layout.snapshots_lock)) is None:
        if time.monotonic() > deadline:
            raise MpsqError("somebody has been submitting or collecting for 30 s", "try again when that has ended")
        time.sleep(0.01)
    with lock:
        yield


def _refuse_elsewhere(words: Sequence[str]) -> None:
    for word in words:
        option = word.partition("=")[0]
        if option in _ELSEWHERE:
            raise UsageError(f"--pip cannot have {option}", "packages go into the environment, as they are now")


def _base(python: str | None) -> str:
    found = shutil.which(str(Path(python).expanduser()) if python else sys.executable)
    if found is None:
        raise UsageError(f'there is no interpreter "{python}"', "--python names a python that can be run")
    return str(Path(found).absolute())


def _make(venv: Venv, base: str, words: Sequence[str], lock: locks.Lock) -> Venv:
    with tempfile.TemporaryFile() as log:
        _run([base, "-m", "venv", str(venv.folder)], log, lock, "the venv cannot be made")
        if words:
            install = [str(venv.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *words]
            _run(install, log, lock, f"pip could not install {redacted(words)}")
        version, packages = _packages(venv)
    made = Venv(
        venv.name,
        venv.folder,
        version,
        tuple(_PASSWORD.sub("", word) for word in words),
        {name: text for name, text in packages.items() if name not in _TOOLS},
        time.time(),
    )
    partial = venv.folder / f".{RECORD}"
    partial.write_text(made.record(), encoding="utf-8")
    partial.rename(venv.folder / RECORD)
    return made


def redacted(words: Sequence[str]) -> str:
    """A command line's words as they may be shown: without the passwords of addresses."""
    return shlex.join(_PASSWORD.sub("", word) for word in words)


def _run(argv: Sequence[str], log: IO[bytes], lock: locks.Lock, failed: str) -> None:
    """Run a command whose end is shown if it fails, and all that it starts: none of it outlives an interruption. It
    holds the lock as well: if we are killed it may go on, and nobody makes or removes the environment meanwhile."""
    log.seek(0)
    log.truncate()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "MPSQ_", "PIP_USER"))}
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            pass_fds=[lock.fd],
            start_new_session=True,
        )
    except OSError as error:
        raise MpsqError(f"{failed}: {argv[0]} cannot be run: {error.strerror}", "name another by --python") from error
    try:
        code = child.wait()
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)  # not reaped yet: the group is still its own
        child.wait()
        raise
    if code:
        log.seek(0)
        lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        told = _PASSWORD.sub("", "\n".join(f"  {line}" for line in lines[-_SHOWN_LINES:]))
        remedy = next((fix for sign, fix in _REMEDIES if re.search(sign, "\n".join(lines))), "mend what it says")
        raise MpsqError(f"{failed}:\n{told}", f"{remedy}; nothing is left of it")


def _packages(venv: Venv) -> tuple[str, dict[str, str]]:
    """The version of its Python, and those of its packages by normalised name."""
    done = subprocess.run(
        [str(venv.python), "-I", "-c", _PACKAGES], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    try:
        version, packages = json.loads(done.stdout)
    except ValueError as error:
        raise MpsqError(f"{venv.python} does not say what is installed", "try another Python: --python") from error
    return version, packages
