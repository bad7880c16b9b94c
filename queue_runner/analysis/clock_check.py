"""Reported iterations compared with the clock: their durations may contradict the time that passed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.points import IterationPoint
from queue_runner.analysis.summary import Summary
from queue_runner.model import PHASES

REAL_TOLERANCE = 1.01
PHASE_TOLERANCE = 1.05
TOLERANCE_S = 0.1
"""Tolerance of two clocks, and of lines that are written a moment after the iteration."""
FEWEST = 5
"""Fewest pairs of lines that are compared with the clock."""
MISSING_SHARE = 0.1
"""Share of the time between lines, or of the phase, that may be missing from the iterations: users' loops log there."""
MISSING_S = 5e-4
"""Seconds per line that may be missing besides: reading a loss and writing a line take less."""
REGULAR_SHARE = 0.8
"""Smallest share of equal gaps between the numbers of iterations that makes another gap a fault."""
STEP_S = 1.0
"""Tolerance of the start and end of a run by the wall clock."""
SLEW_SHARE = 1e-3
"""Further tolerance for a clock that is slewed, as a share of the run: adjtime slews by 5e-4 at most."""
_ITERATING = ("compile_s", "warmup_s", "measure_s")


class LineTimes(Struct):
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
    in which iterations run. It must account for the time between their lines and for the phase measure, without what
    lies there of other phases: what a clock that does not wait leaves out may be waited for at the end.
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
    numbers = [point.i for point in iterations if PHASES[point.phase] == "measure"]
    if not summary.measure_s or dur_is == "mean" or len(numbers) <= FEWEST:
        return None
    every = (max(numbers) - min(numbers)) / (len(numbers) - 1)  # a trainer may report every tenth
    accounted_s = measured * max(every, 1.0) * (1 + 1 / len(numbers))  # one interval before the first that it reports
    tolerance_s = MISSING_SHARE * summary.measure_s + MISSING_S * len(numbers) + TOLERANCE_S
    if summary.measure_s - accounted_s > tolerance_s:
        return (
            f"the measured iterations add up to {units.duration(measured * max(every, 1.0))}, but their phase lasted"
            f" {units.duration(summary.measure_s)}"
        )
    return None


def missing_iterations(iterations: Sequence[IterationPoint]) -> int:
    """Return how many iterations a regular series of numbers, such as every tenth, leaves out."""
    gaps = [b.i - a.i for a, b in pairwise(iterations)]
    usual, n_usual = Counter(gap for gap in gaps if gap > 0).most_common(1)[0] if len(gaps) >= FEWEST else (0, 0)
    if n_usual < REGULAR_SHARE * len(gaps) or not usual:
        return 0
    return sum(round(gap / usual) - 1 for gap in gaps if gap > usual)


def clock_step_s(real_s: float | None, started_at: float | None, ended_at: float | None) -> float:
    """Return by how much the wall clock was set during a run, in seconds; 0 within what clocks are slewed by."""
    if real_s is None or started_at is None or ended_at is None:
        return 0.0
    step_s = ended_at - started_at - real_s
    return step_s if abs(step_s) > STEP_S + SLEW_SHARE * real_s else 0.0
