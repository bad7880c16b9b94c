"""The newest answer of a command that may hang. A thread runs it, so that its callers wait a moment at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

PATIENCE_S = 2.0
"""How long a caller waits for a fresh answer: squeue of a healthy controller takes some hundredths of a second."""


class Newest(Generic[T]):
    """An answer that is at most `every_s` seconds old. `silent` is raised where there is none; an Exception of `ask` is
    raised again until there is a newer answer."""

    def __init__(self, ask: Callable[[], T], every_s: float, silent: Exception) -> None:
        self._ask = ask
        self._every_s = every_s
        self._silent = silent
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None
        self._answer: T | None = None
        self._failure: Exception | None = None
        self._at = float("-inf")

    def answer(self) -> T:
        """Return the answer. Raises: what `ask` raises, and `silent`."""
        with self._lock:
            asking = None
            if self._asking is None and time.monotonic() >= self._at + self._every_s:
                asking = self._asking = threading.Thread(target=self._update, daemon=True)
                asking.start()
        if asking is not None:
            asking.join(PATIENCE_S)
        with self._lock:
            if self._failure is not None:
                raise self._failure.with_traceback(None)  # else it grows by a frame each time
            if self._asking is not None or self._answer is None:
                raise self._silent.with_traceback(None)
            return self._answer

    def forget(self) -> None:
        """Forget all answers to calls that began before now."""
        with self._lock:
            self._asking = self._answer = self._failure = None
            self._at = float("-inf")

    def _update(self) -> None:
        answer: T | None = None
        failure: Exception | None = None
        try:
            answer = self._ask()
        except Exception as error:
            failure = error
        with self._lock:
            if self._asking is threading.current_thread():  # else it was forgotten meanwhile
                self._asking, self._answer, self._failure, self._at = None, answer, failure, time.monotonic()
