"""Breakdown of the real time: setup + compile + warmup + measure + eval + checkpoint + other + slept = real."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import families as grouped
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.phases import other_remark
from queue_runner.reports._common import prepare, select_runs
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports.devices import tables
from queue_runner.tables import Column, elide

NAME = "breakdown"
HELP = "where the real time went, by phase; it adds up to real"
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND state = 'DONE' ORDER BY job_id, number"
PARTS = ("setup", "compile", "warmup", "measure", "eval", "checkpoint", "other", "slept")
COLUMNS = (
    Column("label", "row"),
    Column("runs", "runs", " ".join),
    Column("part", "part"),
    Column("dur_s", "s", units.seconds, True),
    Column("share", "share", units.percent, True),
)
WIDTH = 80
"""Characters per line; rows of the comparison are placed side by side as far as they fit."""
WIDEST = 50
"""Maximum width of a label in characters; a longer one loses its middle."""


Spent = dict[str, float | None]


def finish(rows: list[Row], context: Context) -> Result:
    """Show the mean over the runs of each cell, because means add up and medians do not."""
    families = grouped(prepare.prepare(rows, context), prepare.question(rows, context)) if rows else []
    raw: list[dict[str, Any]] = []
    sections, notes = [], []
    for family in families:
        spent = [(cell, _spent(cell)) for cell in family.cells if _told(cell)]
        raw += [part for cell, parts in spent for part in _rows(cell, parts)]
        title = tables.caption(family, [dict(row) for cell in family.cells for row in cell.shown])
        for k, some in enumerate(_abreast(spent)):
            sections.append(_side_by_side("" if k else f"{title}: seconds and % of real", some))
        notes += [note for cell in family.cells for note in _notes(cell)]
    if any(len(_told(cell)) > 1 for family in families for cell in family.cells):
        notes.insert(0, "rows of several runs show the mean: means add up, medians do not")
    return Result(COLUMNS, raw, sections, [] if raw else [select_runs.nothing(context, "with a real time")], notes)


def _told(cell: Arm) -> list[Mapping[str, Any]]:
    """Return the runs with a known real time, restricted to those with known phases if there are any."""
    timed = [row for row in cell.shown if row["real_s"] is not None]
    return [row for row in timed if row["other_s"] is not None] or timed


def _spent(cell: Arm) -> Spent:
    """Return mean seconds by part, `real` last; None where no run reported the part."""
    rows = _told(cell)
    known = {part: [row[f"{part}_s"] for row in rows] for part in (*PARTS, "real")}
    if any(row["other_s"] is not None for row in rows):
        known["slept"] = [value or 0.0 for value in known["slept"]]
    return {part: None if None in values else math.fsum(values) / len(values) for part, values in known.items()}


def _rows(cell: Arm, spent: Spent) -> list[dict[str, Any]]:
    runs = [row["run"] for row in _told(cell)]
    return [
        {"label": cell.label, "runs": runs, "part": part, "dur_s": dur_s, "share": _share(dur_s, spent["real"])}
        for part, dur_s in spent.items()
    ]


def _share(part_s: float | None, real_s: float | None) -> float | None:
    return part_s / real_s if part_s is not None and real_s else None


def _abreast(spent: Sequence[tuple[Arm, Spent]]) -> Iterator[list[tuple[Arm, Spent]]]:
    """Split into groups that fit WIDTH: part names take 12 characters, each row its label (at least 8) plus 13."""
    some: list[tuple[Arm, Spent]] = []
    left = WIDTH - 12
    for cell, parts in spent:
        wide = max(min(len(cell.label), WIDEST), 8) + 13
        if some and wide > left:
            yield some
            some, left = [], WIDTH - 12
        some.append((cell, parts))
        left -= wide
    if some:
        yield some


def _side_by_side(title: str, spent: Sequence[tuple[Arm, Spent]]) -> Section:
    columns = [Column("part", "")]
    for k, (cell, _) in enumerate(spent):
        columns += [Column(f"s{k}", elide(cell.label, WIDEST), right=True), Column(f"share{k}", "%", right=True)]
    shown = []
    for part in (*PARTS, "real"):
        line = {"part": part}
        for k, (_, parts) in enumerate(spent):
            share = _share(parts[part], parts["real"])
            line[f"s{k}"] = units.seconds(parts[part])
            line[f"share{k}"] = units.MISSING if share is None else f"{units.seconds(share * 100, 1)}"
        shown.append(line)
    return Section(title, columns, shown)


def _notes(cell: Arm) -> list[str]:
    told = _told(cell)
    if not told:
        return [f"{cell.label}: its real time is not known"] if cell.shown else []
    remarks = [f"{row['run']}: {remark}" for row in told if (remark := other_remark(row["other_s"]))]
    silent = [row for row in cell.shown if row["real_s"] is not None and row["other_s"] is None]
    if silent:
        runs = ", ".join(row["run"] for row in silent[:5])
        remarks.append(f"{runs}: reported no phases, only the real time is known")
    return remarks[:5]
