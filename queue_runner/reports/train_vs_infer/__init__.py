"""Training against inference on each device: throughput of both, and the speed-up of each over the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.grouping import taints, word
from queue_runner.analysis.significance import Verdict
from queue_runner.reports._common import footnotes, prepare, select_runs
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports._common.settings import FEW_ITERS
from queue_runner.reports.train_vs_infer import speedups
from queue_runner.reports.train_vs_infer.speedups import TRAIN, Gain
from queue_runner.tables import Column

NAME = "train-vs-infer"
HELP = "training against inference of the same model: throughput, and the speed-up of each over the CPU"
SQL = (
    f"SELECT {prepare.RUN}, params, COALESCE(json_extract(spec_json, '$.find_max'), '') <> '' AS is_probe"
    " FROM v_run WHERE {chosen} AND kind = 'workload' ORDER BY job_id, number"
)
COLUMNS = (
    Column("model", "model"),
    Column("config", "config"),
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("compile", "compile"),
    Column("dtype", "dtype"),
    Column("n_params", "parameters", units.short_count, True),
    Column("device", "device"),
    Column("device_name", "device name"),
    Column("kind", "what"),
    Column("settings", "settings", str),
    Column("batch_size", "batch", units.count, True),
    Column("runs", "runs", " ".join),
    Column("counts", "counts"),
    Column("rate", "a second", units.number, True),
    Column("unit", "of"),
    Column("spread", "spread", units.number, True),
    Column("times_training", "times training", units.ratio, True),
    Column("speedup", "over CPU", units.ratio, True),
    Column("speedup_low", "from", units.ratio, True),
    Column("speedup_high", "to", units.ratio, True),
    Column("p_corrected", "p (Holm)", units.number, True),
    Column("verdict", "verdict"),
    Column("taints", "taints", " ".join),
)
_PLACE = ("machine", "model", "config", "dtype", "n_params")
"""Names common to all rows of a table."""
Judged = Mapping[Gain, tuple[Gain, Verdict]]


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each model. Raises: UsageError when --vs is given, which has no meaning here."""
    from queue_runner.errors import UsageError

    if context.options.vs or context.options.group_by or context.options.iters:
        raise UsageError(
            f"{NAME} takes no --vs, --group-by or --iters", "--where framework=torch,dtype=fp32 narrows it"
        )
    rows = prepare.prepare(rows, context)
    every = speedups.gains(rows, context) if rows else []
    inferred = {cell.alike for cell in every if cell.kind != TRAIN}
    cells = [cell for cell in every if cell.alike in inferred]
    if not cells:
        which = "of inference (submit nanogpt --set mode=sample, or resnet50 --set mode=eval)"
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, which)])
    raw: list[dict[str, Any]] = []
    sections: list[Section] = []
    lines: list[str] = []
    found = footnotes.Taints(rows, context)
    caveats = _caveats(cells, found)
    marks = footnotes.letters(caveats)
    places = dict.fromkeys(tuple(cell.key[name] for name in _PLACE) for cell in cells)
    for place in places:
        some = [cell for cell in cells if tuple(cell.key[name] for name in _PLACE) == place]
        judged = speedups.judged(some)
        raw += [_row(cell, some, judged) for cell in some]
        sections += _tables(some, judged, marks)
        said = [*_lines(some, judged)]
        lines += [_title(some[0]) + ":", *said] if len(places) > 1 and said else said
    notes = [*_notes_of(cells, rows, found, caveats, marks, context)]
    if n_left := sum(cell.alike not in inferred for cell in every):
        rows_are = "rows of training are" if n_left > 1 else "row of training is"
        notes.append(f"{n_left} {rows_are} not shown: no inference of the same model, framework, version and dtype")
    return Result(COLUMNS, raw, sections, lines, notes)


def _row(cell: Gain, cells: Sequence[Gain], judged: Judged) -> dict[str, Any]:
    pair = judged.get(cell)
    verdict = pair[1] if pair else None
    key = cell.key
    return {
        **{name: key[name] for name in ("model", "config", "framework", "framework_version", "compile", "dtype")},
        **{name: key[name] for name in ("n_params", "device", "device_name", "settings")},
        "kind": cell.kind,
        "batch_size": cell.batch,
        "runs": [row["run"] for row in cell.used],
        "counts": cell.counts,
        "rate": cell.rate,
        "unit": f"{cell.unit}/s",
        "spread": cell.spread,
        "times_training": _times_training(cell, cells),
        "speedup": verdict.speedup if verdict else None,
        "speedup_low": verdict.low if verdict else None,
        "speedup_high": verdict.high if verdict else None,
        "p_corrected": verdict.p_corrected if verdict else None,
        "verdict": str(verdict) if verdict else None,
        "judged": verdict,  # for the readable table: not a column
        "taints": sorted({kind for row in cell.used for kind in taints(row)}),
    }


