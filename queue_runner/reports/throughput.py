"""Samples per second of training and evaluation of a model, by device and relative to the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, compare
from queue_runner.analysis.finding import Finding
from queue_runner.analysis.grouping import Arm, labelled, order
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers import prepare, select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables, footnotes, panels
from queue_runner.reports._common.arm_rows import ArmRow, row_of
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.device_peaks import Peaks
from queue_runner.reports._common.document import Result, Section
from queue_runner.reports._common.settings import ignore_length
from queue_runner.tables import Column

TRAINING, EVALUATION = "training", "evaluation"
MODES = (TRAINING, EVALUATION)
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
    "is_baseline speedup speedup_low speedup_high verdict undecided_because n_rounds given_after more_rounds "
    "same_within taints",
)
_SUFFIX = "-eval"
"""Suffix of a workload's name in mode=eval (docs/methodology.md)."""


@dataclass(frozen=True, kw_only=True)
class ModeRow(ArmRow):
    """The row of an arm that trains or evaluates a model; `mode` is one of MODES."""

    model: str
    mode: str


@dataclass(frozen=True)
class ModelTable:
    """One model with one set of settings on one machine: its families by mode, and their rows."""

    model: str
    title: str
    families: Mapping[str, Family]
    rows: Sequence[ModeRow]

    def of(self, mode: str) -> list[ModeRow]:
        return [row for row in self.rows if row.mode == mode]


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Build a table for each model, with verdicts and work. Raises: UsageError when --vs or --group-by is invalid."""
    rows = ignore_length(_of_models(prepare.windowed(stored, context)), context)
    if not rows:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of a model in samples or with mode=eval")])
    families = compare(rows, prepare.question(rows, context))
    if not context.options.vs:
        families = [_cpu_baseline_only(family) for family in families]
    taints = footnotes.CaveatMarks(rows, (row for family in families for row in family.shown), context)
    tables = _tables(families, Peaks(context))
    blocks = [(_sections(table, taints), [*_answers(table), *_doubts(table)]) for table in tables]
    sections, lines = panels.together(blocks)
    raw = [row for table in tables for row in table.rows]
    notes = footnotes.notes(
        families,
        raw,
        taints,
        context,
        "rate: at the median iteration (several runs: the geometric mean of their medians), synchronized",
    )
    notes.append(
        "training: forward, backward and optimizer step; evaluation: forward only (mode=eval); FLOP: convolutions and"
        " matrix products, the backward counted as two forwards"
    )
    return Result(
        COLUMNS,
        raw,
        sections,
        lines,
        notes,
        families=families,
    )


def _of_models(rows: Sequence[ReportedRun]) -> list[ReportedRun]:
    """Return the runs of workloads that count samples or can evaluate."""
    prepared = []
    for row in rows:
        name = str(row.subject)
        evaluates = name.endswith(_SUFFIX) or row.settings.get("mode") == "eval"
        base = name.removesuffix(_SUFFIX)
        prepared.append(replace(row, subject=base + (_SUFFIX if evaluates else "")))
    able = [row for row in prepared if row.samples_per_iter or row.subject.endswith(_SUFFIX)]
    models = {row.subject.removesuffix(_SUFFIX) for row in able}
    return [row for row in prepared if row.subject.removesuffix(_SUFFIX) in models]


def _cpu_baseline_only(family: Family) -> Family:
    """Return the family without a baseline that is not on the CPU: this report compares with the CPU."""
    base = family.baseline
    return family if base is None or base.key.get("device") == "cpu" else replace(family, baseline=None, pairs=())


def _tables(families: Sequence[Family], peaks: Peaks) -> list[ModelTable]:
    """Combine the families of training and evaluation, with common row labels."""
    together: dict[tuple[Any, ...], dict[str, Family]] = {}
    for family in families:
        subject = str(family.common["subject"])
        model, mode = subject.removesuffix(_SUFFIX), EVALUATION if subject.endswith(_SUFFIX) else TRAINING
        common = {**family.common, "subject": model}
        together.setdefault((model, *map(str, common.values())), {})[mode] = family
    return [_table(key[0], {m: by_mode[m] for m in MODES if m in by_mode}, peaks) for key, by_mode in together.items()]


def _table(model: str, families: Mapping[str, Family], peaks: Peaks) -> ModelTable:
    first = next(iter(families.values()))
    arms = {_place(arm): arm for family in families.values() for arm in family.arms}
    named = labelled(sorted(arms.values(), key=order), {**first.common, "optimizer": None})
    labels = {_place(arm): arm.label for arm in named}
    rows = [
        ModeRow(**{**vars(row_of(family, arm, peaks)), "label": labels[_place(arm)]}, model=model, mode=mode)
        for mode, family in families.items()
        for arm in family.arms
    ]
    at = {label: at for at, label in enumerate(labels.values())}
    rows.sort(key=lambda row: (MODES.index(row.mode), at[row.label]))
    title = arm_tables.caption(replace(first, common={**first.common, "subject": model}), rows)
    return ModelTable(model, title, families, rows)


def _place(arm: Arm) -> tuple[tuple[str, str], ...]:
    """Return an arm's key without the parts in which training and evaluation differ."""
    return tuple((name, str(value)) for name, value in arm.key.items() if name not in ("subject", "optimizer"))


