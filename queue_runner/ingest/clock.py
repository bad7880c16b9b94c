"""How long the trainer's measured iterations took by its own lines: the time between two of them, beside `dur_s`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from msgspec import convert

from queue_runner.analysis.clock_check import LineCounts
from queue_runner.events import Eval, Event, Iter, LogEvent, Phase

SHORT_SHARE = 0.5
"""An iteration is reported too short if it has less than this share of the time since the line before,"""
SHORT_S = 2e-3
"""and more than this many seconds are missing: reading a loss and writing a line take a fraction of that."""


@dataclass(slots=True)
class Clock(LineCounts):
    """Counts the lines of a run as they arrive; `t` and `i` belong to the last one."""

    t: float | None = None
    i: int = 0

    @classmethod
    def from_state(cls, state: str | None) -> Clock:
        """Return the clock that `state` was written of; a new one without it."""
        return convert(json.loads(state), cls) if state else cls()

    def state(self) -> str:
        """Return everything that the next chunk depends on, as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def see(self, events: Iterable[Event | LogEvent]) -> None:
        """Count the iterations among these events. Logged iterations may be every tenth: times are for one."""
        for event in events:
            if type(event) is Iter and event.phase == "measure" and event.t is not None:
                if self.t is not None:
                    self._count((event.t - self.t) / max(1, event.i - self.i), event.dur_s)
                self.t, self.i = event.t, event.i
            elif isinstance(event, Iter | Phase | Eval):  # something else lies between the lines
                self.t = None

    def _count(self, passed_s: float, told_s: float) -> None:
        self.n += 1
        if told_s < SHORT_SHARE * passed_s and passed_s - told_s > SHORT_S:
            self.n_short += 1
            self.short_told_s += told_s
            self.short_passed_s += passed_s
