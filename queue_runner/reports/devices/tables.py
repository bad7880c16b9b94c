"""The rows of the default report as readable tables, at most 80 characters wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family
from queue_runner.analysis.grouping import MAIN, word
from queue_runner.reports._common.prepare import DETAILS
from queue_runner.reports._common.report import Section
from queue_runner.tables import Column, elide

Raw = Mapping[str, Any]

SEVERAL_LEFT_OUT = "!"
"""Marks a row with runs left out; if all were, it shows their numbers and is not compared."""


def sections(family: Family, rows: Sequence[Raw], marks: Mapping[str, str]) -> list[Section]:
    """Return speed, verdicts if any, cost and outcome; nothing before a run has ended."""
    if not any(row["n_runs"] for row in rows):
        return []
    speed = _speed(family, rows, marks)
    judged = [verdicts(family, rows)] if any(row["speedup_low"] is not None for row in rows) else []
    return [
        told(speed),
        *judged,
        *(part for part in (told(_cost(rows)), told(_outcome(rows))) if len(part.columns) > 1),
    ]


def told(section: Section) -> Section:
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
    pooled = [row for cell in family.cells for row in cell.shown]  # --group-by may pool several frameworks
    alike = {name: {row[name] for row in [*rows, *pooled]} - {None} for name in names}
    said = [", ".join(dict.fromkeys(str(cell.key["subject"]) for cell in family.cells))]
    if common["config"] is not None:
        said.append(str(common["config"]))
    words = [" ".join(said)]
    if len(alike["framework"]) == 1:
        version = alike["framework_version"]
        words.append(" ".join([*alike["framework"], *(version if len(version) == 1 else ())]))
    if len(alike["dtype"]) == 1:
        words.append(*alike["dtype"])
    known = {"subject", "config", "machine"}
    words += [word(name, value) for name, value in common.items() if name not in known and value is not None]
    shared = set(family.cells[0].key) - set(common) - {*MAIN, *DETAILS}
    for name in sorted(shared):
        values = {cell.key[name] for cell in family.cells}
        if len(values) == 1 and values != {None}:
            words.append(word(name, *values))
    if len(alike["device_name"]) == 1:
        words.append("on " + next(iter(alike["device_name"])))
    if place := family.cells[0].runs[0]["where"]:
        words.append(place)
    return ", ".join(words)


def _text(key: str, title: str) -> Column:
    return Column(key, title, right=True)


def _speed(family: Family, rows: Sequence[Raw], marks: Mapping[str, str]) -> Section:
    has = {unit for unit in ("tokens", "samples") if any(row[f"{unit}_per_s"] for row in rows)}
    rate = "samples" if has == {"samples"} else "tokens"
    noted = any(marks_of(row, marks) for row in rows)
    columns = [
        Column("label", "", flexible=True),
        _text("runs", "runs"),
        _text("ms", "ms/iter"),
        *([Column("marks", "")] if noted else []),
        _text("rate", f"{rate}/s"),
        _text("tflops", "TFLOP/s"),
        _text("mfu", "MFU"),
        _text("speedup", "speed-up"),
    ]
    shown = [
        {
            "label": row["label"],
            "runs": f"{row['n_valid']}/{row['n_runs']}",
            "ms": spread(row),
            "marks": marks_of(row, marks),
            "rate": units.number(row[f"{rate}_per_s"]),
            "tflops": units.tflops(row["flops_per_s"]),
            "mfu": units.percent(row["mfu"]),
            "speedup": "baseline" if row["is_baseline"] else units.ratio(row["speedup"]),
        }
        for row in rows
    ]
    lines = []
    if family.baseline is not None:
        per = f" in time per {family.per_work}, iterations being of different size" if family.per_work else ""
        tested = any(row["speedup_low"] is not None for row in rows)
        of = ", of the geometric means of the runs' medians" if tested else ""
        lines.append(f"speed-up: over {family.baseline.label} ({family.why}){per}{of}")
    return Section(caption(family, rows), columns, shown, lines)


def spread(row: Raw) -> str:
    """Format as `220.7 ± 0.3` over runs, or `220.7 (0.3)` over the iterations of one run."""
    text = units.plus_minus(row["median_s"], row["spread_s"], "", 1e-3)
    value, plus_minus, spread = text.partition(f" {units.PLUS_MINUS} ")
    return f"{value} ({spread})" if plus_minus and row["spread_over"] == "iterations" else text


def marks_of(row: Raw, marks: Mapping[str, str]) -> str:
    """Return the letters of the row's caveats, after SEVERAL_LEFT_OUT if some of its runs do not count."""
    letters = "".join(sorted(marks[kind] for kind in row["taints"] if kind in marks))
    return (SEVERAL_LEFT_OUT if row["n_valid"] < row["n_runs"] else "") + letters


