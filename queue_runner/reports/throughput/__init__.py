"""Samples per second of training and evaluation of a model, by device and relative to the CPU."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, compare
from queue_runner.analysis.grouping import Arm, labelled, order
from queue_runner.reports._common import footnotes, prepare, select_runs
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports._common.settings import whatever_their_length
from queue_runner.reports.devices import rows as _rows
from queue_runner.reports.devices import tables as _sections
from queue_runner.reports.throughput import text as _throughput
from queue_runner.reports.throughput.text import EVALUATION, MODES, TRAINING, Table
from queue_runner.tables import Column

NAME = "throughput"
HELP = "training and evaluation of models: samples/s by device, how many times the cpu"
SQL = (
    f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND kind = 'workload'"
    " AND COALESCE(json_extract(spec_json, '$.find_max'), '') = '' ORDER BY job_id, number"
)
"""Excludes the probes of --find-max, which differ in size: `mpsq report scaling` shows them."""
COLUMNS = (
    Column("model", "model"),
    Column("mode", "mode"),
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
    Column("samples_per_s", "samples/s", units.number, True),
    Column("tokens_per_s", "tokens/s", units.number, True),
    Column("median_s", "time an iteration", units.short_duration, True),
    Column("spread_s", "spread", units.short_duration, True),
    Column("spread_over", "spread over"),
    Column("n_measure", "measured", units.count, True),
    Column("flops_per_s", "FLOP/s", units.flops_per_s, True),
    Column("mfu", "MFU", units.percent, True),
    Column("peak_flops", "peak", units.flops_per_s, True),
    Column("peak_source", "peak from"),
    Column("is_baseline", "baseline"),
    Column("speedup", "speed-up", units.ratio, True),
    Column("speedup_low", "from", units.ratio, True),
    Column("speedup_high", "to", units.ratio, True),
    Column("p", "p", lambda p: units.number(p, 2), True),
    Column("p_corrected", "p (Holm)", lambda p: units.number(p, 2), True),
    Column("verdict", "verdict"),
    Column("taints", "taints", " ".join),
)
_SUFFIX = "-eval"
"""Suffix of a workload's name in mode=eval (docs/methodology.md)."""


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each model, with verdicts and work. Raises: UsageError when --vs or --group-by is invalid."""
    rows = prepare.windowed(prepare.prepare(rows, context), context)
    rows = whatever_their_length(_of_models(rows), context)
    if not rows:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of a model in samples or with mode=eval")])
    families = compare(rows, prepare.question(rows, context))
    if not context.options.vs:
        families = [_over_the_cpu(family) for family in families]
    taints = footnotes.Taints(rows, context)
    marks = footnotes.letters(taints.caveats(families))
    tables = _tables(families, _rows.Peaks(context))
    raw = [row for table in tables for row in table.rows]
    quiet = [{**row, "spread_s": None} for row in raw]  # these tables have no ms/iter and explain ± themselves
    return Result(
        COLUMNS,
        raw,
        [section for table in tables for section in _sections_of(table, marks)],
        [line for table in tables for line in _throughput.lines(table)],
        [*_spreads(raw), *footnotes.notes(families, quiet, taints, marks, context)],
    )


def _of_models(rows: Sequence[Row]) -> list[Row]:
    """Return the runs of workloads that count samples or can evaluate."""
    found = []
    for row in rows:
        name = str(row["subject"])
        evaluates = name.endswith(_SUFFIX) or row["settings"].get("mode") == "eval"
        base = name.removesuffix(_SUFFIX)
        found.append({**row, "model": base, "subject": base + (_SUFFIX if evaluates else "")})
    models = {row["model"] for row in found if row["samples_per_iter"] or row["subject"].endswith(_SUFFIX)}
    return [row for row in found if row["model"] in models]


def _over_the_cpu(family: Family) -> Family:
    """Return the family without a baseline that is not on the cpu: this report compares with the cpu."""
    base = family.baseline
    return family if base is None or base.key.get("device") == "cpu" else replace(family, baseline=None, pairs=())


def _tables(families: Sequence[Family], peaks: _rows.Peaks) -> list[Table]:
    """Combine the families of training and evaluation, with common row labels."""
    together: dict[tuple[Any, ...], dict[str, Family]] = {}
    for family in families:
        subject = str(family.common["subject"])
        model, mode = subject.removesuffix(_SUFFIX), EVALUATION if subject.endswith(_SUFFIX) else TRAINING
        common = {**family.common, "subject": model}
        together.setdefault((model, *map(str, common.values())), {})[mode] = family
    made = [_table(key[0], {m: by_mode[m] for m in MODES if m in by_mode}, peaks) for key, by_mode in together.items()]
    names = Counter(table.name for table in made)
    return [replace(table, about=table.title if names[table.name] > 1 else table.name) for table in made]


def _table(model: str, families: Mapping[str, Family], peaks: _rows.Peaks) -> Table:
    first = next(iter(families.values()))
    cells = {_place(cell): cell for family in families.values() for cell in family.cells}
    named = labelled(sorted(cells.values(), key=order), {**first.common, "optimizer": None})
    labels = {_place(cell): cell.label for cell in named}
    rows = []
    for mode, family in families.items():
        for cell in family.cells:
            row = {**_rows.row_of(family, cell, peaks), "model": model, "mode": mode, "label": labels[_place(cell)]}
            rows.append(row)
    at = {label: at for at, label in enumerate(labels.values())}
    rows.sort(key=lambda row: (MODES.index(row["mode"]), at[row["label"]]))
    title = _sections.caption(replace(first, common={**first.common, "subject": model}), rows)
    return Table(model, title, families, rows)


def _place(cell: Arm) -> tuple[tuple[str, str], ...]:
    """Return a cell's key without the parts in which training and evaluation differ."""
    return tuple((name, str(value)) for name, value in cell.key.items() if name not in ("subject", "optimizer"))


