"""Which framework is fastest for the same model on the same device, by how much, and whether they train alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from queue_runner import observe, units
from queue_runner.compare import Family, compare, judge
from queue_runner.errors import UsageError
from queue_runner.grouping import Cell, word
from queue_runner.render import Column
from queue_runner.reports import Context, Result, Row, Section, _choose, _facts, _notes, _rows, _sections, numerics
from queue_runner.reports._settings import effective
from queue_runner.verdict import Word

NAME = "frameworks"
HELP = "which framework is fastest for the same model on the same device; do they train alike?"
SQL = f"SELECT {_facts.RUN}, data_sha256 FROM v_run WHERE {{chosen}} AND framework IS NOT NULL ORDER BY job_id, number"
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
"""Mean losses of the last iterations nearer than this are called alike: dropout alone moves them by about 1 %."""
LAST_SHARE = 0.1
LAST_LEAST = 10
"""The losses compared are the last tenth of the iterations that both rows have, and not fewer than this where there
are as many."""
_MOST_FAMILIES = 4


@dataclass(frozen=True)
class _Loss:
    """The mean loss of the last `n` iterations that a row and the baseline have in common, and how far it is off."""

    mean: float
    n: int
    apart: float


def finish(rows: list[Row], context: Context) -> Result:
    """A table for each device, dtype and question. Raises: UsageError (--vs, --group-by)."""
    if context.options.group_by and "framework" not in context.options.group_by:
        raise UsageError("frameworks: --group-by must name framework", "--group-by framework,compile")
    rows = _facts.windowed(_facts.prepare(rows, context), context)
    every = _families(rows, context)
    families = [family for family in every if len(_frameworks(family)) > 1]
    families.sort(key=lambda family: -max(row["run_id"] for cell in family.cells for row in cell.runs))
    peaks, taints = _rows.Peaks(context), _notes.Taints(rows, context)
    n_shown = len(families) if context.options.chosen else _MOST_FAMILIES
    marks = _notes.letters(taints.caveats(families[:n_shown]))
    raw: list[dict[str, Any]] = []
    sections: list[Section] = []
    lines: list[str] = []
    for k, family in enumerate(families):
        losses = _losses(family, context) if k < n_shown else ((cell, None) for cell in family.cells)
        found = [_row(family, cell, peaks, loss) for cell, loss in losses]
        _mark_fastest(family, found)
        raw += found
        if k >= n_shown:
            continue
        sections.append(_section(family, found, marks))
        if any(row["speedup_low"] is not None for row in found):
            sections.append(_sections.verdicts(family, found))
        about = [_title(family, found) + ":"] if len(families) > 1 else []
        lines += [*about, *_lines(family, found, context)]
    if not families:
        which = "of a second framework for the same question (submit nanogpt --framework torch,mlx,tinygrad,jax)"
        lines = [_choose.nothing(context, which)]
    notes = [*_unlike(every), *_notes.notes(families[:n_shown], raw, taints, marks, context)]
    if raw:
        notes.append(f"loss: the mean of the last tenth of the iterations; alike: within {units.percent(ALIKE, 1)}")
    return Result(COLUMNS, raw, sections, lines, notes)


def _families(rows: Sequence[Row], context: Context) -> list[Family]:
    """One for each device and dtype of a question, so that frameworks and modes alone differ."""
    if not rows:
        return []
    question = _facts.question(rows, context)
    places: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        places.setdefault((str(row["device"]), str(row["dtype"])), []).append(row)
    found: list[Family] = []
    refused: UsageError | None = None
    for place in sorted(places):
        try:
            found += compare(places[place], question)
        except UsageError as error:  # --vs may be of another device
            if " none of the rows" not in error.message:
                raise
            refused = error
            found += compare(places[place], replace(question, vs={}))
    if refused is not None and not any(family.why == "chosen by --vs" for family in found):
        raise refused
    return found


def _frameworks(family: Family) -> set[str]:
    return {str(cell.key.get("framework")) for cell in family.cells if cell.shown}


def _losses(family: Family, context: Context) -> Iterable[tuple[Cell, _Loss | None]]:
    """Of one run of each cell, against one of the baseline with the same seed and data."""
    base = family.baseline.shown if family.baseline is not None else []
    read = {row["run_id"]: numerics.losses(row, context) for row in base[:1]}
    for cell in family.cells:
        pair = next(((one, other) for other in base[:1] for one in cell.shown if _same_course(one, other)), None)
        if pair is None:
            yield cell, None
            continue
        a = read.setdefault(pair[0]["run_id"], numerics.losses(pair[0], context))
        b = read[pair[1]["run_id"]]
        common = sorted(a.keys() & b.keys())
        last = common[-max(LAST_LEAST, math.ceil(len(common) * LAST_SHARE)) :]
        if not last:
            yield cell, None
            continue
        mine, theirs = (math.fsum(losses[i] for i in last) / len(last) for losses in (a, b))
        off = numerics.relative(mine, theirs)
        yield cell, _Loss(mine, len(last), math.inf if off is None else off)


def _same_course(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["seed"], one["data_sha256"]) == (other["seed"], other["data_sha256"])


def _row(family: Family, cell: Cell, peaks: _rows.Peaks, loss: _Loss | None) -> dict[str, Any]:
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
        min(able, key=lambda one: _cost(family, one[0]))[1]["is_fastest"] = True


def _cost(family: Family, cell: Cell) -> float:
    """Seconds an iteration, or for each token where iterations differ in size."""
    return (cell.median_s or math.inf) / ((cell.work(family.per_work) or 1.0) if family.per_work else 1.0)


def _section(family: Family, found: Sequence[Mapping[str, Any]], marks: Mapping[str, str]) -> Section:
    unit = "samples" if all(row["tokens_per_s"] is None for row in found) else "tokens"
    noted = any(_sections.marks_of(row, marks) for row in found)
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
            "ms": _sections.spread(row),
            "marks": _sections.marks_of(row, marks),
            "rate": units.number(row[f"{unit}_per_s"]),
            "speedup": "baseline" if row["is_baseline"] else units.ratio(row["speedup"]),
            "apart": numerics.off_words(row["loss_apart"]),
        }
        for row in found
    ]
    per = f" in time per {family.per_work}" if family.per_work else ""
    lines = [f"speed-up: over {family.baseline.label} ({_why(family)}){per}"] if family.baseline is not None else []
    return _sections.told(Section(_title(family, found), columns, shown, lines))


def _title(family: Family, found: Sequence[Mapping[str, Any]]) -> str:
    return f"{_sections.caption(family, found)} ({found[0]['device']})"


def _label(row: Mapping[str, Any]) -> str:
    """Framework and mode, and what else is in the label: the device is in the title."""
    mode = {"eager", "compiled"}
    framework, device = str(row["framework"]), str(row["device"])
    rest = [text for text in row["label"].split(" ") if text not in {framework, device, *mode}]
    return " ".join([framework, *(["compiled"] if row["compile"] else []), *rest])


def _why(family: Family) -> str:
    assert family.baseline is not None
    key = family.baseline.key
    plain = key.get("framework") == "torch" and not key.get("compile") and family.why != "chosen by --vs"
    return "eager torch; --vs framework=jax,compile=on chooses another" if plain else family.why


def _lines(family: Family, found: Sequence[Mapping[str, Any]], context: Context) -> Iterable[str]:
    yield from _fastest(family, found)
    best = {min(some, key=lambda cell: _cost(family, cell)) for some in _by_framework(family)}
    pairs = sorted((pair for pair in family.pairs if pair.cell in best), key=lambda pair: -pair.ratio)
    yield from (observe.ratio(pair, family.per_work) for pair in pairs)
    yield from observe.drifts(family.cells)
    yield from observe.not_falling(family.cells)
    yield from observe.others_that_differ(family)
    unlike = [row for row in found if row["trains_alike"] is False]
    alike = [row for row in found if row["trains_alike"]]
    if alike and family.baseline is not None:
        worst = max(row["loss_apart"] for row in alike)
        n = max(row["loss_iterations"] for row in alike)
        who = f"{len(alike)} of {len(found) - 1} rows train like {family.baseline.label}"
        yield f"{who}: the mean loss of the last {units.count(n)} iterations is within {numerics.off_words(worst)}"
    for row in unlike:
        off = numerics.off_words(row["loss_apart"])
        yield (
            f"{row['label']} does not train alike: its loss is {off} apart; its speed is of no use until that"
            " is explained (mpsq report numerics)"
        )
    yield from _told_otherwise(family, context)


def _by_framework(family: Family) -> list[list[Cell]]:
    found: dict[Any, list[Cell]] = {}
    for cell in family.cells:
        if cell.times:
            found.setdefault(cell.key["framework"], []).append(cell)
    return list(found.values())


def _fastest(family: Family, found: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """The fastest against the next, judged together with all other pairs: both were picked by looking."""
    able = sorted((cell for cell in family.cells if cell.times), key=lambda cell: _cost(family, cell))
    if family.per_work:
        able = [cell for cell in able if cell.work(family.per_work)]
    if len(able) < 2:
        return
    first, second = able[:2]
    verdict = judge(combinations(able, 2), family.per_work)[first, second]
    version = {row["label"]: row["framework_version"] for row in found}
    few = verdict.word == Word.TOO_FEW
    words = f"no verdict, {verdict}" if few else str(verdict)
    fastest = "fastest" if verdict.word == Word.FASTER else "fastest as measured"
    yield (
        f"{fastest}: {first.label} ({first.key['framework']} {version[first.label] or 'of unknown version'}),"
        f" {units.ms(first.median_s)} ms an iteration; next {second.label} with {units.ms(second.median_s)},"
        f" {units.ratio(verdict.speedup)} ({words}, of all pairs)"
    )


def _told_otherwise(family: Family, context: Context) -> Iterable[str]:
    """Settings that nobody asked for and that yet differ: defaults of the workloads' files."""
    told = effective([cell.shown[0] for cell in family.cells if cell.shown], context)
    shown = {cell.label: told.get(cell.shown[0]["run_id"], {}) for cell in family.cells if cell.shown}
    names = {name for settings in shown.values() for name in settings}
    for name in sorted(names):
        values = {label: settings[name] for label, settings in shown.items() if name in settings}
        if len({str(value) for value in values.values()}) > 1:
            each = ", ".join(f"{word(name, value)} ({label})" for label, value in values.items())
            yield f"warning: a setting differs that was not asked for: {each}"


