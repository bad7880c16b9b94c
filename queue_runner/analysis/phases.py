"""Real time of a run by phase: exclusive seconds of each, and the remainder.

setup + compile + warmup + measure + eval + checkpoint + other + slept = real.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.points import PhaseMark
from queue_runner.model import PHASES

RUN_PHASES = PHASES[:6]
CLOCK_TOLERANCE_S = 0.05
"""Tolerance of clocks read in two processes: a smaller negative remainder is their granularity."""


class Span(Struct, frozen=True):
    """A stretch of one phase: seconds since the start of the run."""

    name: str
    from_s: float
    to_s: float


def spans(marks: Iterable[PhaseMark], last_t_s: float | None = None) -> list[Span]:
    """Return the exclusive stretches of the phases, from marks in file order: phases nest, and the time of a
    phase does not include that of the phases inside it.

    An end without a begin is ignored, an end closes the phases left open inside its own, and phases still open end at
    `last_t_s` or at the last mark, whichever is later. A mark earlier than the one before counts as simultaneous.
    """
    ended: list[Span] = []
    nested: list[str] = []
    at_s = 0.0
    end = [] if last_t_s is None else [PhaseMark(last_t_s, "", "end")]
    for t_s, name, edge in (*(mark for mark in marks if mark.name in RUN_PHASES), *end):
        if nested and t_s > at_s:
            ended.append(Span(nested[-1], at_s, t_s))
        at_s = max(at_s, t_s)
        if edge == "begin":
            nested.append(name)
        elif name in nested:
            while nested.pop() != name:
                pass
    return ended


def phase_seconds(marks: Iterable[PhaseMark], last_t_s: float | None = None) -> dict[str, float]:
    """Return exclusive seconds by phase; arguments as of `spans`."""
    spent: dict[str, float] = {}
    for span in spans(marks, last_t_s):
        spent[span.name] = spent.get(span.name, 0.0) + span.to_s - span.from_s
    return spent


def other_remark(other_s: float | None) -> str | None:
    """Return a remark on a negative remainder, else None."""
    if other_s is None or other_s >= 0:
        return None
    amount = units.short_duration(-other_s, 3)
    if -other_s <= CLOCK_TOLERANCE_S:
        return f"the phases exceed the real time by {amount}: granularity of the two clocks"
    return f"the phases exceed the real time by {amount}: too much for two clocks, the job's clock may be wrong"
