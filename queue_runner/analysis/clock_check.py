"""Iterations held against the clock: the reported durations may contradict the time that passed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from queue_runner import units
from queue_runner.analysis.points import IterationPoint
from queue_runner.analysis.summary import Summary
from queue_runner.model import PHASES

REAL_TOLERANCE = 1.01
PHASE_TOLERANCE = 1.05
TOLERANCE_S = 0.1
"""Tolerance of two clocks, and of lines that are written a moment after the iteration."""
FEWEST = 5
"""Fewest pairs of lines that are held against the clock."""
MISSING_SHARE = 0.1
"""Share of the time between lines that may be missing from the iterations: users' loops log and print there,"""
MISSING_S = 5e-4
"""and so many seconds a line: reading a loss and writing a line take less."""
_ITERATING = ("compile_s", "warmup_s", "measure_s")


@dataclass(slots=True)
class LineTimes:
    """Sums over the measured iterations of a run that follow another one directly: of their `dur_s`, and of the time
    between their lines."""

    n: int = 0
    reported_s: float = 0.0
    passed_s: float = 0.0


def contradiction(
    iterations: Sequence[IterationPoint],
    summary: Summary,
    real_s: float | None,
    lines: LineTimes,
    dur_is: object = None,
) -> str | None:
    """Return why the iterations cannot have taken the reported time, with the figures; None if they can.

    Their sum must not exceed the real time of the process nor, where the trainer reported a phase measure, the phases
    in which iterations run. It must account for the time between their lines, without what lies there of other phases.
    With `dur_is="mean"` an iteration stands for several calls, so that lines may lie further apart than it took.
    """
    total_s = math.fsum(point.dur_s for point in iterations)
    if real_s is not None and total_s > REAL_TOLERANCE * real_s + TOLERANCE_S:
        n = units.count(len(iterations))
        return (
            f"the {n} iterations add up to {units.duration(total_s)}, but the whole run took {units.duration(real_s)}"
        )
    measured = math.fsum(point.dur_s for point in iterations if PHASES[point.phase] == "measure")
    phases = math.fsum(getattr(summary, name) or 0.0 for name in _ITERATING)
    if summary.measure_s and measured > PHASE_TOLERANCE * phases + TOLERANCE_S:
        return (
            f"the measured iterations add up to {units.duration(measured)}, but the phases that iterations run in"
            f" lasted {units.duration(phases)}"
        )
    missing_s = lines.passed_s - lines.reported_s
    if dur_is != "mean" and lines.n >= FEWEST and missing_s > MISSING_SHARE * lines.passed_s + MISSING_S * lines.n:
        return (
            f"{units.count(lines.n)} measured iterations reported {units.ms(lines.reported_s / lines.n)} ms on average,"
            f" but {units.ms(lines.passed_s / lines.n)} ms passed between their lines"
        )
    return None
