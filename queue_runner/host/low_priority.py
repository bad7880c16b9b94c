"""How a watcher waits: behind everybody else, and not for a reader that has left."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time

NICE = 10


def give_way() -> None:
    """Be the first to wait, from now on, where programs want the same core."""
    with contextlib.suppress(OSError):
        os.nice(NICE)


class Wait:
    """Waits, unless the descriptor is a pipe that nobody reads any more."""

    def __init__(self, fd: int | None) -> None:
        self._poll: select.poll | None = None
        with contextlib.suppress(OSError):
            if fd is not None and stat.S_ISFIFO(os.fstat(fd).st_mode):
                self._poll = select.poll()
                self._poll.register(fd, select.POLLHUP)  # macOS reports it only if asked: of no events it watches none

    def __call__(self, seconds: float) -> None:
        """Raises: BrokenPipeError when nobody reads any more."""
        if self._poll is None:
            time.sleep(seconds)
        elif any(what & (select.POLLERR | select.POLLHUP) for _, what in self._poll.poll(seconds * 1e3)):
            raise BrokenPipeError


def descriptor(stream: object) -> int | None:
    """The file descriptor of a stream; None for one that has none."""
    try:
        return int(stream.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return None
