"""How long the trainer's measured iterations took by its own lines: the time between two of them, beside `dur_s`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from queue_runner.analysis.clock_check import LineTimes
from queue_runner.decoding import from_json
from queue_runner.events import Eval, Event, Iter, LogEvent, Phase


class Clock(LineTimes):
    """Sums over the lines of a run as they arrive; `t` and `i` belong to the last one."""

    t: float | None = None
    i: int = 0

    @classmethod
    def from_state(cls, state: str | None) -> Clock:
        """Return the clock that `state` was written of; a new one without it."""
        return from_json(state, cls) if state else cls()

    def state(self) -> str:
        """Return everything that the next chunk depends on, as JSON."""
        return msgspec.json.encode(self).decode()

    def see(self, events: Iterable[Event | LogEvent]) -> None:
        """Add the iterations among these events. Logged iterations may be every tenth: times are for one."""
        for event in events:
            if type(event) is Iter and event.phase == "measure" and event.t is not None:
                if self.t is not None:
                    self.n += 1
                    self.reported_s += event.dur_s
                    self.passed_s += (event.t - self.t) / max(1, event.i - self.i)
                self.t, self.i = event.t, event.i
            elif isinstance(event, Iter | Phase | Eval):  # something else lies between the lines
                self.t = None
