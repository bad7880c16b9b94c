"""The default report: the fastest device and mode, by how much, and whether the data support it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, compare
from queue_runner.analysis.findings import RunDetails, describe
from queue_runner.reports._common import arm_tables, footnotes, prepare, select_runs
from queue_runner.reports._common.arm_rows import newest_first, row_of
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.peaks import Peaks
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "devices"
HELP = "compare devices and modes: speed, cost, losses, speedups with verdicts"
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} ORDER BY job_id, number"

COLUMNS = columns(
    "workload config label framework framework_version device device_name compile dtype factors runs n_runs n_valid "
    "compared median_s spread_s spread_over q1_s q3_s n_measure tokens_per_s samples_per_s flops_per_s mfu "
    "peak_flops peak_source first_iter_s",
    Column("compile_cost_s", "compile cost", units.short_duration, True),
    Column("compile_cache", "cache"),
    Column("compile_cost_warm_s", "compile cost, warm", units.short_duration, True),
    Column("break_even_iters", "break-even", units.count, True),
    "real_s user_s sys_s max_rss_bytes n_iters",
    Column("loss_first", "first loss", units.loss, True),
    Column("loss_last", "train loss", units.loss, True),
    Column("val_loss_last", "val loss", units.loss, True),
    Column("projected_real_s", "projected total", units.duration, True),
    "is_baseline speedup speedup_low speedup_high p p_corrected verdict taints",
)

MOST_FAMILIES = 4
"""Maximum number of comparisons shown when no runs were chosen."""
MOST_DETAILED = 64
"""Maximum number of runs read beyond the summary (losses before the first step, last iteration with an evaluation)."""


def finish(rows: list[Row], context: Context) -> Result:
    """Group, compare and describe the runs. Raises: UsageError when --vs or --group-by is invalid."""
    rows = prepare.windowed(prepare.prepare(rows, context), context)
    families = newest_first(compare(rows, prepare.question(rows, context)))
    n_shown = len(families) if context.options.chosen else MOST_FAMILIES
    taints = footnotes.Taints(rows, context)
    caveats = taints.caveats(row for family in families[:n_shown] for arm in family.arms for row in arm.shown)
    peaks, details = Peaks(context), _details(families, context)
    raw: list[dict[str, Any]] = []
    sections: list[Section] = []
    lines: list[str] = []
    for k, family in enumerate(families):
        family_rows = [row_of(family, arm, peaks) for arm in family.arms]
        raw += family_rows
        if k >= n_shown:
            continue
        sections += arm_tables.sections(family, family_rows, caveats)
        findings = describe(family, details)
        if len(families) > 1 and findings:
            lines.append(arm_tables.caption(family, family_rows) + ":")
        lines += findings
    if not rows:
        lines = [select_runs.nothing(context, "at all")]
    elif not sections:
        lines = ["no run has ended yet: see mpsq status"]
    shown = raw[: sum(len(family.arms) for family in families[:n_shown])]
    notes = [*footnotes.few(shown), *footnotes.notes(families[:n_shown], shown, taints, caveats, context)]
    if (n_left := len(families) - n_shown) > 0:
        older = f"{n_left} older comparison{'s' * (n_left > 1)} not shown"
        notes.append(f"{older}: select with mpsq report g4, --since 2d or --where config=NAME; csv and json have all")
    return Result(COLUMNS, raw, sections, lines, notes, text=None if sections or not rows else "")


def _details(families: Sequence[Family], context: Context) -> RunDetails:
    """Read data missing from the summaries, for one run of each arm."""
    arms = [arm for family in families if len(family.arms) > 1 for arm in family.arms if arm.shown]
    runs = [arm.shown[0] for arm in arms][:MOST_DETAILED]
    ids = ", ".join(str(int(row["run_id"])) for row in runs)
    step0: dict[int, dict[str, float]] = {}
    for sql in (
        f"SELECT run_id, split AS name, value FROM v_eval WHERE run_id IN ({ids}) AND i = 0 AND metric = 'loss'",
        f"SELECT run_id, 'on the device' AS name, value FROM metrics WHERE run_id IN ({ids})"
        " AND name = 'reference_loss_device'",
    ):
        for loss in context.read(sql):
            if loss["value"] is not None:
                step0.setdefault(loss["run_id"], {})[loss["name"]] = loss["value"]
    last_eval = {}
    for row in runs:
        if "unsynced" in (row["taints"] or ""):
            sql = "SELECT i, dur_s, phase FROM v_iteration WHERE run_id = ? ORDER BY offset DESC LIMIT 1"
            for iteration in context.read(sql, [row["run_id"]]):
                if iteration["phase"] == "eval_iter":
                    last_eval[row["run_id"]] = (iteration["i"], iteration["dur_s"])
    return RunDetails(step0, last_eval)