def verdicts(family: Family, rows: Sequence[Raw], title: str = "") -> Section:
    """Return speed-ups with intervals, p-values and verdicts, for a family with a baseline."""
    assert family.baseline is not None
    columns = [
        Column("label", f"against {elide(family.baseline.label, 24)}", flexible=True),
        _text("speedup", "speed-up"),
        _text("interval", "95 % interval"),
        _text("p", "p (Holm)"),
        Column("verdict", "verdict"),
    ]
    shown = [
        {
            "label": row["label"],
            "speedup": units.ratio(row["speedup"]),
            "interval": units.ratio_interval(row["speedup_low"], row["speedup_high"]),
            "p": units.number(row["p_corrected"], 2),
            "verdict": row["judged"].short if row["judged"] else units.MISSING,
        }
        for row in rows
        if not row["is_baseline"] and row["speedup"] is not None
    ]
    return Section(title, columns, shown)


def _cost(rows: Sequence[Raw]) -> Section:
    """Build the cost table. Cold and warm are states of the compiler's cache; logs without it have one column."""
    titles = {"cold": "compile, cold", "warm": "compile, warm", None: "compile", "mixed": "compile, mixed"}
    states = [state for state in titles if any(_compile(row, state) is not None for row in rows)]
    columns = [
        Column("label", "", flexible=True),
        _text("first", "1st iter"),
        *(_text(f"compile_{state}", titles[state]) for state in states or [None]),
        *(_text(name, name) for name in ("real", "user", "sys")),
        _text("rss", "RSS"),
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
    words = {"real_s": "real, user, sys in seconds", "max_rss_bytes": "RSS at its highest"}
    said = "; ".join(text for key, text in words.items() if any(row[key] is not None for row in rows))
    lines = [said] if said else []
    if known := [state for state in states if state]:
        what = f"what compiling adds to the first iteration, the compiler's cache being {' or '.join(known)}"
        lines = [f"compile: {what}", *lines]
    firsts = {row["compile_cache"] for row in rows if row["first_iter_s"] is not None} - {None}
    if "cold" in firsts:
        lines = ["; ".join(["1st iter: of compiled rows, of their runs with a cold cache", *lines[:1]]), *lines[1:]]
    return Section("", columns, shown, lines)


def _compile(row: Raw, state: str | None) -> float | None:
    """Return the compile cost with the cache in that state."""
    if state == "warm" and row["compile_cost_warm_s"] is not None:
        return float(row["compile_cost_warm_s"])
    cost_s: float | None = row["compile_cost_s"]
    return cost_s if row["compile_cache"] == state else None


def _outcome(rows: Sequence[Raw]) -> Section:
    projected = any(row["projected_real_s"] for row in rows)
    columns = [
        Column("label", "", flexible=True),
        _text("iters", "iterations"),
        _text("train", "train loss"),
        _text("val", "val loss"),
        *([_text("projected", "full run, projected")] if projected else []),
    ]
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
    return Section("", columns, shown)
