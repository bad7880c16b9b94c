"""Creation and removal of the environments of `mpsq env`: uv makes a venv and installs packages; a record lists them.

An environment exists when its record does, which is written last. An interrupted creation leaves nothing; the next
creation removes the remains of a killed one. An environment that a job still needs cannot be removed.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from queue_runner import units
from queue_runner.atomic_file import replacing
from queue_runner.errors import MpsqError, UsageError
from queue_runner.host import locks, torch_probe, trash
from queue_runner.host.command import ask
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.workloads import venvs
from queue_runner.workloads.venvs import RECORD, Venv

_TOOLS = frozenset({"pip", "setuptools", "wheel"})
"""Packages that affect no result."""
_ELSEWHERE = ("-t", "--target", "--prefix", "-p", "--python", "--system", "--dry-run", "-e", "--editable")
"""Options by which uv installs outside of the environment or not at all. Editable packages change after the record."""
_SHOWN_LINES = 8
"""Number of last lines shown of uv's output, which contain its error."""
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
_AS_PIP = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1", "UV_LINK_MODE": "copy"}
"""Variables by which uv does as pip: all indexes count, the system's certificates, files that no cache shares."""
_VARIABLES = {
    "index-url": "UV_INDEX_URL",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "require-hashes": "UV_REQUIRE_HASHES",
}
"""The variable of uv for each setting of pip (docs.astral.sh/uv/reference/environment)."""


