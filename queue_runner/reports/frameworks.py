"""Comparison of frameworks on the same model and device: which is fastest, by how much, and do they train alike?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, compare, n_words
from queue_runner.analysis.finding import Finding
from queue_runner.analysis.findings import drifts, not_falling, others_that_differ, ratio
from queue_runner.analysis.grouping import Arm, word
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import Word, judge
from queue_runner.analysis.stats import by_key
from queue_runner.errors import UsageError
from queue_runner.monitor.answers import prepare, select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables, divergence, footnotes, panels
from queue_runner.reports._common.arm_rows import ArmRow, newest_first, row_of
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.device_peaks import Peaks
from queue_runner.reports._common.document import Result, Section
from queue_runner.reports._common.settings import effective
from queue_runner.spec import OF_TIME
from queue_runner.tables import Column

NAME = "frameworks"
HELP = "which framework is fastest for the same model on the same device; do they train alike?"
SQL = f"SELECT {prepare.RUN}, data_sha256 FROM v_run WHERE {{chosen}} AND framework IS NOT NULL ORDER BY job_id, number"
COLUMNS = columns(
    "workload config device device_name dtype label framework framework_version compile factors runs n_runs n_valid "
    "compared median_s spread_s spread_over tokens_per_s samples_per_s first_iter_s is_baseline speedup speedup_low "
    "speedup_high verdict undecided_because n_rounds given_after more_rounds same_within n_iters",
    Column("loss_mean", "loss", units.loss, True),
    Column("loss_iterations", "loss iterations", units.count, True),
    Column("loss_apart", "loss difference", units.percent, True),
    Column("trains_alike", "trains alike"),
    Column("is_fastest", "fastest"),
    "taints",
)
NEWEST = 4
"""Maximum number of comparisons shown when no runs were chosen."""


@dataclass(frozen=True, kw_only=True)
class FrameworkRow(ArmRow):
    """The row of an arm, with the mean of its last losses and their difference from the baseline's."""

    is_fastest: bool
    loss_mean: float | None = None
    loss_iterations: int | None = None
    loss_apart: float | None = None

    @property
    def trains_alike(self) -> bool | None:
        """Whether the losses agree; None where they are not compared."""
        return None if self.loss_apart is None else self.loss_apart <= divergence.SAME_LOSS_WITHIN


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Build a table for each device, dtype and question. Raises: UsageError when --vs or --group-by is invalid."""
    if context.options.group_by and "framework" not in context.options.group_by:
        raise UsageError("frameworks: --group-by must name framework", "--group-by framework,compile")
    rows = prepare.windowed(stored, context)
    families = newest_first(family for family in _families(rows, context) if _n_frameworks(family) > 1)
    visible = families if context.options.chosen else families[:NEWEST]
    taints = footnotes.CaveatMarks(rows, (row for family in visible for row in family.shown), context)
    peaks, losses = Peaks(context), cache(lambda run_id: divergence.losses(run_id, context))
    tables = [_rows(family, peaks, losses if family in visible else None) for family in families]
    sections, lines = panels.together(
        [
            ([*_sections(family, table, taints)], [*_findings(family, table, losses, context)])
            for family, table in zip(visible, tables, strict=False)
        ]
    )
    if not families:
        which = "of a second framework for the same settings (mpsq submit nanogpt --framework torch,mlx,tinygrad,jax)"
        lines = [select_runs.nothing(context, which)]
    raw = [row for table in tables for row in table]
    shown_rows = [row for table in tables[: len(visible)] for row in table]
    notes = [*footnotes.few(shown_rows), *footnotes.notes(visible, raw, taints, context)]
    if any(row.loss_mean is not None for row in shown_rows):
        within = units.percent(divergence.SAME_LOSS_WITHIN, 1)
        notes.append(Finding(f"loss: mean of the last tenth of the iterations; alike: within {within}"))
    newest_runs = [family.newest_run for family in visible]
    return Result(COLUMNS, raw, sections, lines, notes, families=visible, newest_runs=newest_runs)


def _families(rows: Sequence[ReportedRun], context: Context) -> list[Family]:
    """Return a family for each device and dtype, so that only frameworks and modes differ."""
    if not rows:
        return []
    question = prepare.question(rows, context)
    return compare(rows, replace(question, settings=[*question.settings, "device", "dtype"]))


def _n_frameworks(family: Family) -> int:
    """Return how many frameworks have numbers to show."""
    return len({arm.key["framework"] for arm in family.arms if arm.shown})


def _cost(family: Family, arm: Arm) -> float:
    """Return seconds per iteration, or per token where iterations differ in size."""
    return (arm.median_s or math.inf) / ((arm.work(family.per_work) or 1.0) if family.per_work else 1.0)


def _rows(family: Family, peaks: Peaks, losses: divergence.Losses | None) -> list[FrameworkRow]:
    """Return the rows of the arms, with their losses if they are to be read."""
    able = [arm for arm in family.arms if arm.times]
    fastest = min(able, key=lambda arm: _cost(family, arm)) if len(able) > 1 else None
    return [
        FrameworkRow(
            **vars(row_of(family, arm, peaks)),
            **(_loss(arm, family.baseline, losses) if losses else {}),
            is_fastest=arm is fastest,
        )
        for arm in family.arms
    ]


def _loss(arm: Arm, base: Arm | None, losses: divergence.Losses) -> dict[str, Any]:
    """Return the columns of the last losses of an arm and of the baseline; empty if they have none in common."""
    last = divergence.last_losses(arm, base, losses) if base else None
    if last is None:
        return {}
    return {"loss_mean": last.mean, "loss_iterations": last.n, "loss_apart": None if arm is base else last.apart}


def _sections(family: Family, table: Sequence[FrameworkRow], taints: footnotes.CaveatMarks) -> Iterable[Section]:
    """Yield the one table of an answer, and for --explain what has no room in it."""
    rate = "samples_per_s" if all(row.tokens_per_s is None for row in table) else "tokens_per_s"
    n_each, runs = arm_tables.counts(table)
    shown = columns(
        arm_tables.LABEL,
        Column("framework_version", "version", lambda version: str(version or units.MISSING).partition("+")[0]),
        *runs,
        arm_tables.MS,
        *taints.columns(table),
        rate,
        *arm_tables.judged(table),
        Column("loss_mean", "loss", units.loss, True),
        Column("loss_apart", "loss diff", divergence.format_difference, True),
    )
    title = f"{arm_tables.caption(family, table)}{n_each}"
    whole = arm_tables.without_empty(Section(title, shown, table, arm_tables.relative(family, table)))
    answer, hidden = arm_tables.fitted(whole, ("loss_mean", rate, "framework_version", "loss_apart"))
    yield answer
    yield from arm_tables.beside(hidden, table, arm_tables.LABEL)


def _findings(
    family: Family, rows: Sequence[FrameworkRow], losses: divergence.Losses, context: Context
) -> Iterable[str]:
    """Return the answer, followed by its caveats."""
    if (n := sum(bool(arm.times) for arm in family.arms)) < 2:
        yield f"nothing to compare: {'only one' if n else 'no'} row has a valid run with a time"
    yield from _fastest(family, rows, context)
    by_framework = by_key((arm for arm in family.arms if arm.times), lambda arm: arm.key["framework"])
    best = {min(arms, key=lambda arm: _cost(family, arm)) for arms in by_framework.values()}
    pairs = sorted((pair for pair in family.pairs if pair.arm in best), key=lambda pair: -pair.ratio)
    yield from (ratio(pair, family.per_work) for pair in pairs)
    yield from drifts(family.arms)
    yield from not_falling(family.arms)
    yield from others_that_differ(family)
    yield from divergence.wrong_losses(family, losses)
    yield from _differing_defaults(family, context)


def _fastest(family: Family, rows: Sequence[ArmRow], context: Context) -> Iterable[str]:
    """Compare the two fastest. All pairs count as words, because the data chose these two."""
    able = sorted((arm for arm in family.arms if arm.times), key=lambda arm: _cost(family, arm))
    if family.per_work:
        able = [arm for arm in able if arm.work(family.per_work)]
    if len(able) < 2:
        return
    first, second = able[:2]
    words = n_words(family, each_with_each=True)
    verdict = judge(combinations(able, 2), words, family.per_work, family.aim.margins.get(OF_TIME))[first, second]
    version = {row.label: row.framework_version for row in rows}
    fastest = "fastest" if verdict.word == Word.FASTER else "fastest as measured"
    yield (
        f"{fastest}: {first.label} ({first.key['framework']} {version[first.label] or 'of unknown version'}),"
        f" {units.ms(first.median_s)} ms/iter; next: {second.label}, {units.ms(second.median_s)} ms/iter,"
        f" {units.ratio(verdict.speedup)} ({verdict})"
    )


def _differing_defaults(family: Family, context: Context) -> Iterable[str]:
    """Warn of settings that differ without having been requested: defaults of the workload files."""
    reported = effective([arm.shown[0] for arm in family.arms if arm.shown], context)
    by_label = {arm.label: reported.get(arm.shown[0].run_id, {}) for arm in family.arms if arm.shown}
    for name in sorted({name for settings in by_label.values() for name in settings}):
        values = {label: settings[name] for label, settings in by_label.items() if name in settings}
        if len({str(value) for value in values.values()}) > 1:
            parts = ", ".join(f"{word(name, value)} ({label})" for label, value in values.items())
            yield f"warning: a setting differs by default: {parts}"
