"""Losses of two runs by iteration, and where they diverge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import SUBJECT, Arm
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common.losses import of_arm

SAME_LOSS_WITHIN = 0.02
"""Maximum relative difference of alike mean losses of the last iterations: dropout alone causes about 1 %."""
LAST_SHARE = 0.1
LAST_AT_LEAST = 10
"""The losses compared are those of the last tenth of the iterations that both arms have, but of at least this many."""
IS_NAN = "loss IS NULL AND offset >= (SELECT min(offset) FROM notes n WHERE n.run_id = t.run_id AND kind = 'nan_loss')"
"""Whether an iteration of `v_iteration t` had a loss that was NaN: the note is at the first one. Earlier ones without a
loss did not report it."""
LEVELS = (1e-3, 1e-2)
"""Relative differences whose first iteration is reported."""


class Divergence(Struct, frozen=True, eq=False):
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

    SQLite has no NaN: see IS_NAN.
    """
    first, last = context.options.iters or (0, 2**62)
    sql = f"SELECT i, loss, {IS_NAN} FROM v_iteration t WHERE run_id = ? AND i BETWEEN ? AND ? ORDER BY offset"
    iterations = context.tuples(sql, [run_id, first, last])
    return {i: math.nan if is_nan else float(loss) for i, loss, is_nan in iterations if is_nan or loss is not None}


class LastLosses(NamedTuple):
    """The mean of a run's last `n` losses, that of the baseline, and their relative difference."""

    mean: float
    baseline: float
    n: int
    apart: float


Losses = Callable[[int], Mapping[int, float]]
"""Returns the losses of a run by iteration."""


def last_losses(arm: Arm, base: Arm, losses: Losses) -> LastLosses | None:
    """Compare the mean losses of the last iterations that a run of the arm and one of the baseline, of the same seed
    and data, have in common; None if there are none."""
    both = ((ours, other) for other in base.shown for ours in arm.shown)
    pairs = (pair for pair in both if (pair[0].seed, pair[0].data_sha256) == (pair[1].seed, pair[1].data_sha256))
    if (pair := next(pairs, None)) is None:
        return None
    a, b = (losses(row.run_id) for row in pair)
    common = sorted(a.keys() & b.keys())
    last = common[-max(LAST_AT_LEAST, math.ceil(len(common) * LAST_SHARE)) :]
    if not last:
        return None
    mine, theirs = (math.fsum(by_i[i] for i in last) / len(last) for by_i in (a, b))
    difference = relative(mine, theirs)
    return LastLosses(mine, theirs, len(last), math.inf if difference is None else difference)


def wrong_losses(family: Family, losses: Losses) -> Iterable[str]:
    """Name the rows whose last losses differ although they should compute the same as the baseline: all that
    distinguishes them is device, mode and software."""
    base = family.baseline
    for arm in family.arms if base is not None else ():
        if base is None or arm is base or _settings(arm) != _settings(base):
            continue
        last = last_losses(arm, base, losses)
        pairs = [(last.mean, last.baseline)] if last else []
        val, base_val = of_arm(arm), of_arm(base)
        if val.eval_step_last == base_val.eval_step_last and val.eval_val_loss and base_val.eval_val_loss:
            pairs.append((val.eval_val_loss, base_val.eval_val_loss))
        for ours, theirs in pairs:
            if (relative(ours, theirs) or 0.0) > SAME_LOSS_WITHIN:
                ends = f"{arm.label} ends at {units.loss(ours)}, {base.label} at {units.loss(theirs)}"
                yield f"wrong loss: {ends}; find out why before using its speed"
                break


def _settings(arm: Arm) -> dict[str, Any]:
    """Return what makes the training of a row another one: of a command its arguments and its code, too."""
    settings = {name: value for run in arm.runs for name, value in run.settings.items()}
    of_command = ("arguments", "code", "prepare") if any(run.kind == "command" for run in arm.runs) else ()
    return {**settings, **{name: arm.key.get(name) for name in (*SUBJECT, *of_command)}}


def format_difference(x: float | None) -> str:
    """Format a relative difference: "1.2e-07", from 0.1 % on as a percentage; "0" for none."""
    if x == 0:
        return "0"
    if x is None or not math.isfinite(x):
        return "NaN" if x is not None else units.MISSING
    return units.percent(x, 2) if x >= LEVELS[0] else f"{x:.1e}"
