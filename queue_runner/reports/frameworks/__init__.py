"""Comparison of frameworks on the same model and device: the fastest, by how much, and whether they train alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, compare
from queue_runner.analysis.grouping import Arm
from queue_runner.errors import UsageError
from queue_runner.reports._common import footnotes, prepare, select_runs
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports.devices import rows as _rows
from queue_runner.reports.devices import tables
from queue_runner.reports.frameworks import text as _frameworks
from queue_runner.reports.numerics import divergence
from queue_runner.tables import Column

NAME = "frameworks"
HELP = "which framework is fastest for the same model on the same device; do they train alike?"
SQL = f"SELECT {prepare.RUN}, data_sha256 FROM v_run WHERE {{chosen}} AND framework IS NOT NULL ORDER BY job_id, number"
COLUMNS = (
    Column("workload", "workload"),
    Column("config", "config"),
    Column("device", "device"),
    Column("device_name", "device name"),
    Column("dtype", "dtype"),
    Column("label", "row"),
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("compile", "compile"),
    Column("factors", "factors", str),
    Column("runs", "runs", " ".join),
    Column("n_runs", "ended", units.count, True),
    Column("n_valid", "valid", units.count, True),
    Column("compared", "compared"),
    Column("median_s", "time an iteration", units.short_duration, True),
    Column("spread_s", "spread", units.short_duration, True),
    Column("spread_over", "spread over"),
    Column("tokens_per_s", "tokens/s", units.number, True),
    Column("samples_per_s", "samples/s", units.number, True),
    Column("first_iter_s", "first iteration", units.short_duration, True),
    Column("is_baseline", "baseline"),
    Column("speedup", "speed-up", units.ratio, True),
    Column("speedup_low", "from", units.ratio, True),
    Column("speedup_high", "to", units.ratio, True),
    Column("p_corrected", "p (Holm)", units.number, True),
    Column("verdict", "verdict"),
    Column("n_iters", "iterations", units.count, True),
    Column("loss_mean", "loss", units.loss, True),
    Column("loss_iterations", "loss over", units.count, True),
    Column("loss_apart", "loss apart", units.percent, True),
    Column("trains_alike", "trains alike"),
    Column("is_fastest", "fastest"),
    Column("taints", "taints", " ".join),
)
ALIKE = 0.02
"""Relative difference below which mean losses of the last iterations are alike: dropout alone causes about 1 %."""
LAST_SHARE = 0.1
LAST_LEAST = 10
"""Minimum number of losses to compare, if available; otherwise the last tenth of the iterations that both rows have."""
_MOST_FAMILIES = 4


@dataclass(frozen=True)
class _Loss:
    """The mean loss of the last `n` iterations common to a row and the baseline, and its relative difference."""

    mean: float
    n: int
    apart: float


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each device, dtype and question. Raises: UsageError when --vs or --group-by is invalid."""
    if context.options.group_by and "framework" not in context.options.group_by:
        raise UsageError("frameworks: --group-by must name framework", "--group-by framework,compile")
    rows = prepare.windowed(prepare.prepare(rows, context), context)
    every = _families(rows, context)
    families = [family for family in every if len(_frameworks.frameworks(family)) > 1]
    families.sort(key=lambda family: -max(row["run_id"] for cell in family.cells for row in cell.runs))
    peaks, taints = _rows.Peaks(context), footnotes.Taints(rows, context)
    n_shown = len(families) if context.options.chosen else _MOST_FAMILIES
    marks = footnotes.letters(taints.caveats(families[:n_shown]))
    raw: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    sections: list[Section] = []
    lines: list[str] = []
    for k, family in enumerate(families):
        losses = _losses(family, context) if k < n_shown else ((cell, None) for cell in family.cells)
        found = [_row(family, cell, peaks, loss) for cell, loss in losses]
        _mark_fastest(family, found)
        raw += found
        if k >= n_shown:
            continue
        shown += found
        sections.append(_section(family, found, marks))
        if any(row["speedup_low"] is not None for row in found):
            sections.append(tables.verdicts(family, found))
        about = [_title(family, found) + ":"] if len(families) > 1 else []
        lines += [*about, *_frameworks.lines(family, found, context)]
    if not families:
        which = "of a second framework for the same question (submit nanogpt --framework torch,mlx,tinygrad,jax)"
        lines = [select_runs.nothing(context, which)]
    notes = [*_frameworks.unlike(every), *footnotes.few(shown)]
    notes += footnotes.notes(families[:n_shown], raw, taints, marks, context)
    if any(row["loss_mean"] is not None for row in shown):
        notes.append(f"loss: the mean of the last tenth of the iterations; alike: within {units.percent(ALIKE, 1)}")
    return Result(COLUMNS, raw, sections, lines, notes)


