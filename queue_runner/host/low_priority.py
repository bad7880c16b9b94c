"""Waiting for watchers: at the lowest priority, and not for a reader that has closed the pipe."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time

NICE = 10


def give_way() -> None:
    """Lower this process's priority so that it yields to others competing for a core."""
    with contextlib.suppress(OSError):
        os.nice(NICE)


class Wait:
    """A wait that fails once the descriptor is a pipe without a reader."""

    def __init__(self, fd: int | None) -> None:
        self._poll: select.poll | None = None
        with contextlib.suppress(OSError):
            if fd is not None and stat.S_ISFIFO(os.fstat(fd).st_mode):
                self._poll = select.poll()
                self._poll.register(fd, select.POLLHUP)  # macOS reports POLLHUP only if requested

    def __call__(self, seconds: float) -> None:
        """Wait. Raises: BrokenPipeError when the pipe has no reader."""
        if self._poll is None:
            time.sleep(seconds)
        elif any(what & (select.POLLERR | select.POLLHUP) for _, what in self._poll.poll(seconds * 1e3)):
            raise BrokenPipeError


def descriptor(stream: object) -> int | None:
    """Return the file descriptor of a stream; None if it has none."""
    try:
        return int(stream.fileno())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return None
