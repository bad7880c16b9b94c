"""The last losses of a run, each with its step: of one batch, and of the last evaluation of both splits.

The loss of an iteration belongs to the batch that it trained on; `step 5000: train loss 0.6166, val loss 1.7099` of
nanoGPT's train.py are evaluations, means over many batches with dropout off. Losses of different steps do not
compare.
"""

from __future__ import annotations

from collections.abc import Iterable

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.finding import Finding
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.reported_run import LastEvaluation, ReportedRun
from queue_runner.monitor.answers.run_query import Context
from queue_runner.store import read


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
    yield Finding(f"the evaluation losses are from different steps, so they do not compare the rows: {parts}")
