"""Mean times of a step that a log tells of the whole training: shown, and never compared."""

from __future__ import annotations

from collections.abc import Iterable

from queue_runner.analysis import stats
from queue_runner.analysis.comparison import Family
from queue_runner.reports._common.arm_tables import LABEL, caption
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Context, Row, Section
from queue_runner.tables import Column
from queue_runner.units import ms

SENTENCE = (
    "mean step: seconds of the whole training by its steps, with its evaluations, checkpoints and first iteration: no"
    " speed, and not compared. The log has no times of iterations; mpsq_report's TrainerCallback in the script reports"
    " each (docs/protocol.md)"
)
_MEAN = Column("mean_step_s", "mean step, ms", ms, True)


def sections(families: Iterable[Family], context: Context) -> list[Section]:
    """Return a table for each family with arms that have no time of an iteration and a mean of a step."""
    tables = []
    for family in families:
        arms = [arm for arm in family.arms if arm.shown and not any(row.n_iters for row in arm.shown)]
        metrics = context.by_run(
            "SELECT run_id, value FROM v_metric WHERE run_id IN ({runs}) AND name = 'mean_step' AND value > 0",
            [row for arm in arms for row in arm.shown],
        )
        rows: list[Row] = []
        for arm in arms:
            means = [metric for row in arm.shown for metric in metrics.get(row.run_id, [])]
            if means:
                mean_step_s = stats.median([metric["value"] for metric in means])
                rows.append({"label": arm.label, "n_runs": len(means), "mean_step_s": mean_step_s})
        if rows:
            shown = columns(LABEL, Column("n_runs", "runs", str, True), _MEAN)
            tables.append(Section(f"{caption(family)}: mean of the whole training", shown, rows))
    return tables
