"""The last losses of a run, each with its step: of one batch, and of the last evaluation of both splits.

The loss of an iteration belongs to the batch that it trained on; `step 5000: train loss 0.6166, val loss 1.7099` of
nanoGPT's train.py are evaluations, means over many batches with dropout off. Losses of different steps do not
compare. Those of two runs that should compute the same are compared by iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.finding import Finding
from queue_runner.analysis.grouping import SUBJECT, Arm
from queue_runner.analysis.reported_run import LastEvaluation, ReportedRun
from queue_runner.monitor.answers.run_query import Context
from queue_runner.store import read

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


def add(rows: Iterable[ReportedRun], context: Context) -> list[ReportedRun]:
    """Return the rows with LastEvaluation."""
    rows = list(rows)
    last = {}
    for run_id, ((step, train, val),) in context.tuples_by_run(read.LAST_EVALUATIONS, rows).items():
        last[run_id] = LastEvaluation(
            eval_step_first=step, eval_step_last=step, eval_train_loss=train, eval_val_loss=val
        )
    return [row.changed(**vars(last[row.run_id])) if row.run_id in last else row for row in rows]


def of_arm(arm: Arm) -> LastEvaluation:
    """Return the medians over the runs of an arm; no loss where the runs were evaluated at different steps."""
    steps = [row.eval_step_last for row in arm.shown if row.eval_step_last is not None]
    if not steps or min(steps) < max(steps):
        return LastEvaluation(eval_step_first=min(steps, default=None), eval_step_last=max(steps, default=None))
    return LastEvaluation(
        eval_step_first=steps[0],
        eval_step_last=steps[0],
        eval_train_loss=arm.median("eval_train_loss"),
        eval_val_loss=arm.median("eval_val_loss"),
    )


def steps(evaluation: LastEvaluation) -> str:
    """Return the step of the last evaluation: "5,000", or "250 to 5,000" where an arm's runs differ."""
    first, last = evaluation.eval_step_first, evaluation.eval_step_last
    if first is None or last is None:
        return units.MISSING
    return units.count(last) if first == last else f"{units.count(first)} to {units.count(last)}"


def findings(family: Family) -> Iterable[str]:
    """Say that evaluations have different steps, such as those of a run of 50 iterations and one of 5,000."""
    losses = [(arm, of_arm(arm)) for arm in family.arms if arm.shown]
    known = [(arm, last) for arm, last in losses if last.eval_step_last is not None]
    if len({(last.eval_step_first, last.eval_step_last) for _, last in known}) < 2:
        return
    parts = "; ".join(f"{arm.label} at step {steps(last)}" for arm, last in known)
    yield Finding(f"the evaluation losses are from different steps, so do not compare them: {parts}")


def relative(a: float, b: float) -> float | None:
    """Return the difference of loss `a` from the baseline's `b` as a share of `b`; inf where either is NaN or infinite,
    but None where both are NaN or the same infinity."""
    if math.isfinite(a) and math.isfinite(b):
        return abs(a - b) / abs(b) if b else (0.0 if a == b else math.inf)
    if a == b or (math.isnan(a) and math.isnan(b)):
        return None
    return math.inf


def by_iteration(run_id: int, context: Context) -> dict[int, float]:
    """Read a run's losses by iteration, limited by --iters; of an iteration repeated by a resumed job, the last one.

    SQLite has no NaN: see IS_NAN.
    """
    first, last = context.options.iters or (0, 2**62)
    sql = f"SELECT i, loss, {IS_NAN} FROM v_iteration t WHERE run_id = ? AND i BETWEEN ? AND ? ORDER BY offset"
    iterations = context.tuples(sql, [run_id, first, last])
    return {i: math.nan if is_nan else float(loss) for i, loss, is_nan in iterations if is_nan or loss is not None}


Losses = Callable[[int], Mapping[int, float]]
"""Returns the losses of a run by iteration."""


def last_losses(arm: Arm, base: Arm, losses: Losses) -> tuple[float, float] | None:
    """Return the mean losses of the last iterations that a run of the arm and one of the baseline, of the same seed
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
    return mine, theirs


def wrong_losses(family: Family, losses: Losses) -> Iterable[str]:
    """Name the rows whose last losses differ although they should compute the same as the baseline: all that
    distinguishes them is device, mode and software."""
    base = family.baseline
    for arm in family.arms if base is not None else ():
        if base is None or arm is base or _settings(arm) != _settings(base):
            continue
        pairs = [last] if (last := last_losses(arm, base, losses)) else []
        val, base_val = of_arm(arm), of_arm(base)
        if val.eval_step_last == base_val.eval_step_last and val.eval_val_loss and base_val.eval_val_loss:
            pairs.append((val.eval_val_loss, base_val.eval_val_loss))
        for ours, theirs in pairs:
            if (relative(ours, theirs) or 0.0) > SAME_LOSS_WITHIN:
                ends = f"{arm.label} ends at {units.loss(ours)} ({base.label}: {units.loss(theirs)})"
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
