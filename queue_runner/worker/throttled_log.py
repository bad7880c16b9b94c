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
        self._said: dict[str, tuple[float, int]] = {}

    def __call__(self, text: str, more: str = "") -> None:
        """Log `text`, followed by `more`. Repetitions are recognised by `text` alone."""
        now = self._clock()
        said = self._said.get(text)
        if said is not None and now - said[0] < self._every_s:
            self._said[text] = said[0], said[1] + 1
            return
        again = f" (and {said[1]} more times since the last message)" if said is not None and said[1] else ""
        if len(self._said) >= _MOST:
            self._said.clear()
        self._said[text] = now, 0
        self._say(text + again + (f"\n{more.rstrip()}" if more else ""))
