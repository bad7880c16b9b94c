"""Training against inference on each device: throughput of both, and the speedup of each over the CPU.

A run counts once for each kind of work that it measured, with the time of a token or sample as its `median_s`: arms
combine, compare and label such runs as they do in every report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from queue_runner import units
from queue_runner.analysis import run_metrics, stats
from queue_runner.analysis.comparison import PHASE
from queue_runner.analysis.finding import Caveat
from queue_runner.analysis.findings import other_clock
from queue_runner.analysis.grouping import MAIN, WORK, Arm, group, labelled, order, taints
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Verdict, judge
from queue_runner.analysis.stats import by_key
from queue_runner.model import Outcome
from queue_runner.monitor.answers import prepare, select_runs, sweeps
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables, footnotes
from queue_runner.reports._common.arm_rows import JudgedRow, of_arm
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Block, Result, Section, together
from queue_runner.reports._common.settings import LENGTH_SETTINGS, effective
from queue_runner.spec import OF_TIME
from queue_runner.tables import Column

NAME = "train-vs-infer"
HELP = "training against inference of the same model: throughput, and the speedup of each over the CPU"
SQL = (
    f"SELECT {prepare.RUN}, params FROM v_run WHERE {{chosen}} AND kind = 'workload'"
    " AND COALESCE(json_extract(spec_json, '$.find_max'), '') = '' ORDER BY job_id, number"
)
"""Without the probes of --find-max, which differ in size: see `mpsq report scaling`."""
_WORK, _UNIT, _BATCH = "(work)", "(unit)", "(batch)"
"""Factors that this report adds: one of KINDS, what its rate counts, and the effective batch size."""


def _keyed(column: Column, name: str) -> Column:
    """Return a column whose value is in the key of the row's arm."""
    return structs.replace(column, value=lambda row: row.arm.key[name])


def _in_key(keys: str) -> list[Column]:
    return [_keyed(column, column.key) for column in columns(keys)]


_BATCH_SIZE = _keyed(Column("batch_size", "batch", units.count, True), _BATCH)
_TIMES_TRAINING = Column("times_training", "vs train", units.ratio, True)
COLUMNS = columns(
    "model",
    *_in_key("config framework framework_version compile dtype"),
    _keyed(Column("n_params", "parameters", units.short_count, True), "params"),
    *_in_key("device device_name"),
    Column("kind", "kind"),
    "settings",
    _BATCH_SIZE,
    "runs",
    Column("counts", "valid"),
    Column("rate", "rate", units.number, True),
    Column("unit", "unit", value=lambda row: f"{row.arm.key[_UNIT]}/s"),
    Column("spread", "spread", units.number, True),
    _TIMES_TRAINING,
    "speedup speedup_low speedup_high verdict undecided_because n_rounds given_after more_rounds same_within taints",
)
TRAIN = "train"
KINDS = (TRAIN, "eval", "prefill", "decode")
"""Training, evaluation (mode=eval), and the two parts of text generation (mode=sample)."""
_METRICS = {"prefill": "prefill_tokens_per_s", "decode": "decode_tokens_per_s"}
_MODEL = ("machine", "subject", "config", "dtype", "params")
"""Factors that all rows of a table share; the number of parameters shows that the model is the same."""
_SOFTWARE = ("framework", "framework_version", "compile")
"""Factors in which training and inference agree. Other settings differ by nature, such as the batch."""
_DEVICE = ("device", "device_name")
_ABSENCE_DIFFERS = {"env", "resumed", "arguments"}
"""Factors that are not versions: a run without one differs from a run with it."""
Verdicts = Mapping[Arm, Verdict]


