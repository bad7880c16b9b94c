"""Whether lanes are isolated: the runs of mpsq bench --neighbours, alone against beside a run of another lane."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis import comparison, isolation
from queue_runner.analysis.grouping import BESIDE, SUBJECT, Arm, by_key, taints, word
from queue_runner.analysis.neighbours import SHARE
from queue_runner.analysis.significance import Verdict
from queue_runner.model import Outcome
from queue_runner.reports._common import arm_tables, footnotes, prepare, select_runs
from queue_runner.reports._common.arm_rows import values_of
from queue_runner.reports._common.columns import RowColumn, columns
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "neighbours"
HELP = "whether lanes are isolated: runs alone against runs beside another lane's (mpsq bench --neighbours)"
ROLE = (
    "CASE WHEN json_extract(spec_json, '$.pairing') = 'alone' THEN 'alone' WHEN job_id IN"
    " (SELECT job_id FROM v_dependency WHERE condition = 'while') THEN 'beside' END"
)
SQL = (
    f"SELECT {prepare.RUN}, json_extract(spec_json, '$.lane') AS bound_to, {ROLE} AS role,"
    f" (SELECT value FROM v_metric m WHERE m.run_id = v_run.run_id AND m.name = '{SHARE}') AS share"
    " FROM v_run WHERE {chosen} AND state = 'DONE' AND role IS NOT NULL ORDER BY job_id, number"
)
_TIMES = RowColumn("times", "as long", lambda row: _of_four(row["times"]), True)
_INTERVAL = RowColumn("interval", "95 % CI", lambda row: _interval(row), True)
COLUMNS = columns(
    "workload config",
    Column("lane", "lane"),
    "label framework device compile dtype runs n_runs n_valid median_s spread_s spread_over",
    Column("times", "as long", units.ratio, True),
    Column("times_low", "from", units.ratio, True),
    Column("times_high", "to", units.ratio, True),
    "p p_corrected verdict same_within seen taints",
)


def finish(rows: list[Row], context: Context) -> Result:
    """Compare the runs of each cell beside a neighbour with those alone, all cells corrected together."""
    rows = prepare.prepare(rows, context)
    for row in rows:
        row["factors"]["lane"] = row["bound_to"]
    kept, left_out = _kept(rows)
    families = comparison.families(kept, prepare.question(kept, context)) if kept else []
    cells = [cell for family in families for cell in _cells(family.arms)]
    verdicts = comparison.judge(
        [(beside, alone) for alone, beside in cells if beside is not None and beside.times and alone.times],
        same_within=context.options.same_within,
    )
    found = footnotes.Taints(rows, (row for cell in cells for arm in cell if arm for row in arm.shown), context)
    raw: list[Row] = []
    sections, lines = [], []
    for alone, beside in cells:
        verdict = verdicts.get((beside, alone)) if beside is not None else None
        table = [_row(arm, verdict if arm is beside else None) for arm in (alone, beside) if arm is not None]
        raw += table
        shown = columns(arm_tables.LABEL, arm_tables.RUNS, arm_tables.MS, found.column, _TIMES, _INTERVAL)
        who = _title(alone)
        sections.append(Section(who, shown, table))
        if verdict is not None:
            lines.append(isolation.sentence(who, verdict, context.options.same_within))
        else:
            lacking = "beside a neighbour" if alone.times else "alone"
            lines.append(f"{who}: nothing to compare, as no run {lacking} is valid (--all takes invalid ones, too)")
    if not rows:
        lines = [select_runs.nothing(context, "of mpsq bench --neighbours")]
    if left_out:
        why = by_key(left_out, lambda pair: pair[1])
        each = [f"{footnotes.named([row['run'] for row, _ in of])}: {reason}" for reason, of in why.items()]
        lines.append(f"left out: {'; '.join(each)}")
    notes = [*footnotes.spreads("ms/iter: geometric mean of run medians", {row["spread_over"] for row in raw})]
    invalid = [row for cell in cells for arm in cell if arm for row in arm.left_out]
    notes += [*found.notes(), *found.excluded(invalid, False)]
    return Result(COLUMNS, raw, sections, lines, notes)


def _kept(rows: Iterable[Row]) -> tuple[list[Row], list[tuple[Row, str]]]:
    """Return the rows to compare, and those without a neighbour throughout, with one although alone, or merged, and
    why."""
    kept, left_out = [], []
    for row in rows:
        why = ""
        if row["merged"]:
            why = "merged: no bundle says on which lanes its runs were, and beside which"
        elif row["outcome"] == Outcome.SUCCEEDED and row["role"] == "beside":
            why = isolation.incomplete(row["share"])
        elif row["factors"].get(BESIDE) and row["role"] == "alone":
            why = "another lane was busy although it was to be alone"
        if why:
            left_out.append((row, why))
        elif row["role"] == "beside":
            row["factors"][BESIDE] = True
            kept.append(row)
        else:
            kept.append(row)
    return kept, left_out


def _cells(arms: Sequence[Arm]) -> list[tuple[Arm, Arm | None]]:
    """Return each arm of runs alone with the one that differs in its neighbour only."""
    found = by_key(arms, lambda arm: str({name: value for name, value in arm.key.items() if name != BESIDE}))
    cells = []
    for several in found.values():
        alone = next((arm for arm in several if not arm.key[BESIDE]), None)
        beside = next((arm for arm in several if arm.key[BESIDE]), None)
        if alone is not None:
            cells.append((alone, beside))
    return cells


def _title(arm: Arm) -> str:
    key = arm.key
    mode = word("compile", key.get("compile"))
    words = [*(key[name] for name in SUBJECT if name != "machine"), key.get("dtype"), key.get("device"), mode]
    return " ".join(str(one) for one in words if one) + f" on {key['lane']}"


def _of_four(ratio: float | None) -> str:
    """Format with four digits: a lane that is isolated differs in the last ones."""
    return units.MISSING if ratio is None else f"{units.number(ratio, 4)} x"


def _interval(row: Mapping[str, Any]) -> str:
    low, high = row["times_low"], row["times_high"]
    return units.MISSING if low is None or high is None else f"{units.number(low, 4)} to {units.number(high, 4)} x"


def _row(arm: Arm, verdict: Verdict | None) -> dict[str, Any]:
    spread_s, over = arm.spread_s
    ratio, low, high = isolation.times(verdict) if verdict is not None else (None, None, None)
    return {
        "workload": arm.key["subject"],
        **{name: arm.key.get(name) for name in ("config", "lane", "framework", "device", "compile", "dtype")},
        "label": word(BESIDE, arm.key[BESIDE]),
        "runs": [row["run"] for row in arm.runs],
        "n_runs": len(arm.ended),
        "n_valid": len(arm.used),
        "median_s": arm.median_s,
        "spread_s": spread_s,
        "spread_over": over,
        "times": ratio,
        "times_low": low,
        "times_high": high,
        **values_of(verdict),
        "taints": sorted({kind for row in arm.shown for kind in taints(row)}),
        "excluded": len(arm.used) < len(arm.ended),
    }
