"""The wait of a main thread for its end, which a signal handler may ask for at any moment."""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue


class StopSignal:
    """Whether a program is to end. A signal handler runs in the thread that waits: `set` of a threading.Event would
    wait for a lock which that thread holds, while `put` of a SimpleQueue may interrupt its `get`."""

    def __init__(self) -> None:
        self._is_set = False
        self._queue: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        self._is_set = True
        self._queue.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, or for a time; return whether it is."""
        with contextlib.suppress(Empty):
            self._queue.get(timeout=timeout_s)
        return self._is_set
