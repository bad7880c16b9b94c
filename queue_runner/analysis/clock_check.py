"""Iterations held against the clock: what the trainer tells of their length may contradict the time that passed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.summary import Summary
from queue_runner.model import PHASES

REAL_TOLERANCE = 1.01
PHASE_TOLERANCE = 1.05
TOLERANCE_S = 0.1
"""Of two clocks, and of lines that are written a moment after what they tell."""
FEWEST = 5
"""Fewest pairs of lines that are held against the clock."""
_ITERATING = ("compile_s", "warmup_s", "measure_s")


def contradiction(
    iterations: Sequence[Mapping[str, Any]],
    summary: Summary,
    real_s: float | None,
    lines: Mapping[str, Any],
    dur_is: object = None,
) -> str | None:
    """Return why the iterations cannot have taken as long as they were said to, with the figures; None if they can.

    `lines` are the counts of ingest.clock.Clock. Their sum is held against the real time of the process and, where the
    trainer told a phase measure, against the phases in which iterations run. With `dur_is="mean"` an iteration stands
    for several calls, so that lines may lie further apart than it took.
    """
    times = [row["dur_s"] for row in iterations]
    together = math.fsum(times)
    each = f"the {units.count(len(times))} iterations add up to {units.duration(together)}"
    if real_s is not None and together > REAL_TOLERANCE * real_s + TOLERANCE_S:
        return f"{each}, but the whole run took {units.duration(real_s)}"
    measured = math.fsum(row["dur_s"] for row in iterations if PHASES[row["phase"]] == "measure")
    phases = math.fsum(getattr(summary, name) or 0.0 for name in _ITERATING)
    if summary.measure_s and measured > PHASE_TOLERANCE * phases + TOLERANCE_S:
        return (
            f"the measured iterations add up to {units.duration(measured)}, but the phases that iterations run in"
            f" lasted {units.duration(phases)}"
        )
    n, n_short = lines.get("n", 0), lines.get("n_short", 0)
    if dur_is != "mean" and n >= FEWEST and n_short > n / 2:
        reported_s, passed = lines["short_told_s"] / n_short, lines["short_passed_s"] / n_short
        return (
            f"{units.count(n_short)} of {units.count(n)} measured iterations were told as {units.ms(reported_s)} ms on"
            f" average, but {units.ms(passed)} ms passed between their lines"
        )
    return None
