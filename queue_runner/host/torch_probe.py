"""Probe of torch, its devices and other frameworks, in child processes of the interpreter that would run the jobs: a
device can hang or kill the process that tries it, and no framework is ever imported here.

`is_available()` is insufficient: it can be True where the first allocation fails (virtual machines without Metal), so
the child multiplies two matrices on each device and checks the product.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from queue_runner.errors import UsageError
from queue_runner.machine_records import known_fields
from queue_runner.paths import expanded

TIMEOUT_S = 120.0
"""Timeout that covers the import of torch from a cold disk and the first kernel of each device."""

_PYTHON = """
import glob, json, platform, sys
def report(**fields):
    print(json.dumps(fields), flush=True)
def translated():
    if sys.platform != "darwin":
        return None
    import ctypes
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    name = b"sysctl.proc_translated"
    missing = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if missing else bool(value.value)
def conda():
    for path in glob.glob(glob.escape(sys.base_prefix) + "/conda-meta/python-[0-9]*.json"):
        with open(path, encoding="utf-8") as file:
            return json.load(file).get("subdir")
report(python=platform.python_version(), machine=platform.machine(), processor=platform.processor())
for fact in (translated, conda):
    try:
        report(**{fact.__name__: fact()})
    except Exception:
        pass
"""
"""Describes a Python. sysctl.proc_translated is that of the calling process: 1 under Rosetta, and missing on an Intel
Mac; the tool sysctl would answer for itself."""

_PROGRAM = """
try:
    import torch
except ImportError as error:
    report(missing=str(error))
    sys.exit(0)
mps = getattr(torch.backends, "mps", None)
report(version=torch.__version__, cuda_built=torch.version.cuda, mps_built=bool(mps and mps.is_built()))
def available(name):
    return name == "cpu" or bool(torch.cuda.is_available() if name == "cuda" else mps and mps.is_available())
for name in ("cpu", "cuda", "mps"):
    try:
        if not available(name):
            report(device=name, state="absent")
            continue
        a = torch.arange(4096, dtype=torch.float32).reshape(64, 64) / 4096
        expected = float((a @ a).sum())
        result = float((a.to(name) @ a.to(name)).sum().cpu())
        report(device=name, state="computes" if abs(result - expected) <= 1e-3 * abs(expected) else "wrong",
            text=torch.cuda.get_device_name() if name == "cuda" else "")
    except Exception as error:
        report(device=name, state="fails", text=(str(error).strip().splitlines() or [type(error).__name__])[0])
"""


class Torch(Struct, frozen=True):
    """The child's report. `devices` maps cpu, cuda, mps to (computes|wrong|fails|absent|died, text); `machine` is the
    architecture of its Python: x86_64 on an Apple chip is Rosetta."""

    version: str | None = None
    cuda_built: str | None = None
    mps_built: bool = False
    trouble: str | None = None
    devices: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    python: str | None = None
    machine: str | None = None
    processor: str | None = None
    """platform.processor(): arm in a native Python of a Mac, i386 in an Intel one; Lightning goes by it"""
    translated: bool | None = None
    """whether Rosetta translates it; None if unknown"""
    conda: str | None = None
    """the platform that conda built it for, such as osx-arm64; None if it is not conda's"""


def interpreter(python: str) -> Torch:
    """Describe the interpreter `python`, without trying torch."""
    return _understand(*_run_child(python, _PYTHON, TIMEOUT_S))


def probe(python: str, timeout_s: float = TIMEOUT_S) -> Torch:
    """Try torch and its devices in `python`. Output from before the child died or hung counts."""
    return _understand(*_run_child(python, _PYTHON + _PROGRAM, timeout_s))


