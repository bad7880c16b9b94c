"""The fence of a block, `fence` in its folder: who creates it decides, once and for all, whether the block runs.

It is written under another name and gets its own by a hard link, which fails where there is one: so it is there whole
or not at all, however its writer dies, and any reader finds who took it. The front, a node and a box use it alike.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from msgspec import Struct, json

from queue_runner.atomic_file import flush
from queue_runner.remote.json_files import read_struct


class FenceHolder(Struct, frozen=True, omit_defaults=True):
    """Who took a fence, and the time: the front, which made the block `void`, or the process `pid` of a node since its
    `boot`."""

    void: str | None = None
    host: str | None = None
    node: str | None = None
    job: str | None = None
    pid: int | None = None
    boot: str | None = None
    at: float | None = None


def take_fence(path: Path, who: FenceHolder) -> bool:
    """Create the fence, durably; False when it was there: the block was started, or made void, before.

    Raises: OSError, also where the file system has no hard links.
    """
    descriptor, name = tempfile.mkstemp(prefix=".fence-", dir=path.parent)
    ours = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(json.encode(who))
        flush(ours)
        try:
            os.link(ours, path)
        except FileExistsError:
            if not ours.samefile(path):  # NFS repeats a request whose answer was lost, and then finds its own link
                return False
        flush(path.parent)
        return True
    finally:
        ours.unlink(missing_ok=True)


def make_void(path: Path) -> bool:
    """Take the fence in the place of a start, so that the block can never start; return whether it is void, now or
    since before. Raises: OSError."""
    return take_fence(path, FenceHolder(void="by the front")) or is_void(path)


def has_started(path: Path) -> bool:
    """Return whether a start has taken the fence, as also a fence means that cannot be read."""
    return path.exists() and not is_void(path)


def is_void(path: Path) -> bool:
    """Return whether the front has taken the fence."""
    fence = read_struct(path, FenceHolder)
    return fence is not None and fence.void is not None
