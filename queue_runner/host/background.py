"""Blocking readers of sensors in threads of their own: a driver that hangs never holds the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from queue_runner.host.command import ask

_T = TypeVar("_T")
WAIT_S = 0.05
"""How long a caller waits for a fresh reading; a reading of NVML takes a few milliseconds."""


class BackgroundReader(Generic[_T]):
    """Calls `read` in a daemon thread, one call at a time."""

    def __init__(self, read: Callable[[], _T]) -> None:
        self._read = read
        self._thread: threading.Thread | None = None
        self._newest: tuple[float, _T] | None = None

    def latest(self, wait_s: float = WAIT_S) -> tuple[float, _T] | None:
        """Ask for a reading and return the newest one with its Unix time: the fresh one if it took at most `wait_s`,
        else the one before; None before the first."""
        if not self.is_busy():
            self._thread = threading.Thread(target=self._run, daemon=True, name="mpsq-sensor")
            self._thread.start()
        assert self._thread is not None
        self._thread.join(wait_s)
        return self._newest

    def is_busy(self) -> bool:
        """Return whether a reading is going on, or hangs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        value = self._read()
        self._newest = time.time(), value


class BackgroundCall(Generic[_T]):
    """One call of `read` in a daemon thread. `value` is what it returned, None until then or if it failed."""

    def __init__(self, read: Callable[[], _T]) -> None:
        self._read = read
        self.value: _T | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="mpsq-sensor")
        self._thread.start()

    def has_ended(self, wait_s: float = WAIT_S) -> bool:
        """Return whether the call has ended, after waiting `wait_s` for that at most."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self.value = self._read()


class PolledCommand:
    """A query of a tool, repeated beside the worker: its answer is available one sample after it was requested."""

    def __init__(self, argv: Sequence[str], every_s: float) -> None:
        self._argv = argv
        self._every_s = every_s
        self._due = self._started_s = 0.0
        self._call: BackgroundCall[str | None] | None = None
        self._answer: str | None = None
        self.answered_s: float | None = None
        """Time, on the caller's clock, at which the query of the latest answer started; None before the first."""

    def latest(self, now_s: float) -> str | None:
        """Return the newest answer, None before the first or when the tool fails. Start a new query when it is due."""
        if self._call is not None and self._call.has_ended(0.0):
            self._answer, self.answered_s, self._call = self._call.value, self._started_s, None
        if self._call is None and now_s >= self._due:
            self._due, self._started_s = now_s + self._every_s, now_s
            self._call = BackgroundCall(partial(ask, self._argv))
        return self._answer
