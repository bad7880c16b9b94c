"""Files of JSON that another process reads or writes, and may never have completed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, ValidationError, to_builtins

from queue_runner.atomic_file import replacing
from queue_runner.decoding import convert
from queue_runner.host.run_dir import read_regular

S = TypeVar("S", bound=Struct)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None where there is none, or it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        data = json.loads(read_regular(path))
        return data if isinstance(data, dict) else None
    return None


def read_struct(path: Path, kind: type[S]) -> S | None:
    """Return the object in a file as a Struct. None where there is none, and for one of other fields."""
    with contextlib.suppress(ValidationError, UnicodeEncodeError):
        return convert(read_json(path), kind)
    return None


def write_json(path: Path, data: Any, *, durable: bool = True) -> None:
    """Write an object or a Struct at once: temporary file, fsync, rename, fsync of the folder. Raises: OSError."""
    with replacing(path, durable=durable) as partial:
        partial.write_text(json.dumps(data, default=to_builtins))