# -- printed tables -------------------------------------------------------------------------------------------------


def _right(key: str, title: str) -> Column:
    return Column(key, title, right=True)


def _sections_of(table: Table, marks: Mapping[str, str]) -> list[Section]:
    """Build the sections: speed, verdicts if any, work."""
    shown, work = [], []
    for label, by_mode in table.pairs():
        speed: dict[str, Any] = {"label": label}
        done: dict[str, Any] = {"label": label}
        for mode, row in by_mode.items():
            speed |= {
                f"{mode}_rate": _rate(row),
                f"{mode}_marks": _sections.marks_of(row, marks),
                f"{mode}_speedup": _times(row),
            }
            done |= {
                f"{mode}_ms": units.ms(row["median_s"]),
                f"{mode}_tflops": units.tflops(row["flops_per_s"]),
                f"{mode}_mfu": units.percent(row["mfu"]),
            }
        shown.append(speed)
        work.append(done)
    has = {unit for unit in ("samples", "tokens") if any(row[f"{unit}_per_s"] for row in table.rows)}
    unit = "tokens" if has == {"tokens"} else "samples"
    columns, doing = [Column("label", f"{unit}/s", flexible=True)], [Column("label", "work", flexible=True)]
    for mode in table.families:
        noted = any(one.get(f"{mode}_marks") for one in shown)
        columns += [_right(f"{mode}_rate", mode), *([Column(f"{mode}_marks", "", str)] if noted else [])]
        columns.append(_right(f"{mode}_speedup", "speed-up"))
        doing += [_right(f"{mode}_ms", f"{mode} ms"), _right(f"{mode}_tflops", "TFLOP/s"), _right(f"{mode}_mfu", "MFU")]
    bases = {mode: family.baseline for mode, family in table.families.items()}
    said = {mode: f"over {base.label} ({table.families[mode].why})" for mode, base in bases.items() if base is not None}
    alike = len({*said.values()}) == 1
    line = next(iter(said.values())) if alike else "; ".join(f"{mode} {text}" for mode, text in said.items())
    verdicts = [
        _sections.verdicts(family, table.of(mode), mode)
        for mode, family in table.families.items()
        if any(row["speedup_low"] is not None for row in table.of(mode))
    ]
    of = ", of the geometric means of the runs' medians where there is an interval" if verdicts else ""
    speed_section = Section(table.title, columns, shown, [f"speed-up: {line}{of}"] if said else [])
    return [speed_section, *verdicts, Section("", doing, work)]


def _rate(row: Mapping[str, Any]) -> str:
    """Format as `2,345 ± 12`, or `2,345 (12)` for a spread over the iterations of one run."""
    rate = row["samples_per_s"] or row["tokens_per_s"]
    spread = rate * row["spread_s"] / row["median_s"] if rate and row["spread_s"] is not None else None
    value, plus_minus, text = units.plus_minus(rate, spread).partition(f" {units.PLUS_MINUS} ")
    return f"{value} ({text})" if plus_minus and row["spread_over"] == "iterations" else value + plus_minus + text


def _times(row: Mapping[str, Any]) -> str:
    return "baseline" if row["is_baseline"] else units.ratio(row["speedup"])


def _spreads(raw: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    over = {row["spread_over"] for row in raw if row["spread_s"] is not None}
    words = {
        "runs": f"{units.PLUS_MINUS} is the MAD of several runs",
        "iterations": "(in brackets) is the MAD of the iterations of one run, which says nothing about another run",
    }
    said = [text for key, text in words.items() if key in over]
    yield "; ".join(["a rate is that of the median iteration, with the device waited for", *said])
    yield (
        "training: forward, backward and update. Evaluation: the forward alone (mode=eval). FLOP are those of "
        "convolutions and matrices, the backward counted as two forwards"
    )
