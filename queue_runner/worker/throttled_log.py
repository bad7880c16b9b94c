"""Log a repeated message once, and then only at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 3600.0
_MOST = 64


class ThrottledLog:
    """A filter that passes a text on once, and again after `every_s` seconds with the number of repetitions."""

    def __init__(
        self, say: Callable[[str], object], every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._every_s = every_s
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}

    def __call__(self, text: str, more: str = "") -> None:
        """Log `text`, followed by `more`. Repetitions are recognised by `text` alone."""
        now = self._clock()
        logged_at, repeated = self._logged.get(text, (float("-inf"), 0))
        if now - logged_at < self._every_s:
            self._logged[text] = logged_at, repeated + 1
            return
        count = f" (and {repeated} more times since the last message)" if repeated else ""
        if len(self._logged) >= _MOST:
            self._logged.clear()
        self._logged[text] = now, 0
        self._say(text + count + (f"\n{more.rstrip()}" if more else ""))
