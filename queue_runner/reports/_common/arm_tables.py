"""Rows of arms as tables for people, at most 80 characters wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import MAIN, word
from queue_runner.reports._common.footnotes import Caveats
from queue_runner.reports._common.prepare import DETAILS
from queue_runner.reports._common.report import Section
from queue_runner.tables import Column, elide

Raw = Mapping[str, Any]

LABEL = Column("label", "", flexible=True)
MS = "ms/iter"


def right(**titles: str) -> list[Column]:
    """Return right-aligned columns of text by key and title."""
    return [Column(key, title, right=True) for key, title in titles.items()]


def sections(family: Family, rows: Sequence[Raw], caveats: Caveats) -> list[Section]:
    """Return speed, verdicts if any, cost and outcome; nothing before a run has ended."""
    if not any(row["n_runs"] for row in rows):
        return []
    others = (without_empty(_cost(rows)), without_empty(_outcome(rows)))
    return [
        without_empty(_speed(family, rows, caveats)),
        *verdicts(family, rows),
        *(section for section in others if len(section.columns) > 1),
    ]


def without_empty(section: Section) -> Section:
    """Return the section without columns that are empty in all rows, but keep the number of runs and their time."""
    columns = [
        column
        for column in section.columns
        if column.key in ("label", "runs", "ms")
        or any(row[column.key] not in (None, units.MISSING) for row in section.rows)
    ]
    return replace(section, columns=columns)


def caption(family: Family, rows: Sequence[Raw]) -> str:
    """Return what all rows of the family have in common."""
    common = family.common
    names = ("framework", "framework_version", "dtype", "device_name")
    pooled = [row for arm in family.arms for row in arm.shown]  # --group-by may pool several frameworks
    alike = {name: {row[name] for row in [*rows, *pooled]} - {None} for name in names}
    subject = [", ".join(dict.fromkeys(str(arm.key["subject"]) for arm in family.arms))]
    if common["config"] is not None:
        subject.append(str(common["config"]))
    words = [" ".join(subject)]
    if len(alike["framework"]) == 1:
        version = alike["framework_version"]
        words.append(" ".join([*alike["framework"], *(version if len(version) == 1 else ())]))
    if len(alike["dtype"]) == 1:
        words.append(*alike["dtype"])
    known = {"subject", "config", "machine"}
    words += [word(name, value) for name, value in common.items() if name not in known and value is not None]
    shared = set(family.arms[0].key) - set(common) - {*MAIN, *DETAILS}
    for name in sorted(shared):
        values = {arm.key[name] for arm in family.arms}
        if len(values) == 1 and values != {None}:
            words.append(word(name, *values))
    if len(alike["device_name"]) == 1:
        words.append("on " + next(iter(alike["device_name"])))
    if place := family.arms[0].runs[0]["where"]:
        words.append(place)
    return ", ".join(words)


def marks(row: Raw, caveats: Caveats) -> str:
    """Return the marks of a row: its caveats, and whether some of its runs are excluded."""
    return caveats.mark(row["taints"], row["n_valid"] < row["n_runs"])


def speedup(row: Raw) -> str:
    """Format the speedup of a row over its baseline."""
    return "baseline" if row["is_baseline"] else units.ratio(row["speedup"])


def spread(x: float | None, x_spread: float | None, over: str | None, scale: float = 1.0) -> str:
    """Format as `220.7 ± 0.3` over runs, or `220.7 (0.3)` over the iterations of one run."""
    text = units.plus_minus(x, x_spread, "", scale)
    value, plus_minus, amount = text.partition(f" {units.PLUS_MINUS} ")
    return f"{value} ({amount})" if plus_minus and over == "iterations" else text


def ms(row: Raw) -> str:
    """Format the time of an iteration in ms, with its spread."""
    return spread(row["median_s"], row["spread_s"], row["spread_over"], 1e-3)


def _speed(family: Family, rows: Sequence[Raw], caveats: Caveats) -> Section:
    has = {unit for unit in ("tokens", "samples") if any(row[f"{unit}_per_s"] for row in rows)}
    rate = "samples" if has == {"samples"} else "tokens"
    noted = any(marks(row, caveats) for row in rows)
    columns = [
        LABEL,
        *right(runs="runs", ms=MS),
        *([Column("marks", "")] if noted else []),
        *right(rate=f"{rate}/s", tflops="TFLOP/s", mfu="MFU", speedup="speedup"),
    ]
    shown = [
        {
            "label": row["label"],
            "runs": f"{row['n_valid']}/{row['n_runs']}",
            "ms": ms(row),
            "marks": marks(row, caveats),
            "rate": units.number(row[f"{rate}_per_s"]),
            "tflops": units.tflops(row["flops_per_s"]),
            "mfu": units.percent(row["mfu"]),
            "speedup": speedup(row),
        }
        for row in rows
    ]
    lines = []
    if family.baseline is not None:
        per = f" in time per {family.per_work}, because iterations differ in size" if family.per_work else ""
        tested = any(row["speedup_low"] is not None for row in rows)
        of = "; ratio of the geometric means of the run medians" if tested else ""
        lines.append(f"speedup: relative to {family.baseline.label} ({family.why}){per}{of}")
    return Section(caption(family, rows), columns, shown, lines)


def verdicts(family: Family, rows: Sequence[Raw], title: str = "") -> list[Section]:
    """Return a table of speedups with intervals, p-values and verdicts, if there is an interval."""
    if family.baseline is None or all(row["speedup_low"] is None for row in rows):
        return []
    over = [row for row in rows if not row["is_baseline"] and row["speedup"] is not None]
    return [verdict_table(over, f"vs {elide(family.baseline.label, 24)}", title)]


def verdict_table(rows: Sequence[Raw], heading: str, title: str = "", *columns: Column) -> Section:
    """Return a table of the speedups of `rows` with interval, p-value and verdict; `columns` follow the label."""
    shown = [
        {
            **row,
            "interval": units.ratio_interval(row["speedup_low"], row["speedup_high"]),
            "verdict": row["judged"].short if row["judged"] else units.MISSING,
        }
        for row in rows
    ]
    every = [
        Column("label", heading, flexible=True),
        *columns,
        Column("speedup", "speedup", units.ratio, True),
        Column("interval", "95 % CI", right=True),
        Column("p_corrected", "p (Holm)", lambda p: units.number(p, 2), True),
        Column("verdict", "verdict"),
    ]
    return Section(title, every, shown)


def _cost(rows: Sequence[Raw]) -> Section:
    """Build the cost table. Cold and warm are states of the compiler's cache; logs without it have one column."""
    titles = {"cold": "compile, cold", "warm": "compile, warm", None: "compile", "mixed": "compile, mixed"}
    states = [state for state in titles if any(_compile(row, state) is not None for row in rows)]
    columns = [
        LABEL,
        *right(first="1st iter"),
        *(Column(f"compile_{state}", titles[state], right=True) for state in states or [None]),
        *right(real="real", user="user", sys="sys", rss="RSS"),
    ]
    shown = [
        {
            "label": row["label"],
            "first": units.short_duration(row["first_iter_s"], 3),
            **{f"compile_{state}": units.short_duration(_compile(row, state), 3) for state in states or [None]},
            "real": units.seconds(row["real_s"]),
            "user": units.seconds(row["user_s"]),
            "sys": units.seconds(row["sys_s"]),
            "rss": units.size(row["max_rss_bytes"]),
        }
        for row in rows
    ]
    compiling = []
    if any(row["compile_cache"] == "cold" and row["first_iter_s"] is not None for row in rows):
        compiling.append("1st iter: of compiled rows, with a cold cache")
    if known := [state for state in states if state]:
        compiling.append(f"compile: time added to the first iteration with a {' or '.join(known)} compiler cache")
    texts = {"real_s": "real, user, sys: seconds", "max_rss_bytes": "RSS: peak"}
    measured = [text for key, text in texts.items() if any(row[key] is not None for row in rows)]
    return Section("", columns, shown, ["; ".join(parts) for parts in (compiling, measured) if parts])


def _compile(row: Raw, state: str | None) -> float | None:
    """Return the compile cost with the cache in that state."""
    if state == "warm" and row["compile_cost_warm_s"] is not None:
        return float(row["compile_cost_warm_s"])
    cost_s: float | None = row["compile_cost_s"]
    return cost_s if row["compile_cache"] == state else None


def _outcome(rows: Sequence[Raw]) -> Section:
    projected = {"projected": "projected total"} if any(row["projected_real_s"] for row in rows) else {}
    shown = [
        {
            "label": row["label"],
            "iters": units.count(row["n_iters"]),
            "train": units.loss(row["loss_last"]),
            "val": units.loss(row["val_loss_last"]),
            "projected": units.duration(row["projected_real_s"]),
        }
        for row in rows
    ]
    return Section("", [LABEL, *right(iters="iterations", train="train loss", val="val loss", **projected)], shown)
