"""Losses of two runs by iteration, and where they diverge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from queue_runner import units
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.reports._common.document import Context

LEVELS = (1e-3, 1e-2)
"""Relative differences whose first iteration is reported."""


@dataclass(frozen=True, eq=False)
class Divergence:
    """A run against the baseline run of the same seed. `points`: i, loss, baseline loss, relative difference.

    The relative difference is |a - b| / |b|; inf where either is NaN or infinite, but None where both are NaN or the
    same infinity.
    """

    arm: Arm
    run: ReportedRun
    baseline: ReportedRun
    points: Sequence[tuple[int, float, float, float | None]]

    def first(self, level: float) -> int | None:
        """Return the first iteration whose difference exceeds the level."""
        return next((i for i, _, _, off in self.points if off is not None and off > level), None)

    @property
    def greatest(self) -> tuple[int, float | None]:
        """The iteration with the greatest difference; None if no difference is known."""
        known = [(i, off) for i, _, _, off in self.points if off is not None]
        return max(known, key=lambda point: point[1], default=(self.points[0][0], None))

    def first_finite(self, ours: bool) -> int | None:
        """Return the first iteration with one finite loss: the run's, or else the baseline's."""
        finite = ((i, math.isfinite(a), math.isfinite(b)) for i, a, b, _ in self.points)
        return next((i for i, a, b in finite if (a, b) == (ours, not ours)), None)


def relative(a: float, b: float) -> float | None:
    """Return the difference of loss `a` from the baseline's `b` as a share of `b`; see Divergence."""
    if math.isfinite(a) and math.isfinite(b):
        return abs(a - b) / abs(b) if b else (0.0 if a == b else math.inf)
    if a == b or (math.isnan(a) and math.isnan(b)):
        return None
    return math.inf


def losses(run_id: int, context: Context) -> dict[int, float]:
    """Read a run's losses by iteration, limited by --iters; of an iteration repeated by a resumed job, the last one.

    SQLite has no NaN: a missing loss in a run with the note nan_loss is NaN.
    """
    first, last = context.options.iters or (0, 2**62)
    sql = (
        "SELECT i, loss, EXISTS (SELECT 1 FROM notes WHERE run_id = t.run_id AND kind = 'nan_loss')"
        " FROM v_iteration t WHERE run_id = ? AND i BETWEEN ? AND ? ORDER BY offset"
    )
    iterations = context.tuples(sql, [run_id, first, last])
    known = {i: math.nan if loss is None else float(loss) for i, loss, _ in iterations}
    return known if any(is_nan for *_, is_nan in iterations) else {i: x for i, x in known.items() if not math.isnan(x)}


def format_difference(x: float | None) -> str:
    """Format a relative difference: "1.2e-07", from 0.1 % on as a percentage; "0" for none."""
    if x == 0:
        return "0"
    if x is None or not math.isfinite(x):
        return "NaN" if x is not None else units.MISSING
    return units.percent(x, 2) if x >= LEVELS[0] else f"{x:.1e}"
