"""Examine this machine: everything that a queue needs, each with a verdict and what mends it."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from queue_runner import doctor_house, doctor_torch, locks, queue_state, units
from queue_runner.errors import MpsqError, UsageError
from queue_runner.host.filesystem import nearest_existing, network_kind
from queue_runner.paths import MIN_FREE_BYTES, Layout
from queue_runner.store.backup import remedy
from queue_runner.store.read import HEAD, reading, schema_revision

_WAL_BYTES = 256 << 20
"""A log of this size says that nobody has checkpointed for long: the worker does so every five minutes."""
_LOW_BYTES = 2 << 30
_WAL_RESET_MENDED = (3, 51, 3)
_COMPILE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Check:
    """One finding. `verdict` is ok, warn or fail; `fix` says what mends it."""

    name: str
    verdict: str
    finding: str
    fix: str = ""


def examine(layout: Layout, python: str | None = None) -> list[Check]:
    """Look at everything. `python` is the interpreter whose torch is tried; ours when None.

    Raises: UsageError when that interpreter is not there.
    """
    interpreter = _interpreter(python)
    return [
        _python(),
        *_torch(doctor_torch.ask(interpreter), interpreter),
        compiler(),
        *home(layout),
        *store(layout),
        _sqlite(),
        _locks(),
        worker(layout),
        service(layout),
        *(Check(*found) for found in (*doctor_house.hooks(layout), doctor_house.backups(layout))),
    ]


def computing_devices(python: str | None = None) -> list[str]:
    """The devices (of cpu, cuda, mps) on which torch multiplies matrices, and right; [] without a torch.

    Raises: UsageError when the interpreter `python` (ours when None) is not there.
    """
    found = doctor_torch.ask(_interpreter(python))
    return [name for name, (state, _) in found.devices.items() if state == "computes"]


def _interpreter(named: str | None) -> str:
    if named is None:
        return sys.executable
    found = shutil.which(str(Path(named).expanduser().absolute()) if "/" in named else named)
    if found is None:
        raise UsageError(f'there is no interpreter "{named}"', "--python names a python that can be run")
    return found


def _python() -> Check:
    about = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform == "darwin" and platform.machine() == "x86_64" and _is_apple_silicon():
        fix = "install an arm64 Python: under Rosetta there is no MPS and no torch later than 2.2"
        return Check("python", "fail", f"{about}, translated by Rosetta", fix)
    return Check("python", "ok", about)


def _is_apple_silicon() -> bool:
    """hw.optional.arm64 is 1 on Apple silicon, for a translated process as well."""
    try:
        asked = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "hw.optional.arm64"], capture_output=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.stdout.strip() == b"1"


def _torch(found: doctor_torch.Torch, interpreter: str) -> Iterator[Check]:
    if found.version is None:
        fix = f"{interpreter} -m pip install torch, or name another interpreter with --python"
        yield Check("torch", "fail", f"{interpreter} has no torch that can be used: {found.trouble}", fix)
        return
    built = [f"CUDA {found.cuda_built}"] * bool(found.cuda_built) + ["MPS"] * found.mps_built
    yield Check("torch", "ok", f"torch {found.version}, built for CPU{''.join(f', {name}' for name in built)}")
    for name, (state, text) in found.devices.items():
        yield _device(name, state, text, found)


def _device(name: str, state: str, text: str, torch: doctor_torch.Torch) -> Check:
    if state == "computes":
        return Check(name, "ok", f"multiplies matrices, and right{f' ({text})' if text else ''}")
    if state == "absent":
        if name == "mps" and sys.platform == "darwin" and torch.mps_built:
            fix = "torch 2.9 to 2.14 needs macOS 14, torch 2.15 needs macOS 15; a virtual machine has no Metal"
            return Check(name, "warn", "this torch knows it, and finds none", fix)
        if name == "cuda" and torch.cuda_built and shutil.which("nvidia-smi"):
            return Check(name, "warn", "this torch knows it, and finds none", "see what nvidia-smi says of the driver")
        return Check(name, "ok", "not there: jobs that ask for it end as DEVICE_UNAVAILABLE")
    if state == "wrong":
        return Check(name, "fail", "its product of two matrices is wrong", "do not measure on it; try another torch")
    return Check(
        name, "fail", f"it is there and does not compute: {text}", "end what uses it, restart, or try another torch"
    )


def compiler() -> Check:
    """Whether torch.compile finds a C++ compiler that works: it needs one for the CPU."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++", "c++"]
    found = next((path for name in candidates if name and (path := shutil.which(name))), None)
    fix = "xcode-select --install" if sys.platform == "darwin" else "install g++, for example: apt install g++"
    if found is None:
        missing = f"no {' nor '.join(str(name) for name in candidates)}: torch.compile cannot build for the CPU"
        return Check("compiler", "warn", missing, fix)
    with tempfile.TemporaryDirectory(prefix="mpsq-doctor-") as folder:
        source = Path(folder, "try.cpp")
        source.write_text("#include <cmath>\nint main() { return std::sqrt(4.0) != 2.0; }\n", encoding="utf-8")
        try:
            built = subprocess.run(
                [found, str(source), "-o", str(Path(folder, "try"))],
                capture_output=True,
                timeout=_COMPILE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Check("compiler", "warn", f"{found} cannot be run: {error}", fix)
    if built.returncode:
        said = (built.stderr.decode("utf-8", "replace").strip().splitlines() or ["it says nothing"])[0]
        return Check("compiler", "warn", f"{found} does not compile a small program: {said}", fix)
    return Check("compiler", "ok", f"{found} compiles")


def home(layout: Layout) -> Iterator[Check]:
    """The folder of the queue: local, ours to write, with room."""
    place = nearest_existing(layout.home)
    later = "" if layout.home.is_dir() else ", made at the first submit"
    if kind := network_kind(layout.home):
        yield Check(
            "home", "fail", f"{layout.home} is on a network file system ({kind})", "set MPSQ_HOME to a local folder"
        )
    elif not place.is_dir():
        yield Check("home", "fail", f"{place} is no folder", "move it away, or set MPSQ_HOME to another folder")
    elif not os.access(place, os.W_OK | os.X_OK):
        yield Check("home", "fail", f"{layout.home} cannot be written", "mend the permissions, or set MPSQ_HOME")
    else:
        yield Check("home", "ok", f"{layout.home}{later}")
    free = shutil.disk_usage(place).free
    verdict = "fail" if free < MIN_FREE_BYTES else "warn" if free < _LOW_BYTES else "ok"
    yield Check(
        "disk", verdict, f"{units.size(free)} free", "free some space: a run stops when less than 1 GiB is left"
    )


def store(layout: Layout) -> Iterator[Check]:
    """The database: its schema, whether it is sound, and how long its log is."""
    if not layout.db.exists():
        yield Check("store", "ok", "no queue yet; the first submit makes it")
        return
    try:
        revision = schema_revision(layout.db)
        with reading(layout.db, any_schema=True) as connection:
            found = [str(next(iter(row.values()))) for row in connection.execute("PRAGMA quick_check(5)")]
    except MpsqError as error:
        yield Check("store", "fail", error.message, error.hint or f"restore a backup of {layout.backups}")
        return
    if found != ["ok"]:
        yield Check("store", "fail", f"the database is damaged: {found[0]}", remedy(layout))
    elif revision != HEAD:
        newer = revision is not None and revision > HEAD
        fix = "use the mpsq that made it, or a newer one" if newer else "run mpsq db upgrade"
        yield Check("store", "fail", f"schema {revision}, this mpsq needs {HEAD}", fix)
    else:
        yield Check("store", "ok", f"sound, schema {revision}, {units.size(layout.db.stat().st_size)}")
    log = Path(f"{layout.db}-wal")
    size = log.stat().st_size if log.exists() else 0
    fix = "start a worker: it alone writes the log back"
    yield Check("log of the store", "warn" if size > _WAL_BYTES else "ok", units.size(size), fix)


def _sqlite() -> Check:
    said = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < _WAL_RESET_MENDED:
        said += "; its WAL-reset bug cannot happen here: only the worker checkpoints"
    if sqlite3.sqlite_version_info < (3, 35):  # UPDATE ... RETURNING
        return Check("sqlite", "fail", said, "use a Python whose SQLite is 3.35 or newer")
    return Check("sqlite", "ok", said)


def _locks() -> Check:
    try:
        folder = locks.lock_dir()
    except MpsqError as error:
        return Check("locks", "fail", error.message, error.hint)
    if kind := network_kind(folder):
        return Check(
            "locks", "fail", f"{folder} is on a network file system ({kind})", "set MPSQ_LOCKS to a local folder"
        )
    return Check("locks", "ok", str(folder))


def worker(layout: Layout) -> Check:
    """Whether anybody runs the queue."""
    alive, pid = queue_state.worker(layout) if layout.home.is_dir() else (False, None)
    if alive:
        return Check("worker", "ok", f"process {pid}" if pid else "running")
    return Check("worker", "warn", "no worker runs: what is submitted waits", queue_state.START_A_WORKER)


def service(layout: Layout) -> Check:
    """Whether the worker is a service, and a healthy one."""
    from queue_runner import config
    from queue_runner.host.service import for_this_machine

    try:
        found = for_this_machine(layout, config.load(layout.config)).status()
    except MpsqError as error:
        return Check("service", "warn", error.message, error.hint)
    if found.problems:
        return Check("service", "warn", *found.problems[0])
    if not found.installed:
        return Check("service", "ok", "not installed; mpsq service install runs the worker at every login")
    return Check("service", "ok" if found.running else "warn", found.detail, "mpsq service install")
