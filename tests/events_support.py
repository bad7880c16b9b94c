"""Events as plain objects: for comparing with golden files, or read while a process writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import structs


def fields(event: Any) -> dict[str, Any]:
    """Return every field of an event by its name."""
    return structs.asdict(event)


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines, without a last line that is not yet whole. [] if there is no file."""
    lines = path.read_bytes().splitlines(True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
