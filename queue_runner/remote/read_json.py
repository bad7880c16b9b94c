"""A file of JSON that another process writes, and may never have completed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from queue_runner.run_dir import read_regular


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None where there is none, or it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(path))
        return found if isinstance(found, dict) else None
    return None