def _times_training(cell: Gain, cells: Sequence[Gain]) -> float | None:
    """Return the ratio to the throughput of training on the same device; None if there is no or no unique one."""
    if cell.kind == TRAIN or not cell.counts:
        return None
    trained = _training_of(cell, cells)
    return cell.rate / trained.rate if trained is not None and trained.unit == cell.unit else None


def _training_of(cell: Gain, cells: Sequence[Gain]) -> Gain | None:
    """Find the unique training row on the same device and in the same mode; other settings may differ."""
    device = (cell.key["device"], cell.key["device_name"])
    fit = [c for c in cells if c.kind == TRAIN and c.counts and c.alike == cell.alike]
    fit = [c for c in fit if (c.key["device"], c.key["device_name"]) == device]
    return fit[0] if len(fit) == 1 else None


def _title(cell: Gain) -> str:
    key = cell.key
    size = f"{units.short_count(key['n_params'])} parameters" if key["n_params"] else ""
    model = " ".join(filter(None, [key["model"], key["config"]]))
    return ", ".join(filter(None, [model, size, key["dtype"], cell.used[0]["where"]]))


def _label(cell: Gain, cells: Sequence[Gain]) -> str:
    """Return framework, mode, device, and the settings that distinguish the cell from others of its kind."""
    key = cell.key
    alike = [other for other in cells if other.kind == cell.kind]
    versions = {other.key["framework_version"] for other in alike if other.key["framework"] == key["framework"]}
    words = [key["framework"], key["framework_version"] if len(versions) > 1 else "", word("compile", key["compile"])]
    names = sorted({name for other in alike for name in other.key["settings"]})
    names = [name for name in names if name != "batch_size"]  # it has a column
    differ = [n for n in names if len({str(other.key["settings"].get(n)) for other in alike}) > 1]
    words.append(key["device"])
    if sum(other.alike == cell.alike and other.key["device"] == key["device"] for other in alike) > 1:
        words += [word(n, key["settings"][n]) for n in differ if n in key["settings"]]
    return " ".join(str(text) for text in words if text)


def _tables(cells: Sequence[Gain], judged: Judged, marks: Mapping[str, str]) -> Iterable[Section]:
    rows = [_row(cell, cells, judged) for cell in cells]
    shown = [_shown(cell, row, cells, marks) for cell, row in zip(cells, rows, strict=True)]
    units_there = {cell.unit for cell in cells}
    columns = [
        Column("label", "", flexible=True),
        Column("kind", ""),
        Column("batch_size", "batch", units.count, True),
        Column("n", "runs", units.count, True),
        Column("rate", f"{next(iter(units_there))}/s" if len(units_there) == 1 else "a second", right=True),
        *([Column("mark", "")] if any(row["mark"] for row in shown) else []),
        *([Column("unit", "of")] if len(units_there) > 1 else []),
        Column("times_training", "x training", units.ratio, True),
        Column("speedup", "over CPU", units.ratio, True),
    ]
    yield Section(_title(cells[0]), columns, shown)
    if tested := [row for row in shown if row["speedup_low"] is not None]:
        found = [{**row, "interval": _interval(row), "word": row["judged"].short} for row in tested]
        yield Section("", _VERDICTS, found)


_VERDICTS = (
    Column("label", "over the CPU", flexible=True),
    Column("kind", ""),
    Column("speedup", "speed-up", units.ratio, True),
    Column("interval", "95 % interval", right=True),
    Column("p_corrected", "p (Holm)", lambda p: units.number(p, 2), True),
    Column("word", "verdict"),
)


def _interval(row: Mapping[str, Any]) -> str:
    return units.ratio_interval(row["speedup_low"], row["speedup_high"])


