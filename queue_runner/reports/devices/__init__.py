"""The default report: the fastest device and mode, by how much, and whether the data support it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, compare
from queue_runner.analysis.findings import RunDetails, describe
from queue_runner.analysis.grouping import Arm
from queue_runner.reports._common import footnotes, prepare, select_runs
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports.devices import rows as _rows
from queue_runner.reports.devices import tables
from queue_runner.tables import Column

NAME = "devices"
HELP = "compare devices and modes: speed, cost, losses, ratios with verdicts"
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} ORDER BY job_id, number"

COLUMNS = (
    Column("workload", "workload"),
    Column("config", "config"),
    Column("label", "row"),
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("device", "device"),
    Column("device_name", "device name"),
    Column("compile", "compile"),
    Column("dtype", "dtype"),
    Column("factors", "factors", json.dumps),
    Column("runs", "runs", " ".join),
    Column("n_runs", "ended", units.count, True),
    Column("n_valid", "valid", units.count, True),
    Column("compared", "compared"),
    Column("median_s", "time an iteration", units.short_duration, True),
    Column("spread_s", "spread", units.short_duration, True),
    Column("spread_over", "spread over"),
    Column("q1_s", "lower quartile", units.short_duration, True),
    Column("q3_s", "upper quartile", units.short_duration, True),
    Column("n_measure", "measured", units.count, True),
    Column("tokens_per_s", "tokens/s", units.number, True),
    Column("samples_per_s", "samples/s", units.number, True),
    Column("flops_per_s", "FLOP/s", units.flops_per_s, True),
    Column("mfu", "MFU", units.percent, True),
    Column("peak_flops", "peak", units.flops_per_s, True),
    Column("peak_source", "peak from"),
    Column("first_iter_s", "first iteration", units.short_duration, True),
    Column("compile_cost_s", "compile cost", units.short_duration, True),
    Column("compile_cache", "cache"),
    Column("compile_cost_warm_s", "compile cost, warm", units.short_duration, True),
    Column("break_even_iters", "pays after", units.count, True),
    Column("real_s", "real s", units.seconds, True),
    Column("user_s", "user s", units.seconds, True),
    Column("sys_s", "sys s", units.seconds, True),
    Column("max_rss_bytes", "max RSS", units.size, True),
    Column("n_iters", "iterations", units.count, True),
    Column("loss_first", "first loss", units.loss, True),
    Column("loss_last", "train loss", units.loss, True),
    Column("val_loss_last", "val loss", units.loss, True),
    Column("projected_real_s", "full run, projected", units.duration, True),
    Column("is_baseline", "baseline"),
    Column("speedup", "speed-up", units.ratio, True),
    Column("speedup_low", "from", units.ratio, True),
    Column("speedup_high", "to", units.ratio, True),
    Column("p", "p", lambda p: units.number(p, 2), True),
    Column("p_corrected", "p (Holm)", lambda p: units.number(p, 2), True),
    Column("verdict", "verdict"),
    Column("taints", "taints", " ".join),
)

MOST_FAMILIES = 4
"""Maximum number of comparisons shown when no runs were chosen."""
MOST_LOOKED_AT = 64
"""Maximum number of runs read beyond the summary (losses before the first step, last evaluating iteration)."""


def finish(rows: list[Row], context: Context) -> Result:
    """Group, compare and describe the runs. Raises: UsageError when --vs or --group-by is invalid."""
    rows = prepare.windowed(prepare.prepare(rows, context), context)
    families = _newest_first(compare(rows, prepare.question(rows, context)))
    n_shown = len(families) if context.options.chosen else MOST_FAMILIES
    taints = footnotes.Taints(rows, context)
    marks = footnotes.letters(taints.caveats(families))
    peaks, seen = _rows.Peaks(context), _look(families, context)
    raw: list[dict[str, Any]] = []
    sections: list[Section] = []
    lines: list[str] = []
    for k, family in enumerate(families):
        family_rows = [_rows.row_of(family, cell, peaks) for cell in family.cells]
        raw += family_rows
        if k >= n_shown:
            continue
        sections += tables.sections(family, family_rows, marks)
        said = describe(family, seen)
        if len(families) > 1 and said:
            lines.append(tables.caption(family, family_rows) + ":")
        lines += said
    if not rows:
        lines = [select_runs.nothing(context, "at all")]
    elif not sections:
        lines = ["no run has ended yet: mpsq status shows what runs and what waits"]
    told = raw[: sum(len(family.cells) for family in families[:n_shown])]
    notes = [*footnotes.few(told), *footnotes.notes(families[:n_shown], told, taints, marks, context)]
    if (n_left := len(families) - n_shown) > 0:
        older = f"{n_left} older comparison{'s are' if n_left > 1 else ' is'} not shown"
        notes.append(f"{older}: mpsq report g4, --since 2d or --where config=NAME chooses; csv and json hold all rows")
    return Result(COLUMNS, raw, sections, lines, notes, text=None if sections or not rows else "")


def _newest_first(families: Sequence[Family]) -> list[Family]:
    newest = {id(family): max(row["run_id"] for cell in family.cells for row in cell.runs) for family in families}
    return sorted(families, key=lambda family: -newest[id(family)])


def _look(families: Sequence[Family], context: Context) -> RunDetails:
    """Read data missing from the summaries, for one run of each cell."""
    cells: list[Arm] = [cell for family in families if len(family.cells) > 1 for cell in family.cells if cell.shown]
    chosen = [cell.shown[0] for cell in cells][:MOST_LOOKED_AT]
    if not chosen:
        return RunDetails()
    ids = ", ".join(str(int(row["run_id"])) for row in chosen)
    step0: dict[int, dict[str, float]] = {}
    for sql in (
        f"SELECT run_id, split AS name, value FROM v_eval WHERE run_id IN ({ids}) AND i = 0 AND metric = 'loss'",
        f"SELECT run_id, 'on the device' AS name, value FROM metrics WHERE run_id IN ({ids})"
        " AND name = 'reference_loss_device'",
    ):
        for found in context.read(sql):
            if found["value"] is not None:
                step0.setdefault(found["run_id"], {})[found["name"]] = found["value"]
    last_eval = {}
    for row in chosen:
        if "unsynced" in (row["taints"] or ""):
            sql = "SELECT i, dur_s, phase FROM v_iteration WHERE run_id = ? ORDER BY offset DESC LIMIT 1"
            for found in context.read(sql, [row["run_id"]]):
                if found["phase"] == "eval_iter":
                    last_eval[row["run_id"]] = (found["i"], found["dur_s"])
    return RunDetails(step0, last_eval)
