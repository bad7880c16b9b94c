"""Rows of arms as tables for people, at most 80 characters wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import MAIN, SUBJECT, word
from queue_runner.reports._common.columns import RowColumn, columns, short
from queue_runner.reports._common.footnotes import Taints
from queue_runner.reports._common.prepare import DETAILS
from queue_runner.reports._common.report import Section
from queue_runner.tables import Column, elide

Raw = Mapping[str, Any]


def spread(x: float | None, x_spread: float | None, over: str | None, scale: float = 1.0) -> str:
    """Format as `220.7 ± 0.3` over runs, or `220.7 (0.3)` over the iterations of one run."""
    text = units.plus_minus(x, x_spread, "", scale)
    value, plus_minus, amount = text.partition(f" {units.PLUS_MINUS} ")
    return f"{value} ({amount})" if plus_minus and over == "iterations" else text


def _speedup(row: Raw) -> str:
    return "baseline" if row["is_baseline"] else units.ratio(row["speedup"])


def _ms(row: Raw) -> str:
    return spread(row["median_s"], row["spread_s"], row["spread_over"], 1e-3)


LABEL = Column("label", "", flexible=True)
RUNS = RowColumn("runs", "runs", lambda row: f"{row['n_valid']}/{row['n_runs']}", True)
MS = RowColumn("ms", "ms/iter", _ms, True)
SPEEDUP = RowColumn("speedup", "speedup", _speedup, True)
TFLOPS = Column("flops_per_s", "TFLOP/s", units.tflops, True)


def sections(family: Family, rows: Sequence[Raw], taints: Taints) -> list[Section]:
    """Return speed, verdicts if any, cost and outcome; nothing before a run has ended."""
    if not any(row["n_runs"] for row in rows):
        return []
    outcome = Section("", columns(LABEL, "n_iters loss_last val_loss_last projected_real_s"), rows)
    others = (without_empty(_cost(rows)), without_empty(outcome))
    return [
        without_empty(_speed(family, rows, taints)),
        *verdicts(family, rows),
        *(section for section in others if len(section.columns) > 1),
    ]


def without_empty(section: Section) -> Section:
    """Return the section without columns that are empty in all rows, but keep the number of runs and their time."""
    kept = [
        column
        for column in section.columns
        if column.key in ("label", "runs", "ms") or any(column.show(row) != units.MISSING for row in section.rows)
    ]
    return replace(section, columns=kept)


def caption(family: Family, rows: Sequence[Raw] = ()) -> str:
    """Return what all shown runs of the family, and `rows`, have in common."""
    shown = [*rows, *family.shown]  # --group-by may pool several frameworks

    def only(name: str) -> str | None:
        values = {row[name] for row in shown} - {None}
        return str(values.pop()) if len(values) == 1 else None

    subject = ", ".join(dict.fromkeys(str(arm.key["subject"]) for arm in family.arms))
    framework, version, device = only("framework"), only("framework_version"), only("device_name")
    words = [_joined(subject, family.common["config"]), _joined(framework, framework and version), only("dtype")]
    words += [word(n, value) for n, value in family.common.items() if n not in SUBJECT and value is not None]
    for name in sorted(set(family.arms[0].key) - set(family.common) - {*MAIN, *DETAILS}):
        values = {arm.key[name] for arm in family.arms}
        if len(values) == 1 and values != {None}:
            words.append(word(name, *values))
    return ", ".join(filter(None, [*words, device and f"on {device}", family.arms[0].runs[0]["where"]]))


def _joined(*words: object) -> str:
    return " ".join(str(word) for word in words if word)


def _speed(family: Family, rows: Sequence[Raw], taints: Taints) -> Section:
    has = {unit for unit in ("tokens", "samples") if any(row[f"{unit}_per_s"] for row in rows)}
    rate = "samples_per_s" if has == {"samples"} else "tokens_per_s"
    lines = []
    if family.baseline is not None:
        per = f" in time per {family.per_work}, because iterations differ in size" if family.per_work else ""
        tested = any(row["speedup_low"] is not None for row in rows)
        of = "; ratio of the geometric means of the run medians" if tested else ""
        lines.append(f"speedup: relative to {family.baseline.label} ({family.why}){per}{of}")
    shown = columns(LABEL, RUNS, MS, *taints.columns(rows), rate, TFLOPS, "mfu", SPEEDUP)
    return Section(caption(family, rows), shown, rows, lines)


def verdicts(family: Family, rows: Sequence[Raw], title: str = "") -> list[Section]:
    """Return a table of speedups with intervals, p-values and verdicts, if there is an interval."""
    if family.baseline is None or all(row["speedup_low"] is None for row in rows):
        return []
    over = [row for row in rows if not row["is_baseline"] and row["speedup"] is not None]
    return [verdict_table(over, f"vs {elide(family.baseline.label, 24)}", title)]


def verdict_table(rows: Sequence[Raw], heading: str, title: str = "", *more: Column) -> Section:
    """Return a table of the speedups of `rows` with interval, p-value and verdict; `more` columns follow the label."""
    interval = RowColumn("interval", "95 % CI", _interval, True)
    verdict = RowColumn("verdict", "verdict", lambda row: row["judged"].short if row["judged"] else units.MISSING)
    shown = columns(replace(LABEL, title=heading), *more, "speedup", interval, "p_corrected", verdict)
    return Section(title, shown, rows)


def _interval(row: Raw) -> str:
    return units.ratio_interval(row["speedup_low"], row["speedup_high"])


def _cost(rows: Sequence[Raw]) -> Section:
    """Build the cost table. Cold and warm are states of the compiler's cache; logs without it have one column."""
    titles = {"cold": "compile, cold", "warm": "compile, warm", None: "compile", "mixed": "compile, mixed"}
    states = [state for state in titles if any(_compile(row, state) is not None for row in rows)]
    compiling = []
    if any(row["compile_cache"] == "cold" and row["first_iter_s"] is not None for row in rows):
        compiling.append("1st iter: of compiled rows, with a cold cache")
    if known := [state for state in states if state]:
        compiling.append(f"compile: time added to the first iteration with a {' or '.join(known)} compiler cache")
    metal = []
    if any(row["device"] == "mps" and row["first_iter_s"] is not None for row in rows):
        metal.append("1st iter on mps: Metal's own shader cache may be warm, in eager rows too")
    texts = {"real_s": "real, user, sys: seconds", "max_rss_bytes": "RSS: peak"}
    measured = [text for key, text in texts.items() if any(row[key] is not None for row in rows)]
    shown = columns(
        LABEL,
        Column("first_iter_s", "1st iter", short, True),
        *(_compile_column(state, titles[state]) for state in states),
        "real_s user_s sys_s",
        Column("max_rss_bytes", "RSS", units.size, True),
    )
    return Section("", shown, rows, ["; ".join(parts) for parts in (compiling, metal, measured) if parts])


def _compile_column(state: str | None, title: str) -> Column:
    return RowColumn(f"compile_{state}", title, lambda row: short(_compile(row, state)), True)


def _compile(row: Raw, state: str | None) -> float | None:
    """Return the compile cost with the cache in that state."""
    if state == "warm" and row["compile_cost_warm_s"] is not None:
        return float(row["compile_cost_warm_s"])
    cost_s: float | None = row["compile_cost_s"]
    return cost_s if row["compile_cache"] == state else None
