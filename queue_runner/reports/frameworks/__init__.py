"""Comparison of frameworks on the same model and device: which is fastest, by how much, and do they train alike?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, compare
from queue_runner.analysis.grouping import Arm, by_key
from queue_runner.errors import UsageError
from queue_runner.reports._common import arm_tables, divergence, footnotes, prepare, select_runs
from queue_runner.reports._common.arm_rows import newest_first, row_of
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.peaks import Peaks
from queue_runner.reports._common.report import Context, Result, Row, Section
from queue_runner.reports.frameworks import text
from queue_runner.tables import Column

NAME = "frameworks"
HELP = "which framework is fastest for the same model on the same device; do they train alike?"
SQL = f"SELECT {prepare.RUN}, data_sha256 FROM v_run WHERE {{chosen}} AND framework IS NOT NULL ORDER BY job_id, number"
COLUMNS = columns(
    "workload config device device_name dtype label framework framework_version compile factors runs n_runs n_valid "
    "compared median_s spread_s spread_over tokens_per_s samples_per_s first_iter_s is_baseline speedup speedup_low "
    "speedup_high p_corrected verdict n_iters",
    Column("loss_mean", "loss", units.loss, True),
    Column("loss_iterations", "loss iterations", units.count, True),
    Column("loss_apart", "loss difference", units.percent, True),
    Column("trains_alike", "trains alike"),
    Column("is_fastest", "fastest"),
    "taints",
)
ALIKE = 0.02
"""Maximum relative difference of alike mean losses of the last iterations: dropout alone causes about 1 %."""
LAST_SHARE = 0.1
LAST_AT_LEAST = 10
"""The losses compared are of the last tenth of the iterations that both arms have, but of at least this many."""
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
    all_families = _families(rows, context)
    families = [family for family in all_families if len(text.frameworks(family)) > 1]
    families = newest_first(families)
    peaks, taints = Peaks(context), footnotes.Taints(rows, context)
    n_shown = len(families) if context.options.chosen else _MOST_FAMILIES
    caveats = taints.caveats(row for family in families[:n_shown] for arm in family.arms for row in arm.shown)
    raw: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    sections: list[Section] = []
    lines: list[str] = []
    for k, family in enumerate(families):
        losses = _losses(family, context) if k < n_shown else ((arm, None) for arm in family.arms)
        found = [_row(family, arm, peaks, loss) for arm, loss in losses]
        _mark_fastest(family, found)
        raw += found
        if k >= n_shown:
            continue
        shown += found
        sections += [_section(family, found, caveats), *arm_tables.verdicts(family, found)]
        title = [_title(family, found) + ":"] if len(families) > 1 else []
        lines += [*title, *text.findings(family, found, context)]
    if not families:
        which = "of a second framework for the same settings (mpsq submit nanogpt --framework torch,mlx,tinygrad,jax)"
        lines = [select_runs.nothing(context, which)]
    notes = [*text.unlike(all_families), *footnotes.few(shown)]
    notes += footnotes.notes(families[:n_shown], raw, taints, caveats, context)
    if any(row["loss_mean"] is not None for row in shown):
        notes.append(f"loss: mean of the last tenth of the iterations; alike: within {units.percent(ALIKE, 1)}")
    return Result(COLUMNS, raw, sections, lines, notes)


def _families(rows: Sequence[Row], context: Context) -> list[Family]:
    """Return a family for each device and dtype, so that only frameworks and modes differ."""
    if not rows:
        return []
    question = prepare.question(rows, context)
    places = by_key(rows, lambda row: (str(row["device"]), str(row["dtype"])))
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
    """Compare the losses of one run per arm with a baseline run of the same seed and data."""
    base = family.baseline.shown if family.baseline is not None else []
    read = {row["run_id"]: divergence.losses(row, context) for row in base[:1]}
    for arm in family.arms:
        pair = next(((one, other) for other in base[:1] for one in arm.shown if _same_data(one, other)), None)
        if pair is None:
            yield arm, None
            continue
        a = read.setdefault(pair[0]["run_id"], divergence.losses(pair[0], context))
        b = read[pair[1]["run_id"]]
        common = sorted(a.keys() & b.keys())
        last = common[-max(LAST_AT_LEAST, math.ceil(len(common) * LAST_SHARE)) :]
        if not last:
            yield arm, None
            continue
        mine, theirs = (math.fsum(losses[i] for i in last) / len(last) for losses in (a, b))
        off = divergence.relative(mine, theirs)
        yield arm, _Loss(mine, len(last), math.inf if off is None else off)


def _same_data(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["seed"], one["data_sha256"]) == (other["seed"], other["data_sha256"])


def _row(family: Family, arm: Arm, peaks: Peaks, loss: _Loss | None) -> dict[str, Any]:
    base = arm is family.baseline
    return {
        **row_of(family, arm, peaks),
        "loss_mean": loss.mean if loss else None,
        "loss_iterations": loss.n if loss else None,
        "loss_apart": loss.apart if loss and not base else None,
        "trains_alike": None if loss is None or base else loss.apart <= ALIKE,
        "is_fastest": False,
    }


def _mark_fastest(family: Family, found: Sequence[dict[str, Any]]) -> None:
    able = [(arm, row) for arm, row in zip(family.arms, found, strict=True) if arm.times]
    if len(able) > 1:
        min(able, key=lambda one: text.cost(family, one[0]))[1]["is_fastest"] = True


def _section(family: Family, found: Sequence[Mapping[str, Any]], caveats: footnotes.Caveats) -> Section:
    unit = "samples" if all(row["tokens_per_s"] is None for row in found) else "tokens"
    noted = any(arm_tables.marks(row, caveats) for row in found)
    columns = [
        arm_tables.LABEL,
        Column("framework_version", "version"),
        *arm_tables.right(runs="runs", ms=arm_tables.MS),
        *([Column("marks", "")] if noted else []),
        *arm_tables.right(rate=f"{unit}/s", speedup="speedup"),
        Column("loss_mean", "loss", units.loss, True),
        Column("apart", "loss diff", right=True),
    ]
    shown = [
        {
            **row,
            "label": _label(row),
            "framework_version": str(row["framework_version"] or units.MISSING).partition("+")[0],
            "runs": f"{row['n_valid']}/{row['n_runs']}",
            "ms": arm_tables.ms(row),
            "marks": arm_tables.marks(row, caveats),
            "rate": units.number(row[f"{unit}_per_s"]),
            "speedup": arm_tables.speedup(row),
            "apart": divergence.format_difference(row["loss_apart"]),
        }
        for row in found
    ]
    per = f" in time per {family.per_work}" if family.per_work else ""
    base = family.baseline
    lines = [f"speedup: relative to {base.label} ({_why(family)}){per}"] if base is not None else []
    return arm_tables.without_empty(Section(_title(family, found), columns, shown, lines))


def _title(family: Family, found: Sequence[Mapping[str, Any]]) -> str:
    return f"{arm_tables.caption(family, found)} ({found[0]['device']})"


def _label(row: Mapping[str, Any]) -> str:
    """Return the label with framework and mode but without the device, which is in the title."""
    mode = {"eager", "compiled"}
    framework, device = str(row["framework"]), str(row["device"])
    rest = [part for part in row["label"].split(" ") if part not in {framework, device, *mode}]
    return " ".join([framework, *(["compiled"] if row["compile"] else []), *rest])


def _why(family: Family) -> str:
    assert family.baseline is not None
    key = family.baseline.key
    plain = key.get("framework") == "torch" and not key.get("compile") and family.why != "chosen by --vs"
    return "eager torch; --vs framework=jax,compile=on selects another" if plain else family.why
