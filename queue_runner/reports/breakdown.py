"""Where the real time went: setup + compile + warmup + measure + eval + checkpoint + other + slept = real."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from queue_runner import units
from queue_runner.compare import compare
from queue_runner.grouping import Cell
from queue_runner.phases import other_remark
from queue_runner.render import Column
from queue_runner.reports import Context, Result, Row, Section, _choose, _facts, _sections

NAME = "breakdown"
HELP = "where the real time went, by phase; it adds up to real"
SQL = f"SELECT {_facts.RUN} FROM v_run WHERE {{chosen}} AND state = 'DONE' ORDER BY job_id, number"
PARTS = ("setup", "compile", "warmup", "measure", "eval", "checkpoint", "other", "slept")
COLUMNS = (
    Column("label", "row"),
    Column("runs", "runs", " ".join),
    Column("part", "part"),
    Column("dur_s", "s", units.seconds, True),
    Column("share", "share", units.percent, True),
)
CELLS_ABREAST = 3
"""That many rows of the comparison fit side by side into 80 columns."""


def finish(rows: list[Row], context: Context) -> Result:
    """The mean over the runs of a cell, because means add up where medians do not."""
    families = compare(_facts.prepare(rows, context), _facts.question(rows, context)) if rows else []
    raw: list[dict[str, Any]] = []
    sections, notes = [], []
    for family in families:
        spent = [(cell, _spent(cell)) for cell in family.cells if _told(cell)]
        raw += [part for cell, parts in spent for part in _rows(cell, parts)]
        for at in range(0, len(spent), CELLS_ABREAST):
            title = "" if at else _sections.caption(family, [dict(row) for row in family.cells[0].runs])
            sections.append(_side_by_side(title, spent[at : at + CELLS_ABREAST]))
        notes += [note for cell in family.cells for note in _notes(cell)]
    if any(len(_told(cell)) > 1 for family in families for cell in family.cells):
        notes.insert(0, "rows of several runs show the mean: means add up, medians do not")
    return Result(COLUMNS, raw, sections, [] if raw else [_choose.nothing(context, "with a real time")], notes)


def _told(cell: Cell) -> list[Mapping[str, Any]]:
    """The runs whose real time is known; where some told their phases, those."""
    timed = [row for row in cell.shown if row["real_s"] is not None]
    return [row for row in timed if row["other_s"] is not None] or timed


def _spent(cell: Cell) -> dict[str, float | None]:
    """Mean seconds by part, None for what no run told; `real` at the end."""
    rows = _told(cell)
    known = {part: [row[f"{part}_s"] for row in rows] for part in (*PARTS, "real")}
    if any(row["other_s"] is not None for row in rows):
        known["slept"] = [value or 0.0 for value in known["slept"]]
    return {part: None if None in values else math.fsum(values) / len(values) for part, values in known.items()}


def _rows(cell: Cell, spent: Mapping[str, float | None]) -> list[dict[str, Any]]:
    runs = [row["run"] for row in _told(cell)]
    return [
        {"label": cell.label, "runs": runs, "part": part, "dur_s": dur_s, "share": _share(dur_s, spent["real"])}
        for part, dur_s in spent.items()
    ]


def _share(part_s: float | None, real_s: float | None) -> float | None:
    return part_s / real_s if part_s is not None and real_s else None


def _side_by_side(title: str, spent: Sequence[tuple[Cell, Mapping[str, float | None]]]) -> Section:
    columns = [Column("part", "")]
    for k, (cell, _) in enumerate(spent):
        columns += [Column(f"s{k}", f"{cell.label}, s", right=True), Column(f"share{k}", "%", right=True)]
    shown = []
    for part in (*PARTS, "real"):
        line = {"part": part}
        for k, (_, parts) in enumerate(spent):
            share = _share(parts[part], parts["real"])
            line[f"s{k}"] = units.seconds(parts[part])
            line[f"share{k}"] = units.MISSING if share is None else f"{units.seconds(share * 100, 1)}"
        shown.append(line)
    return Section(title, columns, shown)


def _notes(cell: Cell) -> list[str]:
    told = _told(cell)
    if not told:
        return [f"{cell.label}: its real time is not known"] if cell.shown else []
    remarks = [f"{row['run']}: {remark}" for row in told if (remark := other_remark(row["other_s"]))]
    silent = [row for row in cell.shown if row["real_s"] is not None and row["other_s"] is None]
    if silent:
        runs = ", ".join(row["run"] for row in silent[:5])
        remarks.append(f"{runs}: reported no phases, only the real time is known")
    return remarks[:5]
