"""The wall time of a run by phase: exclusive seconds of each, and the remainder of the real time.

setup + compile + warmup + measure + eval + checkpoint + other + slept = real.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from queue_runner import units
from queue_runner.model import PHASES

RUN_PHASES = PHASES[:6]
CLOCK_TOLERANCE_S = 0.05
"""The tolerance for two clocks, read in two processes: a negative remainder below it is granularity."""


class _Ledger:
    """A ledger that books passing time on the innermost open phase."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.open: list[str] = []
        self._at = 0.0

    def pass_to(self, t_s: float) -> None:
        """Advance; a clock that goes back is ignored."""
        if t_s > self._at:
            if self.open:
                self.spent[self.open[-1]] = self.spent.get(self.open[-1], 0.0) + t_s - self._at
            self._at = t_s


def phase_seconds(marks: Iterable[Mapping[str, Any]], last_t_s: float | None = None) -> dict[str, float]:
    """Return exclusive seconds by phase name, of marks {t_s, name, edge} in file order: phases nest, and a phase's time
    is its own minus that of the phases inside it.

    An end without its begin is ignored, an end closes what was left open inside it, and what is still open ends at
    `last_t_s` or at the last mark, whichever is later.
    """
    ledger = _Ledger()
    for mark in marks:
        name = mark["name"]
        if name not in RUN_PHASES:
            continue
        ledger.pass_to(mark["t_s"])
        if mark["edge"] == "begin":
            ledger.open.append(name)
        elif name in ledger.open:
            while ledger.open.pop() != name:
                pass
    if ledger.open and last_t_s is not None:
        ledger.pass_to(last_t_s)
    return ledger.spent


def account(spent: Mapping[str, float], real_s: float | None, slept_s: float | None) -> float | None:
    """Return the seconds of real time in no phase and not asleep, signed, to add up; None without `real_s`."""
    return None if real_s is None else real_s - (slept_s or 0.0) - math.fsum(spent.values())


def other_remark(other_s: float | None) -> str | None:
    """Return the remark on a negative remainder, None for every other."""
    if other_s is None or other_s >= 0:
        return None
    amount = units.short_duration(-other_s, 3)
    if -other_s <= CLOCK_TOLERANCE_S:
        return f"the phases exceed the real time by {amount}: the granularity of two clocks"
    return (
        f"the phases exceed the real time by {amount}: more than two clocks can disagree, the job's clock is in doubt"
    )
