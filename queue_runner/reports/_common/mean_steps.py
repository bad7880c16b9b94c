"""Mean times of a step that a log tells of the whole training: shown, and never compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from queue_runner.analysis import stats
from queue_runner.analysis.comparison import Family
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common.arm_tables import LABEL, caption
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Section
from queue_runner.tables import Column
from queue_runner.units import ms

SENTENCE = (
    "mean step: time of the whole training divided by its steps, including evaluations, checkpoints and the first"
    " iteration, and therefore not compared. The log has no iteration times; add mpsq_report's TrainerCallback to the"
    " script to report them (docs/protocol.md)"
)


class MeanStep(NamedTuple):
    label: str
    n_runs: int
    mean_step_s: float


_MEAN = Column("mean_step_s", "mean step, ms", ms, True)


def sections(families: Iterable[Family], context: Context) -> list[Section]:
    """Return a table for each family with arms that have no time of an iteration and a mean of a step."""
    tables = []
    for family in families:
        arms = [arm for arm in family.arms if arm.shown and not any(row.n_iters for row in arm.shown)]
        metrics = context.tuples_by_run(
            "SELECT run_id, value FROM v_metric WHERE run_id IN ({runs}) AND name = 'mean_step' AND value > 0",
            [row for arm in arms for row in arm.shown],
        )
        means = [(arm, [mean_s for row in arm.shown for (mean_s,) in metrics.get(row.run_id, [])]) for arm in arms]
        if rows := [MeanStep(arm.label, len(values), stats.median(values)) for arm, values in means if values]:
            shown = columns(LABEL, Column("n_runs", "runs", str, True), _MEAN)
            tables.append(Section(f"{caption(family)}: mean of the whole training", shown, rows))
    return tables