def _run_child(python: str, program: str, timeout_s: float) -> tuple[list[Any], str | None]:
    """Return the JSON values that the child printed, complete or not, and a sentence if it died or hung."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MPSQ_"))}
    trouble = None
    try:
        child = subprocess.run(
            [python, "-c", program],  # not -P, which Pythons before 3.11 reject; "/" serves as the current folder
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env=environment,
            cwd="/",  # ours may have been deleted; torch would then not find its libraries
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output, trouble = error.stdout or b"", f"it did not answer within {timeout_s:.0f} s"
    except OSError as error:
        return [], f"{python} cannot be run: {error.strerror}"
    else:
        output = child.stdout
        if child.returncode:
            lines = child.stderr.decode("utf-8", "replace").strip().splitlines()
            trouble = f"it ended with status {child.returncode}" + (f": {lines[-1]}" if lines else "")
    values = []
    for line in output.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError):  # printed by torch
            values.append(json.loads(line))
    return values, trouble


def _understand(values: list[Any], trouble: str | None) -> Torch:
    head: dict[str, object] = {}
    devices: dict[str, tuple[str, str]] = {}
    for fields in values:
        if isinstance(fields, dict) and "device" in fields:
            devices[str(fields["device"])] = (str(fields.get("state")), str(fields.get("text") or ""))
        elif isinstance(fields, dict):
            head |= fields
    if trouble and head.get("version"):
        silent = next((name for name in ("cpu", "cuda", "mps") if name not in devices), None)
        if silent:
            devices[silent] = ("died", trouble)
            trouble = None
    if "missing" in head:
        trouble = str(head["missing"])
    facts = {name: value for name, value in head.items() if value != ""}
    return known_fields({**facts, "trouble": trouble, "devices": devices}, Torch)


# -- the other frameworks --------------------------------------------------------------------------------------------

OTHERS = {
    "mlx": "mlx.core",
    "jax": "jax",
    "jax-mps": "jax_plugins.mps",
    "tinygrad": "tinygrad",
    "transformers": "transformers.models.bert.modeling_bert",
    "lightning": "lightning",
}
"""Distributions, and the import of each. A torchvision incompatible with its torch breaks the last two."""

_OTHER = """
import importlib, importlib.metadata, json, sys
try:
    print(json.dumps(importlib.metadata.version(NAME)), flush=True)
except importlib.metadata.PackageNotFoundError:
    sys.exit()
try:
    importlib.import_module(MODULE)
except BaseException as error:
    sys.exit((str(error).strip().splitlines() or [type(error).__name__])[0])
"""


def others(python: str) -> dict[str, tuple[str, str | None]]:
    """Return the version of each of OTHERS installed in `python`, and why it cannot be imported (None: it can).

    Plain `mlx` installs on Linux but does not import: a version alone is insufficient.
    """
    programs = [f"NAME, MODULE = {pair!r}\n{_OTHER}" for pair in OTHERS.items()]
    with ThreadPoolExecutor(len(programs)) as pool:
        answers = zip(OTHERS, pool.map(lambda program: _run_child(python, program, TIMEOUT_S), programs), strict=True)
    return {name: (str(values[0]), trouble) for name, (values, trouble) in answers if values}


def computing_devices(python: str | None = None) -> list[str]:
    """Return the devices (of cpu, cuda, mps) on which torch multiplies matrices correctly.

    Raises: UsageError when the interpreter `python` (ours when None) does not exist, or has no torch.
    """
    interpreter = find_interpreter(python)
    torch = probe(interpreter)
    if torch.version is None:
        remedy = f"{interpreter} -m pip install torch tiktoken, or choose another interpreter with --python"
        raise UsageError(f"{interpreter} has no usable torch: {torch.trouble}", remedy)
    return [name for name, (state, _) in torch.devices.items() if state == "computes"]


def find_interpreter(named: str | None, search_path: str | None = None) -> str:
    """Return the interpreter's absolute path, links unresolved: resolving a venv's python would lose the venv. It is
    ours if none is named. Raises: UsageError when there is none."""
    if named is None:
        return sys.executable
    path = shutil.which(expanded(named).absolute() if "/" in named else named, path=search_path)
    if path is None:
        raise UsageError(
            f'there is no interpreter "{named}"',
            "--python takes the path of a Python interpreter, e.g. ~/nightly/bin/python",
        )
    return str(Path(path).absolute())