def _families(rows: Sequence[Row], context: Context) -> list[Family]:
    """Return a family for each device and dtype of a question, so that only frameworks and modes differ."""
    if not rows:
        return []
    question = prepare.question(rows, context)
    places: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        places.setdefault((str(row["device"]), str(row["dtype"])), []).append(row)
    found: list[Family] = []
    refused: UsageError | None = None
    for place in sorted(places):
        try:
            found += compare(places[place], question)
        except UsageError as error:  # --vs may name another device
            if " none of the rows" not in error.message:
                raise
            refused = error
            found += compare(places[place], replace(question, vs={}))
    if refused is not None and not any(family.why == "chosen by --vs" for family in found):
        raise refused
    return found


def _losses(family: Family, context: Context) -> Iterable[tuple[Arm, _Loss | None]]:
    """Compare the losses of one run per cell with a baseline run of the same seed and data."""
    base = family.baseline.shown if family.baseline is not None else []
    read = {row["run_id"]: divergence.losses(row, context) for row in base[:1]}
    for cell in family.cells:
        pair = next(((one, other) for other in base[:1] for one in cell.shown if _same_course(one, other)), None)
        if pair is None:
            yield cell, None
            continue
        a = read.setdefault(pair[0]["run_id"], divergence.losses(pair[0], context))
        b = read[pair[1]["run_id"]]
        common = sorted(a.keys() & b.keys())
        last = common[-max(LAST_LEAST, math.ceil(len(common) * LAST_SHARE)) :]
        if not last:
            yield cell, None
            continue
        mine, theirs = (math.fsum(losses[i] for i in last) / len(last) for losses in (a, b))
        off = divergence.relative(mine, theirs)
        yield cell, _Loss(mine, len(last), math.inf if off is None else off)


def _same_course(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["seed"], one["data_sha256"]) == (other["seed"], other["data_sha256"])


def _row(family: Family, cell: Arm, peaks: _rows.Peaks, loss: _Loss | None) -> dict[str, Any]:
    base = cell is family.baseline
    return {
        **_rows.row_of(family, cell, peaks),
        "loss_mean": loss.mean if loss else None,
        "loss_iterations": loss.n if loss else None,
        "loss_apart": loss.apart if loss and not base else None,
        "trains_alike": None if loss is None or base else loss.apart <= ALIKE,
        "is_fastest": False,
    }


def _mark_fastest(family: Family, found: Sequence[dict[str, Any]]) -> None:
    able = [(cell, row) for cell, row in zip(family.cells, found, strict=True) if cell.times]
    if len(able) > 1:
        min(able, key=lambda one: _frameworks.cost(family, one[0]))[1]["is_fastest"] = True


def _section(family: Family, found: Sequence[Mapping[str, Any]], marks: Mapping[str, str]) -> Section:
    unit = "samples" if all(row["tokens_per_s"] is None for row in found) else "tokens"
    noted = any(tables.marks_of(row, marks) for row in found)
    columns = [
        Column("label", "", flexible=True),
        Column("framework_version", "version"),
        Column("runs", "runs", right=True),
        Column("ms", "ms/iter", right=True),
        *([Column("marks", "")] if noted else []),
        Column("rate", f"{unit}/s", right=True),
        Column("speedup", "speed-up", right=True),
        Column("loss_mean", "loss", units.loss, True),
        Column("apart", "apart", right=True),
    ]
    shown = [
        {
            **row,
            "label": _label(row),
            "framework_version": str(row["framework_version"] or units.MISSING).partition("+")[0],
            "runs": f"{row['n_valid']}/{row['n_runs']}",
            "ms": tables.spread(row),
            "marks": tables.marks_of(row, marks),
            "rate": units.number(row[f"{unit}_per_s"]),
            "speedup": "baseline" if row["is_baseline"] else units.ratio(row["speedup"]),
            "apart": divergence.off_words(row["loss_apart"]),
        }
        for row in found
    ]
    per = f" in time per {family.per_work}" if family.per_work else ""
    lines = [f"speed-up: over {family.baseline.label} ({_why(family)}){per}"] if family.baseline is not None else []
    return tables.told(Section(_title(family, found), columns, shown, lines))


def _title(family: Family, found: Sequence[Mapping[str, Any]]) -> str:
    return f"{tables.caption(family, found)} ({found[0]['device']})"


def _label(row: Mapping[str, Any]) -> str:
    """Return the label with framework and mode but without the device, which is in the title."""
    mode = {"eager", "compiled"}
    framework, device = str(row["framework"]), str(row["device"])
    rest = [text for text in row["label"].split(" ") if text not in {framework, device, *mode}]
    return " ".join([framework, *(["compiled"] if row["compile"] else []), *rest])


def _why(family: Family) -> str:
    assert family.baseline is not None
    key = family.baseline.key
    plain = key.get("framework") == "torch" and not key.get("compile") and family.why != "chosen by --vs"
    return "eager torch; --vs framework=jax,compile=on chooses another" if plain else family.why
