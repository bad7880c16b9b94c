"""The last losses of a run, each with its step: of one batch, and of the last evaluation of both splits.

The loss of an iteration is of the batch that it trained on; `step 5000: train loss 0.6166, val loss 1.7099` of
nanoGPT's train.py are evaluations, means over many batches with dropout off. Losses of different
steps are no comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.finding import Finding
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.reports._common.document import Context, Row

KEYS = ("eval_step_first", "eval_step_last", "eval_train_loss", "eval_val_loss")
"""Keys of a row that `add` adds. The steps are those of the last evaluation: the same number twice in a row of one run,
the least and the greatest in that of an arm."""

_EVALUATIONS = (
    "SELECT run_id, split, value, i, MAX(offset) AS at FROM v_eval WHERE metric = 'loss'"
    " AND split IN ('train', 'val') AND run_id IN ({runs}) GROUP BY run_id, split"
)
"""SQLite takes the other columns from the row of the maximum."""
_LAST = (
    "SELECT r.run_id, (SELECT t.i FROM v_iteration t WHERE t.run_id = r.run_id ORDER BY t.offset DESC LIMIT 1) AS i"
    " FROM v_run r WHERE r.run_id IN ({runs})"
)


def add(rows: Iterable[ReportedRun], context: Context) -> list[ReportedRun]:
    """Return the rows with KEYS. A split that was not evaluated at the step of the last evaluation has None."""
    rows = list(rows)
    evaluations = context.by_run(_EVALUATIONS, rows)
    return [replace(row, **_of(evaluations.get(row.run_id, ()))) for row in rows]


def _of(evaluations: Sequence[Row]) -> dict[str, Any]:
    step = max((one["i"] for one in evaluations), default=None)
    known = {one["split"]: one["value"] for one in evaluations if one["i"] == step}
    return dict(zip(KEYS, (step, step, known.get("train"), known.get("val")), strict=True))


def of_arm(arm: Arm) -> dict[str, Any]:
    """Return KEYS of an arm: medians over its runs, and no loss where the runs were evaluated at different steps."""
    steps = [row.eval_step_last for row in arm.shown if row.eval_step_last is not None]
    if not steps:
        return dict.fromkeys(KEYS)
    first, last = min(steps), max(steps)
    losses = [arm.median(name) if first == last else None for name in ("eval_train_loss", "eval_val_loss")]
    return dict(zip(KEYS, (first, last, *losses), strict=True))


def steps(row: Mapping[str, Any]) -> str:
    """Return the step of the last evaluation: "5,000", or "250 to 5,000" where an arm's runs differ."""
    first, last = row["eval_step_first"], row["eval_step_last"]
    if first is None:
        return units.MISSING
    return units.count(last) if first == last else f"{units.count(first)} to {units.count(last)}"


def findings(family: Family, context: Context) -> Iterable[str]:
    """Say that evaluations are of different steps, such as of a run that stopped at iteration 50 and one of 5,000."""
    losses = [(arm, of_arm(arm)) for arm in family.arms if arm.shown]
    known = [(arm, row) for arm, row in losses if row["eval_step_last"] is not None]
    if len({(row["eval_step_first"], row["eval_step_last"]) for _, row in known}) < 2:
        return
    each = "; ".join(f"{arm.label} at step {steps(row)}{_ended(arm, row, context)}" for arm, row in known)
    yield Finding(f"the evaluation losses are from different steps, so they do not compare the rows: {each}")


def _ended(arm: Arm, row: Mapping[str, Any], context: Context) -> str:
    """Return where the iterations ended, if they went on after the last evaluation."""
    read = context.by_run(_LAST, arm.shown)
    end = max((one["i"] for found in read.values() for one in found if one["i"] is not None), default=None)
    return f" (its last iteration is {units.count(end)})" if end is not None and end > row["eval_step_last"] else ""
