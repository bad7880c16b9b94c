"""Training against inference on each device: throughput of both, and the speedup of each over the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.grouping import by_key, taints, word
from queue_runner.analysis.significance import Verdict, Word
from queue_runner.reports._common import arm_tables, footnotes, panels, prepare, select_runs
from queue_runner.reports._common.arm_rows import values_of
from queue_runner.reports._common.columns import RowColumn, columns
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.reports.train_vs_infer import speedups
from queue_runner.reports.train_vs_infer.speedups import TRAIN, ThroughputArm
from queue_runner.tables import Column

NAME = "train-vs-infer"
HELP = "training against inference of the same model: throughput, and the speedup of each over the CPU"
SQL = (
    f"SELECT {prepare.RUN}, params, COALESCE(json_extract(spec_json, '$.find_max'), '') <> '' AS is_probe"
    " FROM v_run WHERE {chosen} AND kind = 'workload' ORDER BY job_id, number"
)
_BATCH = Column("batch_size", "batch", units.count, True)
_TIMES_TRAINING = Column("times_training", "vs train", units.ratio, True)
COLUMNS = columns(
    "model config framework framework_version compile dtype",
    Column("n_params", "parameters", units.short_count, True),
    "device device_name",
    Column("kind", "kind"),
    "settings",
    _BATCH,
    "runs",
    Column("counts", "valid"),
    Column("rate", "rate", units.number, True),
    Column("unit", "unit"),
    Column("spread", "spread", units.number, True),
    _TIMES_TRAINING,
    "speedup speedup_low speedup_high p_corrected verdict same_within seen taints",
)
_PLACE = ("machine", "model", "config", "dtype", "n_params")
"""Names common to all rows of a table."""
Verdicts = Mapping[ThroughputArm, Verdict]


def finish(rows: list[Row], context: Context) -> Result:
    """Build a table for each model. Raises: UsageError when --vs, --group-by or --iters is given."""
    rows = prepare.uncompared(rows, context, f"{NAME} takes")
    all_arms = speedups.throughput_arms(rows, context) if rows else []
    inferred = {arm.alike for arm in all_arms if arm.kind != TRAIN}
    arms = [arm for arm in all_arms if arm.alike in inferred]
    if not arms:
        which = "of inference (mpsq submit nanogpt --set mode=sample, or resnet50 --set mode=eval)"
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, which)])
    raw: list[dict[str, Any]] = []
    blocks: list[panels.Block] = []
    found = footnotes.CaveatMarks(rows, (row for arm in arms for row in arm.used), context)
    tables = by_key(arms, lambda arm: tuple(arm.key[name] for name in _PLACE))
    for table in tables.values():
        verdicts = speedups.judge(table, context.options.same_within)
        rows_of_table = [_row(arm, table, verdicts) for arm in table]
        raw += rows_of_table
        blocks.append(([*_sections(table, rows_of_table, found)], [*_findings(table, verdicts)]))
    sections, lines = panels.together(blocks)
    notes = [*_notes(arms, rows, found, context)]
    if n_left := sum(arm.alike not in inferred for arm in all_arms):
        rows_left = f"{n_left} row{'s' * (n_left > 1)} of training not shown"
        notes.append(f"{rows_left}: no inference of the same model, framework, version and dtype")
    return Result(COLUMNS, raw, sections, lines, notes)


def _row(arm: ThroughputArm, arms: Sequence[ThroughputArm], verdicts: Verdicts) -> dict[str, Any]:
    return {
        **arm.key,
        "kind": arm.kind,
        "batch_size": arm.batch,
        "runs": [row["run"] for row in arm.used],
        "n_runs": len(arm.used),
        "counts": arm.counts,
        "rate": arm.rate,
        "unit": f"{arm.unit}/s",
        "spread": arm.spread,
        "times_training": _times_training(arm, arms),
        **values_of(verdicts.get(arm)),
        "is_baseline": arm not in verdicts and any(other.twin_of(arm) for other in verdicts),
        "taints": sorted({kind for row in arm.used for kind in taints(row)}),
        "excluded": not arm.counts,
    }


def _times_training(arm: ThroughputArm, arms: Sequence[ThroughputArm]) -> float | None:
    """Return the ratio to the throughput of training on the same device; None if that is missing or ambiguous."""
    if arm.kind == TRAIN or not arm.counts:
        return None
    training = _training_of(arm, arms)
    return arm.rate / training.rate if training is not None and training.unit == arm.unit else None


def _training_of(arm: ThroughputArm, arms: Sequence[ThroughputArm]) -> ThroughputArm | None:
    """Return the one training arm on the same device in the same mode, if there is one; other settings may differ."""
    device = (arm.key["device"], arm.key["device_name"])
    fit = [c for c in arms if c.kind == TRAIN and c.counts and c.alike == arm.alike]
    fit = [c for c in fit if (c.key["device"], c.key["device_name"]) == device]
    return fit[0] if len(fit) == 1 else None


def _title(arms: Sequence[ThroughputArm]) -> str:
    """Return what all arms have in common."""
    key, where = arms[0].key, arms[0].used[0]["where"]
    size = f"{units.short_count(key['n_params'])} parameters" if key["n_params"] else ""
    model = " ".join(filter(None, [key["model"], key["config"]]))
    versions = {arm.key["framework_version"] for arm in arms}
    framework = " ".join(filter(None, [key["framework"], versions.pop() if len(versions) == 1 else ""]))
    return ", ".join(filter(None, [model, framework if _one_framework(arms) else "", size, key["dtype"], where]))


def _one_framework(arms: Sequence[ThroughputArm]) -> bool:
    return len({arm.key["framework"] for arm in arms}) == 1


def _label(arm: ThroughputArm, arms: Sequence[ThroughputArm]) -> str:
    """Return framework (of several), mode, device, and the settings that distinguish the arm from others of its
    kind."""
    key = arm.key
    alike = [other for other in arms if other.kind == arm.kind]
    versions = {other.key["framework_version"] for other in alike if other.key["framework"] == key["framework"]}
    framework = "" if _one_framework(arms) and len(versions) == 1 else key["framework"]
    words = [framework, key["framework_version"] if len(versions) > 1 else "", word("compile", key["compile"])]
    names = sorted({name for other in alike for name in other.key["settings"]})
    names = [name for name in names if name != "batch_size"]  # it has a column
    differ = [n for n in names if len({str(other.key["settings"].get(n)) for other in alike}) > 1]
    words.append(key["device"])
    if sum(other.alike == arm.alike and other.key["device"] == key["device"] for other in alike) > 1:
        words += [word(n, key["settings"][n]) for n in differ if n in key["settings"]]
    return " ".join(str(text) for text in words if text)


def _sections(
    arms: Sequence[ThroughputArm], rows: Sequence[dict[str, Any]], found: footnotes.CaveatMarks
) -> Iterable[Section]:
    shown = [{**row, "label": _label(arm, arms), "work": arm.unit} for arm, row in zip(arms, rows, strict=True)]
    work_units = {arm.unit for arm in arms}
    kind = Column("kind", "")
    n_runs = {row["n_runs"] for row in shown}
    each = f", {units.counted(n_runs.pop(), 'run')} each" if len(n_runs) == 1 and len(shown) > 1 else ""
    rate_title = f"{next(iter(work_units))}/s" if len(work_units) == 1 else "per second"
    table = columns(
        arm_tables.LABEL,
        kind,
        _BATCH,
        *([] if each else [Column("n_runs", "runs", units.count, True)]),
        RowColumn("rate", rate_title, lambda row: units.plus_minus(row["rate"], row["spread"]), True),
        *found.columns(shown),
        *([Column("work", "of")] if len(work_units) > 1 else []),
        _TIMES_TRAINING,
        Column("speedup", "vs CPU", units.ratio, True),
        *((arm_tables.WITHIN, arm_tables.VERDICT) if any(row["judged"] for row in shown) else ()),
    )
    whole = arm_tables.without_empty(Section(f"{_title(arms)}{each}", table, shown))
    answer, left = arm_tables.fitted(whole, (_BATCH.key, _TIMES_TRAINING.key))
    yield answer
    yield from arm_tables.beside(left, shown, arm_tables.LABEL, kind)
    if tested := [row for row in shown if row["speedup_low"] is not None]:
        yield replace(arm_tables.verdict_table(tested, "vs CPU", "", kind), explained=True)


def _findings(arms: Sequence[ThroughputArm], verdicts: Verdicts) -> Iterable[str]:
    """Report by device whether training or inference has the greater speedup."""
    for training in (arm for arm in arms if arm.kind == TRAIN and arm in verdicts):
        others = [a for a in arms if a.kind != TRAIN and a in verdicts and _training_of(a, arms) is training]
        if not others:
            continue
        yield f"{_label(training, arms)}: speedup over the CPU: training {_speedup(verdicts[training])}"
        for arm in others:
            yield f"  {arm.kind} {_speedup(verdicts[arm])}: {_relation(verdicts[arm], verdicts[training])}"
    if not verdicts:
        yield "no speedup over the CPU: it needs runs on the CPU and on another device with the same settings"


def _speedup(verdict: Verdict) -> str:
    interval = units.ratio_interval(verdict.low, verdict.high)
    return f"{units.ratio(verdict.speedup)} ({f'95 % CI {interval}' if verdict.low is not None else 'no verdict'})"


def _relation(inference: Verdict, training: Verdict) -> str:
    times = inference.speedup / training.speedup
    text = f"{units.ratio(max(times, 1 / times))} {'higher' if times > 1 else 'lower'} than training"
    if inference.low is None or inference.high is None or training.low is None or training.high is None:
        if Word.NOT_IN_TURN in (inference.word, training.word):
            return f"{text} (no verdict: not interleaved with the CPU; submit both devices together with --repeats)"
        need = max(inference.need or 0, training.need or 0)
        return f"{text} ({inference.n} and {training.n} runs: no verdict, use --repeats {need})"
    if inference.low > training.high or inference.high < training.low:
        return f"{text}; the CIs do not overlap"
    return "no difference from training shown: the CIs overlap"


def _notes(
    arms: Sequence[ThroughputArm],
    rows: Sequence[Row],
    found: footnotes.CaveatMarks,
    context: Context,
) -> Iterable[str]:
    yield (
        f"throughput: at the geometric mean of the run medians, {units.PLUS_MINUS} MAD; prefill and decode are the two"
        " parts of one iteration"
    )
    if any(_times_training(arm, arms) for arm in arms):
        yield "vs train: relative to training on the same device, whose batch size and settings may differ"
    yield from found.notes()
    used = {row["run_id"]: row for arm in arms for row in arm.used}
    yield from footnotes.few_iterations((row["run"], row) for row in used.values())
    models = {f"{arm.key['model']}{suffix}" for arm in arms for suffix in ("", "-sample", "-eval")}
    yield from found.excluded(
        (
            row
            for row in rows
            if row["subject"] in models
            and (row["run_id"] in used or not row["is_probe"])
            and row["outcome"] is not None
            and not (row["valid"] and row["outcome"] == "SUCCEEDED")
        ),
        context.options.include_invalid,
    )
