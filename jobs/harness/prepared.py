"""What a run must know and must not measure: computed once per question, in a process of its own, and kept.

The queue starts a workload whose literal has "prepares" twice. The first process has MPSQ_PREPARE=1: it computes on the
CPU what is missing in the file MPSQ_PREPARED, and ends; it is no part of the run. The second one is measured, and reads
that file. Without the queue, or if the first process failed, everything is computed where it is needed, as before.

Standard library only: it is asked before a framework is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value", float, list[Any], None)
_computed: list[str] = []


def is_asked() -> bool:
    """Return whether this process is to prepare a run instead of being one."""
    return os.environ.get("MPSQ_PREPARE") == "1"


def is_complete() -> bool:
    """Return whether the file exists and is of this environment."""
    return bool(_kept())


def once(name: str, compute: Callable[[], Value]) -> Value:
    """Return the kept value of this name, else compute it and keep it. It is a number, lists of numbers, or None."""
    kept = _kept()
    if name in kept:
        value: Value = kept[name]
        return value
    value = compute()
    _computed.append(name)
    keep(name, value)
    return value


def keep(name: str, value: Any) -> None:
    """Store a value, in place of an older one. A file that cannot be written costs the next run the computation."""
    if (place := os.environ.get("MPSQ_PREPARED")) is None:
        return
    path = Path(place)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=".prepared-")
        with os.fdopen(descriptor, "w") as stream:
            json.dump({"environment": _ENVIRONMENT, "values": {**_kept(), name: value}}, stream)
        Path(partial).replace(path)


def was_kept(name: str) -> bool:
    """Return whether the value was read, and not computed by this process."""
    return name not in _computed


def computed_here() -> list[str]:
    """Return the names of the values that this process had to compute, in the run that they should not be part of."""
    return [] if os.environ.get("MPSQ_PREPARED") is None else list(_computed)


def _kept() -> dict[str, Any]:
    try:
        said = json.loads(Path(os.environ["MPSQ_PREPARED"]).read_bytes())
        return dict(said["values"]) if said["environment"] == _ENVIRONMENT else {}
    except (KeyError, OSError, ValueError, TypeError):
        return {}


def _environment() -> dict[str, Any]:
    """Return what the values depend on besides the question: Python, the packages, and the files that settings name.

    The question itself - the code of the workload, the settings, the seed - is in the name of the file, which the
    queue chooses.
    """
    packages = {path.name for folder in sys.path for path in Path(folder).glob("*.*-info")}
    files = {}
    for word in sys.argv[1:]:
        with contextlib.suppress(OSError, ValueError):
            state = Path(word.partition("=")[2] or word).expanduser().stat()
            files[word] = [state.st_size, state.st_mtime_ns]
    return {"python": platform.python_version(), "packages": sorted(packages), "files": files}


_ENVIRONMENT = _environment() if "MPSQ_PREPARED" in os.environ else {}
"""As of the import of this module: frameworks change sys.path."""
