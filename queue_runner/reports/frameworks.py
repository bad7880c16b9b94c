"""Comparison of frameworks on the same model and device: which is fastest, by how much, and do they train alike?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import CHOSEN, Family, compare, n_words
from queue_runner.analysis.finding import Finding
from queue_runner.analysis.findings import drifts, not_falling, others_that_differ, ratio
from queue_runner.analysis.grouping import Arm, is_mode, word
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
    all_families = _families(rows, context)
    families = newest_first(family for family in all_families if len(_frameworks(family)) > 1)
    visible = families if context.options.chosen else families[:NEWEST]
    taints = footnotes.CaveatMarks(rows, (row for family in visible for row in family.shown), context)
    peaks, losses = Peaks(context), cache(lambda run_id: divergence.losses(run_id, context))
    tables = [_rows(family, peaks, losses if family in visible else None) for family in families]
    blocks: list[panels.Block] = []
    for family, table in zip(visible, tables, strict=False):
        title = f"{arm_tables.caption(family, table)} ({table[0].device})"
        blocks.append(([*_sections(title, family, table, taints)], [*_findings(family, table, context)]))
    sections, lines = panels.together(blocks)
    if not families:
        which = "of a second framework for the same settings (mpsq submit nanogpt --framework torch,mlx,tinygrad,jax)"
        lines = [select_runs.nothing(context, which)]
    raw = [row for table in tables for row in table]
    shown_rows = [row for table in tables[: len(visible)] for row in table]
    notes = [*_unlike(all_families), *footnotes.few(shown_rows), *footnotes.notes(visible, raw, taints, context)]
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
    places = by_key(rows, lambda row: (str(row.device), str(row.dtype)))
    families: list[Family] = []
    refused: UsageError | None = None
    for place in sorted(places):
        try:
            families += compare(places[place], question)
        except UsageError as error:  # --vs may name another device
            if " none of the rows" not in error.message:
                raise
            refused = error
            families += compare(places[place], replace(question, vs={}))
    if refused is not None and not any(family.why == CHOSEN for family in families):
        raise refused
    return families


def _frameworks(family: Family) -> set[str]:
    """Return the frameworks with numbers to show."""
    return {str(arm.key.get("framework")) for arm in family.arms if arm.shown}


def _cost(family: Family, arm: Arm) -> float:
    """Return seconds per iteration, or per token where iterations differ in size."""
    return (arm.median_s or math.inf) / ((arm.work(family.per_work) or 1.0) if family.per_work else 1.0)


def _rows(family: Family, peaks: Peaks, losses: Callable[[int], Mapping[int, float]] | None) -> list[FrameworkRow]:
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


def _loss(arm: Arm, base: Arm | None, losses: Callable[[int], Mapping[int, float]]) -> dict[str, Any]:
    """Return the columns of the last losses of an arm and of the baseline; empty if they have none in common."""
    last = divergence.last_losses(arm, base, losses) if base else None
    if last is None:
        return {}
    return {"loss_mean": last.mean, "loss_iterations": last.n, "loss_apart": None if arm is base else last.apart}


def _sections(
    title: str, family: Family, table: Sequence[FrameworkRow], taints: footnotes.CaveatMarks
) -> Iterable[Section]:
    """Yield the one table of an answer, and for --explain what has no room in it and the tests."""
    label = Column("label", "", flexible=True, value=_label)
    rate = "samples_per_s" if all(row.tokens_per_s is None for row in table) else "tokens_per_s"
    n_each, runs = arm_tables.counts(table)
    shown = columns(
        label,
        Column("framework_version", "version", lambda version: str(version or units.MISSING).partition("+")[0]),
        *runs,
        arm_tables.MS,
        *taints.columns(table),
        rate,
        *arm_tables.judged(table),
        Column("loss_mean", "loss", units.loss, True),
        Column("loss_apart", "loss diff", divergence.format_difference, True),
    )
    lines = arm_tables.relative(family, table, _why(family)) if family.baseline is not None else []
    whole = arm_tables.without_empty(Section(f"{title}{n_each}", shown, table, lines))
    answer, hidden = arm_tables.fitted(whole, ("loss_mean", rate, "framework_version", "loss_apart"))
    yield answer
    yield from arm_tables.beside(hidden, table, label)


def _label(row: ArmRow) -> str:
    """Return the label with framework and mode but without the device, which is in the title."""
    framework, device = str(row.framework), str(row.device)
    rest = [part for part in row.label.split(" ") if part not in (framework, device) and not is_mode(part)]
    return " ".join([framework, *([word("compile", row.compile)] if row.compile else []), *rest])


def _why(family: Family) -> str:
    assert family.baseline is not None
    key = family.baseline.key
    plain = key.get("framework") == "torch" and not key.get("compile") and family.why != CHOSEN
    return "eager torch; --vs framework=jax,compile=on selects another" if plain else family.why


def _findings(family: Family, rows: Sequence[FrameworkRow], context: Context) -> Iterable[str]:
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
    agree = [row for row in rows if row.trains_alike]
    if agree and family.baseline is not None:
        n = max(row.loss_iterations or 0 for row in agree)
        most = divergence.format_difference(max(row.loss_apart or 0.0 for row in agree))
        subject = f"{len(agree)} of {len(rows) - 1} rows train like {family.baseline.label}"
        yield f"{subject}: their mean loss of the last {units.count(n)} iterations differs by at most {most}"
    for row in (row for row in rows if row.trains_alike is False):
        finite = math.isfinite(row.loss_apart or 0.0)
        loss = f"differs by {divergence.format_difference(row.loss_apart)}" if finite else "is not finite"
        yield (
            f"{row.label} does not train alike: its loss {loss}; find out why before using its speed"
            " (mpsq report numerics)"
        )
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
    verdict = judge(combinations(able, 2), words, family.per_work, context.options.same_within)[first, second]
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


def _unlike(families: Sequence[Family]) -> Iterable[str]:
    """Report frameworks that were not compared because their settings differ."""

    def place(family: Family) -> tuple[Any, ...]:
        first = family.arms[0].runs[0]
        return *(family.common[name] for name in ("machine", "subject", "config")), first.device, first.dtype

    for (_, subject, config, device, dtype), several in by_key(families, place).items():
        named = [_frameworks(family) for family in several]
        together = {name for some in named if len(some) > 1 for name in some}
        lonely = set().union(*named) - together
        if not lonely or len(set().union(*named)) < 2:
            continue
        several = [f for f in several if _frameworks(f) & lonely or len(_frameworks(f)) > 1]
        names = [name for name in several[0].common if len({str(f.common.get(name)) for f in several}) > 1]
        parts = []
        for family in several[: footnotes.MOST_NAMED]:
            settings = " ".join(word(name, family.common.get(name)) for name in names)
            parts.append(f"{', '.join(sorted(_frameworks(family)))} with {settings}")
        more = f"; and {len(several) - len(parts)} more" if len(several) > len(parts) else ""
        place_name = " ".join(str(part) for part in (subject, config, device, dtype) if part)
        yield f"not compared because settings differ ({place_name}): {'; '.join(parts)}{more}"
