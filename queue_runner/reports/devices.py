"""The default report: the fastest device and mode, by how much, and whether the data support it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis import run_metrics, stats
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.finding import NextStep
from queue_runner.analysis.findings import Step0, describe
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.errors import UsageError, did_you_mean
from queue_runner.monitor import answers
from queue_runner.monitor.answers import prepare, select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables, losses
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.compared import NEWEST as NEWEST
from queue_runner.reports._common.compared import compared
from queue_runner.reports._common.document import Result, Section
from queue_runner.tables import Column

NAME = "devices"
HELP = "compare devices and modes: speed, cost, losses, speedups with verdicts"
READS = ("by", "vs", "group_by", "iters")
SQL = answers.SQL

COLUMNS = columns(
    "table workload config label framework framework_version device device_name compile dtype factors runs n_runs "
    "n_valid compared time_of median_s spread_s spread_over q1_s q3_s n_measure tokens_per_s samples_per_s flops_per_s "
    "mfu peak_flops peak_source first_iter_s",
    Column("compile_cost_s", "compile cost", units.short_duration, True),
    Column("compile_cache", "cache"),
    Column("compile_cost_warm_s", "compile cost, warm", units.short_duration, True),
    Column("break_even_iters", "break-even", units.count, True),
    "real_s user_s sys_s max_rss_bytes peak_reserved_bytes n_iters",
    Column("loss_first", "first loss", units.loss, True),
    "loss_last val_loss_last eval_train_loss eval_val_loss eval_step_first eval_step_last projected_real_s "
    "is_baseline speedup speedup_low speedup_high",
    "verdict undecided_because n_rounds n_machines given_after more_rounds same_within metrics",
    "taints",
)

MOST_DETAILED = 64
"""Maximum number of runs whose losses before the first step are read."""
_MEAN_STEP = (
    "mean step: time of the whole training divided by its steps, including evaluations, checkpoints and the first"
    " iteration, and therefore not compared. The log has no iteration times; add mpsq_report's TrainerCallback to the"
    " script to report them (docs/protocol.md)"
)


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Group, compare and describe the runs. Raises: UsageError when --vs or --group-by is invalid."""
    rows, families = answers.compared(losses.add(prepare.windowed(stored, context), context), context)
    step0 = _step0(families, context)
    curves = cache(lambda run_id: losses.by_iteration(run_id, context))

    def sentences(family: Family) -> Iterable[str]:
        yield from describe(family, step0)
        yield from losses.wrong_losses(family, curves)
        yield from losses.findings(family)

    result = compared("mpsq report", COLUMNS, rows, families, sentences, context)
    by = context.options.aim.by
    shown = [row for family in result.families for row in family.shown]
    if by and not any(run_metrics.value(row, by) is not None for row in shown):
        names = ["time", *sorted({name for family in result.families for name in family.metrics} - {by})]
        known = did_you_mean(by, names[1:], f"--by takes {', '.join(names)}")
        reads = "mpsq run --metric 'loss=loss ([0-9.]+)' reads one from a log"
        raise UsageError(f'no selected run has the metric "{by}"', known if names[1:] else reads)
    means = _mean_steps(result.families, context)
    sections = [*result.sections, *means]
    offers_rounds = any(isinstance(line, NextStep) and "mpsq rerun" in line.command for line in result.lines)
    closed = answers.closed_sentences(context.connection, result.families, offers_rounds)
    lines = [*result.lines, *closed, *([_MEAN_STEP] if means else [])]
    if not rows:
        lines = [select_runs.nothing(context, "at all")]
    elif not sections:
        groups = {row.group_id for row in rows}
        lines = [f"no run has ended yet: mpsq {f'why g{groups.pop()}' if len(groups) == 1 else 'status'} explains it"]
    return replace(result, sections=sections, lines=lines, text=None if sections or not rows else "")


def _of_one_seed(family: Family) -> list[ReportedRun]:
    """Return the first run of each row that has the seed of most rows: losses of two seeds do not compare."""
    seeds = Counter(seed for arm in family.arms for seed in dict.fromkeys(run.seed for run in arm.shown))
    seed = max(seeds, key=seeds.__getitem__, default=None)
    return [run for arm in family.arms for run in [run for run in arm.shown if run.seed == seed][:1]]


def _step0(families: Sequence[Family], context: Context) -> Step0:
    """Read the losses before the first step, for one run of each arm."""
    runs = [row for family in families if len(family.arms) > 1 for row in _of_one_seed(family)][:MOST_DETAILED]
    losses = context.tuples_by_run(
        "SELECT run_id, split, value FROM v_eval"
        " WHERE run_id IN ({runs}) AND i = 0 AND metric = 'loss' AND value IS NOT NULL"
        " UNION ALL SELECT run_id, 'on the device', value FROM metrics"
        " WHERE run_id IN ({runs}) AND name = 'reference_loss_device' AND value IS NOT NULL",
        runs,
    )
    return {run_id: dict(values) for run_id, values in losses.items()}


def _mean_steps(families: Iterable[Family], context: Context) -> list[Section]:
    """Return a table for each family with arms whose logs have only a mean time of a step; these are not compared."""
    mean_step = Column("mean_step_s", "mean step, ms", units.ms, True)
    tables = []
    for family in families:
        arms = [arm for arm in family.arms if arm.shown and not any(row.n_iters for row in arm.shown)]
        metrics = context.tuples_by_run(
            "SELECT run_id, value FROM v_metric WHERE run_id IN ({runs}) AND name = 'mean_step' AND value > 0",
            [row for arm in arms for row in arm.shown],
        )
        means = [(arm, [mean_s for row in arm.shown for (mean_s,) in metrics.get(row.run_id, [])]) for arm in arms]
        if rows := [
            {"label": arm.label, "n_runs": len(values), "mean_step_s": stats.median(values)}
            for arm, values in means
            if values
        ]:
            shown = columns(arm_tables.LABEL, Column("n_runs", "runs", str, True), mean_step)
            tables.append(Section(f"{arm_tables.caption(family)}: mean of the whole training", shown, rows))
    return tables
