"""Samples per second of training and evaluation of a model, by device and relative to the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, compare
from queue_runner.analysis.grouping import Arm, labelled, order
from queue_runner.reports._common import arm_tables, footnotes, prepare, select_runs
from queue_runner.reports._common.arm_rows import row_of
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.peaks import Peaks
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports._common.settings import ignore_length
from queue_runner.reports.throughput.text import EVALUATION, MODES, TRAINING, Table, findings
from queue_runner.tables import Column

NAME = "throughput"
HELP = "training and evaluation of models: samples/s by device, speedup over the CPU"
SQL = (
    f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND kind = 'workload'"
    " AND COALESCE(json_extract(spec_json, '$.find_max'), '') = '' ORDER BY job_id, number"
)
"""Without the probes of --find-max, which differ in size: see `mpsq report scaling`."""
COLUMNS = columns(
    "model",
    Column("mode", "mode"),
    "config label framework framework_version device device_name compile dtype factors runs n_runs n_valid "
    "samples_per_s tokens_per_s median_s spread_s spread_over n_measure flops_per_s mfu peak_flops peak_source "
    "is_baseline speedup speedup_low speedup_high p p_corrected verdict taints",
)
_SUFFIX = "-eval"
"""Suffix of a workload's name in mode=eval (docs/methodology.md)."""


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each model, with verdicts and work. Raises: UsageError when --vs or --group-by is invalid."""
    rows = prepare.windowed(prepare.prepare(rows, context), context)
    rows = ignore_length(_of_models(rows), context)
    if not rows:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of a model in samples or with mode=eval")])
    families = compare(rows, prepare.question(rows, context))
    if not context.options.vs:
        families = [_cpu_baseline_only(family) for family in families]
    taints = footnotes.Taints(rows, context)
    caveats = taints.caveats(row for family in families for arm in family.arms for row in arm.shown)
    tables = _tables(families, Peaks(context))
    raw = [row for table in tables for row in table.rows]
    notes = footnotes.notes(families, raw, taints, caveats, context, "rate: at the median iteration, synchronized")
    notes.append(
        "training: forward, backward and optimizer step; evaluation: forward only (mode=eval); FLOP: convolutions and"
        " matrix products, the backward counted as two forwards"
    )
    return Result(
        COLUMNS,
        raw,
        [section for table in tables for section in _sections(table, caveats)],
        [line for table in tables for line in findings(table)],
        notes,
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


def _cpu_baseline_only(family: Family) -> Family:
    """Return the family without a baseline that is not on the CPU: this report compares with the CPU."""
    base = family.baseline
    return family if base is None or base.key.get("device") == "cpu" else replace(family, baseline=None, pairs=())


def _tables(families: Sequence[Family], peaks: Peaks) -> list[Table]:
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


def _table(model: str, families: Mapping[str, Family], peaks: Peaks) -> Table:
    first = next(iter(families.values()))
    arms = {_place(arm): arm for family in families.values() for arm in family.arms}
    named = labelled(sorted(arms.values(), key=order), {**first.common, "optimizer": None})
    labels = {_place(arm): arm.label for arm in named}
    rows = []
    for mode, family in families.items():
        for arm in family.arms:
            row = {**row_of(family, arm, peaks), "model": model, "mode": mode, "label": labels[_place(arm)]}
            rows.append(row)
    at = {label: at for at, label in enumerate(labels.values())}
    rows.sort(key=lambda row: (MODES.index(row["mode"]), at[row["label"]]))
    title = arm_tables.caption(replace(first, common={**first.common, "subject": model}), rows)
    return Table(model, title, families, rows)


def _place(arm: Arm) -> tuple[tuple[str, str], ...]:
    """Return an arm's key without the parts in which training and evaluation differ."""
    return tuple((name, str(value)) for name, value in arm.key.items() if name not in ("subject", "optimizer"))


def _sections(table: Table, caveats: footnotes.Caveats) -> list[Section]:
    """Build the sections: rates and speedups, verdicts if any, work."""
    rates, work = [], []
    for label, by_mode in table.pairs():
        rate: dict[str, Any] = {"label": label}
        done: dict[str, Any] = {"label": label}
        for mode, row in by_mode.items():
            rate |= {
                f"{mode}_rate": _rate(row),
                f"{mode}_marks": arm_tables.marks(row, caveats),
                f"{mode}_speedup": arm_tables.speedup(row),
            }
            done |= {
                f"{mode}_ms": units.ms(row["median_s"]),
                f"{mode}_tflops": units.tflops(row["flops_per_s"]),
                f"{mode}_mfu": units.percent(row["mfu"]),
            }
        rates.append(rate)
        work.append(done)
    has = {unit for unit in ("samples", "tokens") if any(row[f"{unit}_per_s"] for row in table.rows)}
    unit = "tokens" if has == {"tokens"} else "samples"
    columns, work_columns = [Column("label", f"{unit}/s", flexible=True)], [Column("label", "work", flexible=True)]
    for mode in table.families:
        noted = any(row.get(f"{mode}_marks") for row in rates)
        columns += [
            *arm_tables.right(**{f"{mode}_rate": mode}),
            *([Column(f"{mode}_marks", "", str)] if noted else []),
            *arm_tables.right(**{f"{mode}_speedup": "speedup"}),
        ]
        titles = {f"{mode}_ms": f"{mode} ms", f"{mode}_tflops": "TFLOP/s", f"{mode}_mfu": "MFU"}
        work_columns += arm_tables.right(**titles)
    verdicts = [
        section
        for mode, family in table.families.items()
        for section in arm_tables.verdicts(family, table.of(mode), mode)
    ]
    bases = {
        mode: f"relative to {family.baseline.label} ({family.why})"
        for mode, family in table.families.items()
        if family.baseline is not None
    }
    alike = len({*bases.values()}) == 1
    line = next(iter(bases.values())) if alike else "; ".join(f"{mode} {text}" for mode, text in bases.items())
    of = "; ratio of the geometric means of the run medians where there is a CI" if verdicts else ""
    lines = [f"speedup: {line}{of}"] if bases else []
    return [Section(table.title, columns, rates, lines), *verdicts, Section("", work_columns, work)]


def _rate(row: Mapping[str, Any]) -> str:
    rate = row["samples_per_s"] or row["tokens_per_s"]
    spread = rate * row["spread_s"] / row["median_s"] if rate and row["spread_s"] is not None else None
    return arm_tables.spread(rate, spread, row["spread_over"])