_MODE = Column("mode", "")


def _sections(table: ModelTable, taints: footnotes.CaveatMarks) -> list[Section]:
    """Return the one table of an answer, and for --explain what has no room in it and the tests."""
    rows = table.rows
    has = {unit for unit in ("samples", "tokens") if any(getattr(row, f"{unit}_per_s") for row in rows)}
    rate = Column("rate", f"{'tokens' if has == {'tokens'} else 'samples'}/s", right=True, value=_rate)
    n_each, runs = arm_tables.counts(rows)
    shown = columns(
        arm_tables.LABEL,
        _MODE,
        *runs,
        rate,
        *taints.columns(rows),
        Column("median_s", "ms", units.ms, True),
        arm_tables.TFLOPS,
        "mfu",
        *arm_tables.judged(rows),
    )
    whole = arm_tables.without_empty(Section(f"{table.title}{n_each}", shown, rows, _relative(table)))
    answer, hidden = arm_tables.fitted(whole, ("median_s", "flops_per_s", "mfu"))
    return [answer, *arm_tables.beside(hidden, rows, arm_tables.LABEL, _MODE)]


def _relative(table: ModelTable) -> list[str]:
    """Say what the speedups are relative to, once if that is the same for training and evaluation."""
    findings = {m: arm_tables.relative(family, table.of(m), family.why) for m, family in table.families.items()}
    lines: dict[Finding, list[str]] = {}
    for mode, line in ((mode, line) for mode, by_mode in findings.items() for line in by_mode):
        lines.setdefault(line, []).append(mode)
    prefixes = {line: "" if len(lines) == 1 else f"{' and '.join(modes)}: " for line, modes in lines.items()}
    return [line.after(prefixes[line]) for line in lines]


def _rate(row: ArmRow) -> str:
    rate = row.samples_per_s or row.tokens_per_s
    spread = rate * row.spread_s / row.median_s if rate and row.median_s and row.spread_s is not None else None
    return arm_tables.spread(rate, spread, row.spread_over)


def _answers(table: ModelTable) -> Iterator[str]:
    for mode in table.families:
        rows = table.of(mode)
        over = [(row.judged, row) for row in rows if row.judged and not row.is_baseline]
        if not over:
            yield f"{mode}: {_no_ratio(rows)}"
            continue
        judged, best = max(over, key=lambda pair: pair[0].speedup)
        base = next(row.label for row in rows if row.is_baseline)
        within = f" (95 % CI {units.ratio_interval(judged.low, judged.high)})" if judged.low is not None else ""
        times = f"{'is' if judged.decided else 'measured'} {units.ratio(judged.speedup)}"
        yield f"{mode}: {best.label} {times} as fast as {base}{within}: {judged}"


def _no_ratio(rows: Sequence[ArmRow]) -> str:
    able = [row for row in rows if row.compared]
    if not able:
        return "no valid run"
    if not any(row.device == "cpu" and not row.compile for row in able):
        return "no eager run on the CPU to compare with (mpsq submit ... --device cpu, or --vs)"
    return "only one row: nothing to compare with"


def _doubts(table: ModelTable) -> Iterator[str]:
    """Report numbers that are impossible or based on too little data."""
    medians = {(row.label, row.mode): row.median_s for row in table.rows}
    for label in dict.fromkeys(row.label for row in table.rows):
        train_s, eval_s = (medians.get((label, mode)) for mode in MODES)
        if train_s is not None and eval_s is not None and eval_s >= train_s:
            yield (
                f"implausible: {label}: evaluation takes {units.ms(eval_s)} ms, training {units.ms(train_s)} ms, but"
                " evaluation is a part of training"
            )
    for row in table.rows:
        if (row.mfu or 0) > 1:
            share = f"{units.percent(row.mfu)} of the peak"
            yield f"implausible: {row.label}, {row.mode}: {share}: the FLOP or the peak is wrong"
    few = ((f"{row.label} {row.mode}", row.n_measure) for row in table.rows if row.n_valid)
    yield from footnotes.few_iterations(few)
