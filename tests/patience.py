"""How long tests wait: a limit is in seconds of a quiet machine, and grows with the load of this one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

UNTIL_S = 60.0
MOST = 10.0
"""On a machine that is more crowded than this a test fails rather than waits."""


def crowding() -> float:
    """Return how many processes want each processor now, between 1 and `MOST`."""
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), MOST)


def patience(limit_s: float) -> float:
    """Return how long this machine may take for what takes a quiet one at most `limit_s`."""
    return limit_s * crowding()


def until(condition: Callable[[], T], what: str | Callable[[], str] = "it", limit_s: float = UNTIL_S) -> T:
    """Poll; return the first true value of `condition`. Fail with `what` was awaited when the time is up.

    The longer it takes, the more rarely it looks: a condition that reads a database takes time from what it waits for.
    """
    start = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - start
        assert waited_s < patience(limit_s), f"waited {waited_s:.0f} s for {what() if callable(what) else what}"
        time.sleep(min(max(0.01, waited_s / 10), 0.1))
    return value