def _unlike(families: Sequence[Family]) -> Iterable[str]:
    """What was not compared because settings differ, where a framework is on one side alone."""
    alike: dict[tuple[Any, ...], list[Family]] = {}
    for family in families:
        first = family.cells[0].key
        place = (*(family.common[name] for name in ("machine", "subject", "config")), first["device"], first["dtype"])
        alike.setdefault(place, []).append(family)
    for (_, subject, config, device, dtype), several in alike.items():
        frameworks = [_frameworks(family) for family in several]
        together = {name for some in frameworks if len(some) > 1 for name in some}
        lonely = set().union(*frameworks) - together
        if not lonely or len(set().union(*frameworks)) < 2:
            continue
        several = [f for f in several if _frameworks(f) & lonely or len(_frameworks(f)) > 1]
        names = [name for name in several[0].common if len({str(f.common.get(name)) for f in several}) > 1]
        each = []
        for family in several[: _notes.MOST_NAMED]:
            settings = " ".join(word(name, family.common.get(name)) for name in names)
            each.append(f"{', '.join(sorted(_frameworks(family)))} with {settings}")
        more = f"; and {len(several) - len(each)} more" if len(several) > len(each) else ""
        what = " ".join(str(text) for text in (subject, config, device, dtype) if text)
        yield f"not compared, for settings differ ({what}): {'; '.join(each)}{more}"
