"""Values that a run needs but must not measure, such as its reference loss: computed once per question, and kept.

The queue starts a workload whose literal has "prepares" twice. The first process has MPSQ_PREPARE=1: it computes on the
CPU the values that are missing in the file MPSQ_PREPARED, and ends; it is not part of the run. The second process is
measured, and reads that file. Without the queue, or if the first process failed, each value is computed where it is
needed (training.once), and this module is not imported.

Standard library only: it is used before a framework is imported.
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


def is_complete() -> bool:
    """Return whether the file exists and was written in this environment."""
    return bool(_values())


def once(name: str, compute: Callable[[], Value]) -> Value:
    """Return the kept value of this name, else compute it and keep it. It is a number, lists of numbers, or None."""
    values = _values()
    if name in values:
        value: Value = values[name]
        return value
    value = compute()
    _computed.append(name)
    keep(name, value)
    return value


def keep(name: str, value: Any) -> None:
    """Store a value, in place of an older one. If the file cannot be written, the next run computes the value."""
    if (location := os.environ.get("MPSQ_PREPARED")) is None:
        return
    path = Path(location)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=".prepared-")
        with os.fdopen(descriptor, "w") as stream:
            json.dump({"environment": _ENVIRONMENT, "values": {**_values(), name: value}}, stream)
        Path(partial).replace(path)


def was_kept(name: str) -> bool:
    """Return whether the value was read from the file, not computed by this process."""
    return name not in _computed


def computed_here() -> list[str]:
    """Return the names of the values that this process computed within the run, for lack of a preparing process."""
    return [] if os.environ.get("MPSQ_PREPARED") is None else list(_computed)


def _values() -> dict[str, Any]:
    try:
        content = json.loads(Path(os.environ["MPSQ_PREPARED"]).read_bytes())
        return dict(content["values"]) if content["environment"] == _ENVIRONMENT else {}
    except (KeyError, OSError, ValueError, TypeError):
        return {}


def _environment() -> dict[str, Any]:
    """Return the environment that the values depend on: Python, the packages, and the files that settings name.

    The question itself (the code of the workload, the settings, the seed) is in the name of the file, which the queue
    chooses.
    """
    packages = {path.name for folder in sys.path for path in Path(folder).glob("*.*-info")}
    files = {}
    for word in sys.argv[1:]:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            state = Path(word.partition("=")[2] or word).expanduser().stat()
            files[word] = [state.st_size, state.st_mtime_ns]
    return {"python": platform.python_version(), "packages": sorted(packages), "files": files}


_ENVIRONMENT = _environment() if "MPSQ_PREPARED" in os.environ else {}
"""As of the import of this module: frameworks change sys.path."""
