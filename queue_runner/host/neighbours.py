"""CPU time of the queue's runs on other lanes: neither a run's own nor that of others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection

from queue_runner.host.cpu_time import LinuxSource, MacSource, ProcessTime, Source, used_between
from queue_runner.host.load import below


class NeighbourTime:
    """A counter of the seconds that all processes below some wardens use, from its first call on.

    What a run used between the last look at it and its end is not known: its rate until then is taken to continue.
    """

    def __init__(
        self,
        wardens: Callable[[], Collection[int]],
        *,
        source: Source | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wardens = wardens
        self._source = source or (LinuxSource() if sys.platform.startswith("linux") else MacSource())
        self._clock = clock
        self._seen: dict[int, dict[tuple[int, float], ProcessTime]] | None = None
        self._rates: dict[int, float] = {}
        self._at = clock()
        self._used_s = 0.0

    def __call__(self) -> float:
        """Return the seconds so far."""
        now = self._clock()
        processes = {pid: self._source.processes(below([pid])) for pid in self._wardens()}
        before, past_s = self._seen, now - self._at
        self._seen, self._at = processes, now
        if before is None:
            return 0.0
        for pid, times in processes.items():
            used_s = used_between(before.get(pid, {}), times)
            self._rates[pid] = used_s / past_s if past_s > 0 else self._rates.get(pid, 0.0)
            self._used_s += used_s
        for pid in before.keys() - processes.keys():
            self._used_s += self._rates.pop(pid, 0.0) * past_s
        return self._used_s
