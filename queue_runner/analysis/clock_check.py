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
_ITERATING = ("compile_s", "warmup_s", "measure_s")


@dataclass(slots=True)
class LineCounts:
    """Counts over the measured iterations of a run that follow another one directly, by the times of their lines.

    `n_short` reported too short a time: `short_told_s` is the sum of their `dur_s`, `short_passed_s` of the time
    between the lines.
    """

    n: int = 0
    n_short: int = 0
    short_told_s: float = 0.0
    short_passed_s: float = 0.0


def contradiction(
    iterations: Sequence[IterationPoint],
    summary: Summary,
    real_s: float | None,
    lines: LineCounts,
    dur_is: object = None,
) -> str | None:
    """Return why the iterations cannot have taken the reported time, with the figures; None if they can.

    Their sum is held against the real time of the process and, where the trainer reported a phase measure, against the
    phases in which iterations run. With `dur_is="mean"` an iteration stands for several calls, so that lines may lie
    further apart than it took.
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
    if dur_is != "mean" and lines.n >= FEWEST and lines.n_short > lines.n / 2:
        reported_s, passed_s = lines.short_told_s / lines.n_short, lines.short_passed_s / lines.n_short
        return (
            f"{units.count(lines.n_short)} of {units.count(lines.n)} measured iterations reported"
            f" {units.ms(reported_s)} ms on average, but {units.ms(passed_s)} ms passed between their lines"
        )
    return None