def _shown(cell: Gain, row: dict[str, Any], cells: Sequence[Gain], marks: Mapping[str, str]) -> dict[str, Any]:
    letters = "".join(sorted(marks[kind] for kind in row["taints"] if kind in marks))
    return {
        **row,
        "label": _label(cell, cells),
        "n": len(cell.used),
        "rate": units.plus_minus(cell.rate, cell.spread),
        "unit": cell.unit,
        "mark": ("" if cell.counts else "!") + letters,
    }


def _lines(cells: Sequence[Gain], judged: Judged) -> Iterable[str]:
    """Report by device whether training or inference gains more."""
    for trained in (cell for cell in cells if cell.kind == TRAIN and cell in judged):
        others = [c for c in cells if c.kind != TRAIN and c in judged and _training_of(c, cells) is trained]
        if not others:
            continue
        about = _label(trained, cells)
        gain = judged[trained][1]
        yield f"{about}: training gains {_over(gain)} over the CPU"
        for cell in others:
            yield f"  {cell.kind} gains {_over(judged[cell][1])}: {_more(judged[cell][1], gain)}"
    if not judged:
        yield "no speed-up over the CPU: it needs runs on the CPU and on another device, of the same settings"


def _over(verdict: Verdict) -> str:
    within = units.ratio_interval(verdict.low, verdict.high) if verdict.low is not None else "measured, no verdict"
    return f"{units.ratio(verdict.speedup)} ({within})"


def _more(inference: Verdict, training: Verdict) -> str:
    times = inference.speedup / training.speedup
    how = "more" if times > 1 else "less"
    text = f"{units.ratio(max(times, 1 / times))} {how} than training"
    ends = (inference.low, inference.high, training.low, training.high)
    if None in ends:
        return (
            f"{text} ({inference.n} and {training.n} runs: no verdict, --repeats {max(inference.need, training.need)})"
        )
    low, high, low_of_training, high_of_training = ends
    assert low is not None and high is not None and low_of_training is not None and high_of_training is not None
    if low > high_of_training or high < low_of_training:
        return f"{text}; the intervals do not overlap"
    return "no difference from training shown: the intervals overlap"


def _caveats(cells: Sequence[Gain], found: footnotes.Taints) -> dict[str, list[tuple[Mapping[str, Any], str]]]:
    kinds: dict[str, dict[int, tuple[Mapping[str, Any], str]]] = {}
    for row in (row for cell in cells for row in cell.used):
        for taint in found.of(row):
            if taint["severity"] == "caveat":
                kinds.setdefault(taint["kind"], {})[row["run_id"]] = (row, taint["detail"])
    return {kind: list(runs.values()) for kind, runs in kinds.items()}


def _notes_of(
    cells: Sequence[Gain],
    rows: Sequence[Row],
    found: footnotes.Taints,
    caveats: Mapping[str, Sequence[tuple[Mapping[str, Any], str]]],
    marks: Mapping[str, str],
    context: Context,
) -> Iterable[str]:
    yield "throughput: at the runs' median time, ± their MAD; prefill and decode by themselves, both of one iteration"
    if any(_times_training(cell, cells) for cell in cells):
        yield "x training: times the throughput of training on the same device, whose batch and settings may be others"
    yield from (footnotes.caveat(marks[kind], kind, runs) for kind, runs in caveats.items() if kind in marks)
    used = {row["run_id"]: row for cell in cells for row in cell.used}
    few = [row for row in used.values() if (row["n_measure"] or 0) < FEW_ITERS]
    if few:
        named = footnotes.named([f"{row['run']} ({row['n_measure'] or 0})" for row in few])
        yield f"fewer than {FEW_ITERS} measured iterations: {named}; --set max_iters says how many"
    models = {name for cell in cells for name in (cell.key["model"], f"{cell.key['model']}-sample")}
    models |= {f"{cell.key['model']}-eval" for cell in cells}
    bad = [
        row
        for row in rows
        if row["subject"] in models
        and (row["run_id"] in used or not row["is_probe"])
        and row["outcome"] is not None
        and not (row["valid"] and row["outcome"] == "SUCCEEDED")
    ]
    if bad:
        each = "; ".join(f"{row['run']} {footnotes.why(row, found)}" for row in bad[: footnotes.MOST_NAMED])
        more = f"; and {len(bad) - footnotes.MOST_NAMED} more" if len(bad) > footnotes.MOST_NAMED else ""
        yield f"! {'counted all the same (--all)' if context.options.include_invalid else 'do not count'}: {each}{more}"