@dataclass(frozen=True, kw_only=True)
class WorkRow(JudgedRow):
    """What reports show of one kind of work on one device; the other columns are in the key of the arm."""

    times_training: float | None

    model = of_arm(lambda arm: str(arm.key["subject"]))
    kind = of_arm(lambda arm: str(arm.key[_WORK]))
    settings = of_arm(lambda arm: {k: v for k, v in arm.shown[0].factors.items() if k not in (_WORK, _UNIT, _BATCH)})
    runs = of_arm(lambda arm: [run.run for run in arm.shown])
    n_runs = of_arm(lambda arm: len(arm.shown))
    counts = of_arm(lambda arm: bool(arm.used))
    excluded = of_arm(lambda arm: not arm.used)
    rate = of_arm(lambda arm: _rate(arm))
    spread = of_arm(lambda arm: None if (spread_s := arm.spread_s[0]) is None else spread_s * _rate(arm) ** 2)


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Build a table for each model."""
    rows, untimed = sweeps.with_phase_times(prepare.prepare(stored, context), context)
    rows = [row.changed(median_s=None, time_of=PHASE) if row.run_id in untimed else row for row in rows]
    by_kind = _runs_by_kind(rows, context)
    all_arms = _arms(by_kind, context)
    inferred = {_place(arm) for arm in all_arms if arm.key[_WORK] != TRAIN}
    arms = [arm for arm in all_arms if _place(arm) in inferred]
    ended = {row.run_id: row for row in rows if row.outcome == Outcome.SUCCEEDED and row.time_of == PHASE}
    notes: list[str] = []
    if unknown := [ended[run_id].run for run_id in ended.keys() - {row.run_id for row in by_kind}]:
        runs = f"left out {units.counted(len(unknown), 'run')} whose clock cannot be trusted"
        notes.append(Caveat(runs, f": {footnotes.named(unknown)}: no phase of the same work was timed"))
    if not arms:
        which = "of inference (mpsq submit nanogpt --set mode=sample, or resnet50 --set mode=eval)"
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, which)], notes=notes)
    raw: list[WorkRow] = []
    blocks: list[Block] = []
    marks = footnotes.CaveatMarks(rows, (row for arm in arms for row in arm.shown), context)
    for table in by_key(arms, lambda arm: tuple(arm.key[name] for name in _MODEL)).values():
        verdicts = _judge(table, context.options.aim.margins.get(OF_TIME))
        baselines = [_twin(arm, table) for arm in verdicts]
        rows_of_table = [
            WorkRow(
                arm=arm,
                times_training=_times_training(arm, table),
                judged=verdicts.get(arm),
                is_baseline=arm not in verdicts and arm in baselines,
            )
            for arm in table
        ]
        raw += rows_of_table
        blocks.append(([*_sections(table, rows_of_table, marks)], [*_findings(table, verdicts)]))
    sections, lines = together(blocks)
    notes += _notes(arms, rows, marks)
    if n_hidden := len(all_arms) - len(arms):
        hidden = f"{n_hidden} row{'s' * (n_hidden > 1)} of training not shown"
        notes.append(f"{hidden}: no inference of the same model, framework, version and dtype")
    return Result(COLUMNS, raw, sections, lines, notes)


def _runs_by_kind(rows: Sequence[ReportedRun], context: Context) -> list[ReportedRun]:
    """Return the successful runs, once for each kind of work."""
    settings = effective(rows, context)
    names = ", ".join(f"'{name}'" for name in _METRICS.values())
    sql = f"SELECT run_id, name, value FROM v_metric WHERE run_id IN ({{runs}}) AND name IN ({names}) AND value > 0"
    metrics = context.tuples_by_run(sql, rows)
    runs = []
    for row in (row for row in rows if row.outcome == Outcome.SUCCEEDED):
        mode = str(settings[row.run_id].get("mode", TRAIN))
        factors = {name: value for name, value in row.factors.items() if name not in LENGTH_SETTINGS}
        factors[_BATCH] = settings[row.run_id].get("batch_size")
        run = row.changed(subject=row.subject.removesuffix(f"-{mode}"), compile=row.compile or False, mad_s=None)
        for kind, unit, time_s in _times(row, mode, metrics.get(row.run_id, [])):
            runs.append(run.changed(median_s=time_s, factors={**factors, _WORK: kind, _UNIT: unit}))
    return runs


def _times(row: ReportedRun, mode: str, metrics: Iterable[tuple[str, float]]) -> Iterable[tuple[str, str, float]]:
    """Yield the kinds of work of a run, with the unit of work and its seconds. The parts of mode=sample have no phases,
    so where a phase is compared there are none."""
    if mode == "sample":
        for kind, name in _METRICS.items() if row.time_of is None else ():
            if rates := [value for metric, value in metrics if metric == name]:
                yield kind, "tokens", 1 / stats.median(rates)
        return
    has_loss = row.loss_last is not None or "diverged" in taints(row)  # a final NaN is not stored
    for unit in [unit for unit in WORK if row.work(unit)][:1]:
        if row.median_s and (mode == "eval" or (mode == TRAIN and has_loss)):
            yield mode, f"{unit}s", row.median_s / (row.work(unit) or 1.0)


def _arms(runs: Sequence[ReportedRun], context: Context) -> list[Arm]:
    """Return the labelled arms by model; of a model training first, then by device and mode."""
    factors = sorted({name for run in runs for name in run.factors})
    names = [*_MODEL, *MAIN, *_SOFTWARE, *_DEVICE, *factors]
    tables = by_key(
        group(runs, list(dict.fromkeys(names)), context.options.include_invalid),
        lambda arm: (*(str(arm.key[name]) for name in _MODEL), KINDS.index(arm.key[_WORK])),
    )
    common = dict.fromkeys((*_MODEL, _WORK, _UNIT, _BATCH))
    return [arm for key in sorted(tables) for arm in labelled(sorted(tables[key], key=order), common)]


def _place(arm: Arm) -> tuple[Any, ...]:
    return tuple(arm.key[name] for name in (*_MODEL, *_SOFTWARE))


def _rate(arm: Arm) -> float:
    """Return the work per second at the geometric mean of the runs' times: a speedup is the ratio of two."""
    assert arm.median_s is not None
    return 1 / arm.median_s


