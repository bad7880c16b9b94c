"""Real time of a run by phase: exclusive seconds of each, and the remainder.

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
"""Tolerance of clocks read in two processes: a smaller negative remainder is their granularity."""


class _Ledger:
    """Seconds by phase; time passes in the innermost open one."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.open: list[str] = []
        self._at = 0.0

    def pass_to(self, t_s: float) -> None:
        """Advance the clock to `t_s`; a smaller time is ignored."""
        if t_s > self._at:
            if self.open:
                self.spent[self.open[-1]] = self.spent.get(self.open[-1], 0.0) + t_s - self._at
            self._at = t_s


def phase_seconds(marks: Iterable[Mapping[str, Any]], last_t_s: float | None = None) -> dict[str, float]:
    """Return exclusive seconds by phase, from marks {t_s, name, edge} in file order: phases nest, and the time of a
    phase does not include that of the phases inside it.

    An end without a begin is ignored, an end closes the phases left open inside its own, and phases still open end at
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
    """Return the seconds of real time neither in a phase nor asleep, signed; None without `real_s`."""
    return None if real_s is None else real_s - (slept_s or 0.0) - math.fsum(spent.values())


def other_remark(other_s: float | None) -> str | None:
    """Return a remark on a negative remainder, else None."""
    if other_s is None or other_s >= 0:
        return None
    amount = units.short_duration(-other_s, 3)
    if -other_s <= CLOCK_TOLERANCE_S:
        return f"the phases exceed the real time by {amount}: granularity of the two clocks"
    return f"the phases exceed the real time by {amount}: too much for two clocks, the job's clock may be wrong"
