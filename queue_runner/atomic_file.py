"""Replacement of a file at once: its readers find the old content or the new one, never a part."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool, mode: int = 0o600) -> Iterator[Path]:
    """Yield a new, empty file beside `path`, which takes its place when the block ends; after an error `path` is as it
    was. `durable`: the content and the new name are flushed to the disk and so survive a power failure.

    Raises: OSError.
    """
    import tempfile

    descriptor, name = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    os.close(descriptor)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(mode)
        if durable:
            flush(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        flush(path.parent)


def flush(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk, as the warden does: fsync alone leaves
    them in the drive's cache on macOS. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(descriptor, getattr(fcntl, "F_FULLFSYNC"))  # noqa: B009 (other systems lack it)
            return
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