def create(
    layout: Layout,
    name: str,
    words: Sequence[str],
    python: str | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> Venv:
    """Create a venv of `python` (ours when None) and install `words`, arguments of `uv pip install`. `on_start` is
    called after all checks, before the slow part.

    Raises: UsageError for an invalid or existing name and for options that install outside the venv; MpsqError
    without uv, or with the last lines of its output, after everything has been removed.
    """
    if not venvs.NAME.fullmatch(name):
        raise UsageError(f'an environment cannot be named "{name}"', "use letters, digits, dots, dashes and _")
    for word in words:
        option = word.partition("=")[0] if word.startswith("--") else word[:2]  # -t/tmp is -t, too
        if option in _ELSEWHERE:
            raise UsageError(
                f"--pip cannot contain {option}: packages are copied into the environment, not linked",
                f"leave out {option}",
            )
    base = torch_probe.find_interpreter(python)
    uv = shutil.which("uv") or shutil.which("uv", path=sysconfig.get_path("scripts"))
    if uv is None:
        raise MpsqError("mpsq env create needs uv", "pip install uv, or put it on PATH")
    layout.envs.mkdir(mode=0o700, exist_ok=True)
    venv = Venv(name, layout.envs / name)
    with _making(layout, name) as lock:
        if (venv.folder / RECORD).exists():
            raise UsageError(f'environment "{name}" already exists', f"mpsq env remove {name}, or choose another name")
        trash.remove(venv.folder)  # incomplete, from a killed process
        on_start()
        pip = _pip_settings()
        install = ["pip", "install", "--compile-bytecode", "--python", str(venv.python), *words]
        if pip.get("no-index", "").lower() in ("1", "true", "yes", "on") and "--no-index" not in words:
            install.append("--no-index")  # uv has no variable for it
        try:
            _run([uv, "venv", "--no-project", "--python", base, str(venv.folder)], pip, lock)
            if words:
                _run([uv, *install], pip, lock)
            made = Venv(
                name,
                venv.folder,
                _python_version(venv.folder),
                tuple(_PASSWORD.sub("", word) for word in words),
                _packages(venv.folder),
                time.time(),
            )
            with replacing(venv.folder / RECORD, durable=False) as partial:
                partial.write_text(made.record(), encoding="utf-8")
        except BaseException:
            with contextlib.suppress(OSError):
                trash.remove(venv.folder)
            raise
    return made


def remove(layout: Layout, name: str) -> Path:
    """Remove an environment and return its former folder.

    Raises: UsageError when there is none; MpsqError when a schedule or a waiting or running job needs it, or it cannot
    be removed.
    """
    folder = layout.envs / name
    if not (venvs.NAME.fullmatch(name) and folder.is_dir()):  # one without a readable record is removed, too
        venvs.find(layout, name)
    with _making(layout, name), _alone(layout):
        scheduled, users = _needed_by(layout, name, folder)
        if scheduled:
            raise MpsqError(
                f'environment "{name}" is needed by schedule "{scheduled[0]}"', f"mpsq schedule remove {scheduled[0]}"
            )
        if users:
            raise MpsqError(
                f'environment "{name}" is needed by job{"s" * (len(users) > 1)} {units.listed([*map(str, users)], 5)}',
                f"wait until they end, or run mpsq cancel {' '.join(map(str, users[:5]))}",
            )
        try:
            removed = trash.set_aside(layout.envs, [folder])
        except OSError as error:
            raise MpsqError(f"{folder} cannot be removed: {error.strerror}", "fix its permissions") from error
    with contextlib.suppress(OSError):  # already renamed; gc finishes the removal
        trash.remove(removed)
    return folder


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
        schedules = read.tuples(connection, of_schedules).fetchall()
        users = [job for (job,) in read.tuples(connection, of_jobs, [name, len(inside), inside])]
    named = [schedule for schedule, words in schedules if name in _environments_of(json.loads(words))]
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
def _alone(layout: Layout) -> Iterator[None]:
    """Exclude every submit, which looks up its environments under the same lock."""
    if (lock := locks.alone(layout.snapshots_lock, 30.0)) is None:
        raise MpsqError("another mpsq submit or mpsq gc has been running for 30 s", "try again when it has ended")
    with lock:
        yield


def _pip_settings() -> dict[str, str]:
    """Return pip's settings by name. A variable wins over its files, and there [install] over [global]."""
    settings = {}
    for line in sorted(
        (ask([sys.executable, "-P", "-m", "pip", "config", "list"]) or "").splitlines()
    ):  # "" without pip
        key, _, text = line.partition("=")
        if key.startswith(("global.", "install.")):
            settings[key.partition(".")[2]] = str(ast.literal_eval(text))
    for variable, value in os.environ.items():
        if variable.startswith("PIP_"):
            settings[variable.removeprefix("PIP_").lower().replace("_", "-")] = value
    return settings


def _run(argv: Sequence[str], pip: Mapping[str, str], lock: locks.Lock) -> None:
    """Run uv with pip's index and certificates. It also holds the lock: if we are killed it may continue, and the
    environment is neither created nor removed meanwhile."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    configured = {
        variable: (",".join if variable == "UV_FIND_LINKS" else " ".join)(pip[name].split())
        for name, variable in _VARIABLES.items()
        if name in pip
    }
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**_AS_PIP, **configured, **env},
            pass_fds=[lock.fd],
            check=False,
        )
    except OSError as error:
        raise MpsqError(f"{argv[0]} cannot be run: {error.strerror}", "install uv again") from error
    if done.returncode:
        lines = [line for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
        output = "\n".join(f"  {line}" for line in lines[-_SHOWN_LINES:])
        raise MpsqError(
            _PASSWORD.sub("", f"{shlex.join(['uv', *argv[1:]])} failed:\n{output}"),
            "fix what uv reports; the incomplete environment was removed",
        )


def _python_version(folder: Path) -> str:
    match = re.search(r"^version_info = (\S+)", (folder / "pyvenv.cfg").read_text("utf-8"), re.MULTILINE)
    return match[1] if match else ""


def _packages(folder: Path) -> dict[str, str]:
    """Return the versions of the installed packages by normalized name."""
    places = [str(path) for path in folder.glob("lib/python*/site-packages")]
    versions = {
        re.sub(r"[-_.]+", "-", package.name).lower(): package.version
        for package in importlib.metadata.distributions(path=places)
        if package.name
    }
    return {name: version for name, version in sorted(versions.items()) if name not in _TOOLS}