def _judge(arms: Sequence[Arm], same_within: float | None) -> Verdicts:
    """Compare each valid arm of another device with its twin on the CPU, judging all pairs together. The metrics that
    the report `devices` gives words on count as well."""
    pairs = [(arm, twin) for arm in arms if (twin := _twin(arm, arms)) is not None]
    planned = max([len(pairs), *(row.planned_rows for arm in arms for row in arm.shown)])
    n_metrics = sum(not obstacle for obstacle in run_metrics.obstacles(arms).values())
    verdicts = judge(pairs, planned * (1 + n_metrics), same_within=same_within)
    return {pair[0]: verdicts[pair] for pair in pairs}


def _twin(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """Return the only arm on the CPU that differs in the device alone. A version missing on one side does not count as
    different: a run on the CPU has no CUDA."""
    if arm.key["device"] == "cpu" or not arm.used:
        return None

    def same(other: Arm) -> bool:
        requested = _ABSENCE_DIFFERS.union(*(row.settings for row in (*arm.shown, *other.shown)))
        pairs = [(name, value, other.key[name]) for name, value in arm.key.items() if name not in (*_DEVICE, _BATCH)]
        return all(a == b or (name not in requested and None in (a, b)) for name, a, b in pairs)

    twins = [other for other in arms if other.key["device"] == "cpu" and other.used and same(other)]
    return twins[0] if len(twins) == 1 else None


def _times_training(arm: Arm, arms: Sequence[Arm]) -> float | None:
    """Return the ratio to the throughput of training on the same device; None if that is missing or ambiguous."""
    if arm.key[_WORK] == TRAIN or not arm.used:
        return None
    training = _training_of(arm, arms)
    return _rate(arm) / _rate(training) if training is not None and training.key[_UNIT] == arm.key[_UNIT] else None


def _training_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
    """Return the one training arm on the same device in the same mode, if there is one; other settings may differ."""
    fit = [
        other
        for other in arms
        if other.key[_WORK] == TRAIN and other.used and _place(other) == _place(arm)
        if all(other.key[name] == arm.key[name] for name in _DEVICE)
    ]
    return fit[0] if len(fit) == 1 else None


def _title(arms: Sequence[Arm]) -> str:
    """Return what all arms have in common."""
    key, where = arms[0].key, arms[0].shown[0].where
    size = f"{units.short_count(key['params'])} parameters" if key["params"] else ""
    model = " ".join(filter(None, [key["subject"], key["config"]]))
    versions = {(arm.key["framework"], arm.key["framework_version"]) for arm in arms}
    framework = key["framework"] if len({name for name, _ in versions}) == 1 else ""
    if framework and len(versions) == 1:
        framework = " ".join(filter(None, *versions))
    return ", ".join(filter(None, [model, framework, size, key["dtype"], where]))


def _sections(arms: Sequence[Arm], rows: Sequence[WorkRow], marks: footnotes.CaveatMarks) -> Iterable[Section]:
    work_units = {arm.key[_UNIT] for arm in arms}
    kind = Column("kind", "")
    n_runs = {len(arm.shown) for arm in arms}
    runs_each = f", {units.counted(n_runs.pop(), 'run')} each" if len(n_runs) == 1 and len(arms) > 1 else ""
    rate_title = f"{next(iter(work_units))}/s" if len(work_units) == 1 else "per second"
    table = columns(
        arm_tables.LABEL,
        kind,
        _BATCH_SIZE,
        *([] if runs_each else [Column("n_runs", "runs", units.count, True)]),
        Column("rate", rate_title, right=True, value=lambda row: units.plus_minus(row.rate, row.spread)),
        *marks.columns(rows),
        *([_keyed(Column("work", "of"), _UNIT)] if len(work_units) > 1 else []),
        _TIMES_TRAINING,
        *arm_tables.judged(rows, "vs CPU"),
    )
    whole = arm_tables.without_empty(Section(f"{_title(arms)}{runs_each}", table, rows))
    answer, hidden = arm_tables.fitted(whole, (_BATCH_SIZE.key, _TIMES_TRAINING.key))
    yield answer
    yield from arm_tables.beside(hidden, rows, arm_tables.LABEL, kind)


def _findings(arms: Sequence[Arm], verdicts: Verdicts) -> Iterable[str]:
    """Report by device whether training or inference has the greater speedup."""
    for training in (arm for arm in arms if arm.key[_WORK] == TRAIN and arm in verdicts):
        others = [a for a in verdicts if a.key[_WORK] != TRAIN and _training_of(a, arms) is training]
        if others:
            yield f"{training.label}: speedup over the CPU: training {_speedup(verdicts[training])}"
        for arm in others:
            yield f"  {arm.key[_WORK]} {_speedup(verdicts[arm])}: {_relation(verdicts[arm], verdicts[training])}"
    if not verdicts:
        yield "no speedup over the CPU: it needs runs on the CPU and on another device with the same settings"
    yield from other_clock((arm.label, arm.timed) for arm in arms)


def _speedup(verdict: Verdict) -> str:
    return f"{verdict.ratio} ({verdict.interval or 'undecided'})"


def _relation(inference: Verdict, training: Verdict) -> str:
    times = inference.change / training.change
    text = f"{units.ratio(max(times, 1 / times))} {'higher' if times > 1 else 'lower'} than training"
    if inference.low is None or inference.high is None or training.low is None or training.high is None:
        return f"{text} (undecided: {inference.next_step or training.next_step})"
    if inference.low > training.high or inference.high < training.low:
        return f"{text}; the CIs do not overlap"
    return "may equal that of training: the CIs overlap"


def _notes(arms: Sequence[Arm], rows: Sequence[ReportedRun], marks: footnotes.CaveatMarks) -> Iterable[str]:
    yield (
        f"throughput: at the geometric mean of the run medians, {units.PLUS_MINUS} their standard deviation; prefill"
        " and decode are the two parts of one iteration"
    )
    if any(_times_training(arm, arms) for arm in arms):
        yield "vs train: relative to training on the same device, whose batch size and settings may differ"
    yield from marks.notes()
    used = {row.run_id: row for arm in arms for row in arm.shown}
    yield from footnotes.few_iterations((row.run, row.n_measure) for row in used.values())
    models = {f"{arm.key['subject']}{suffix}" for arm in arms for suffix in ("", "-sample", "-eval")}
    invalid = (
        row
        for row in rows
        if row.subject in models and row.outcome is not None and not (row.valid and row.outcome == "SUCCEEDED")
    )
    yield from marks.excluded(invalid, {row.run_id for arm in arms for row in arm.used})
