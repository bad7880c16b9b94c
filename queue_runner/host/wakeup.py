"""The doorbell: a FIFO that a worker listens on, so that a submitted job starts at once and not at the next poll.

A FIFO, not a unix socket: socket paths are limited to 104 bytes on macOS. Ringing never blocks.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from queue_runner.errors import MpsqError

NOW, SOON = b"!", b"?"
"""The rings: something has changed, and a submission has begun."""


def ring(fifo: Path, what: bytes = NOW) -> None:
    """Wake the worker, if any; without one (ENXIO) or without a FIFO the next worker's poll suffices."""
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(descriptor, what)
    except OSError:
        pass  # the pipe is full: the worker will wake up anyway
    finally:
        os.close(descriptor)


def listen(fifo: Path) -> int:
    """Return a descriptor to read rings from, opened for reading and writing so that it never sees an end of file.

    Raises: MpsqError when the path is taken by something else, or the disk refuses.
    """
    try:
        os.mkfifo(fifo, 0o600)
    except FileExistsError:
        if not stat.S_ISFIFO(fifo.stat().st_mode):
            raise MpsqError(f"{fifo.name} is not a FIFO", f"move {fifo} away") from None
    except OSError as error:
        raise MpsqError(f"{fifo} cannot be made: {error.strerror}", "mpsq doctor") from error
    return os.open(fifo, os.O_RDWR | os.O_CLOEXEC)
