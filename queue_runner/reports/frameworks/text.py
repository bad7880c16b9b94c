"""Statements on frameworks: the fastest, whether they train alike, what was not compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from queue_runner import units
from queue_runner.analysis import findings
from queue_runner.analysis.comparison import Family, judge
from queue_runner.analysis.grouping import Arm, word
from queue_runner.analysis.significance import Word
from queue_runner.reports._common import footnotes
from queue_runner.reports._common.report import Context
from queue_runner.reports._common.settings import effective
from queue_runner.reports.numerics import divergence


def frameworks(family: Family) -> set[str]:
    """Return the frameworks with numbers to show."""
    return {str(cell.key.get("framework")) for cell in family.cells if cell.shown}


def cost(family: Family, cell: Arm) -> float:
    """Return seconds per iteration, or per token where iterations differ in size."""
    return (cell.median_s or math.inf) / ((cell.work(family.per_work) or 1.0) if family.per_work else 1.0)


def lines(family: Family, found: Sequence[Mapping[str, Any]], context: Context) -> Iterable[str]:
    """Return the answer, followed by its caveats."""
    if (n := sum(bool(cell.times) for cell in family.cells)) < 2:
        yield f"nothing to compare: {'one row has' if n else 'no row has'} a run that counts and has a time"
    yield from _fastest(family, found)
    best = {min(some, key=lambda cell: cost(family, cell)) for some in _by_framework(family)}
    pairs = sorted((pair for pair in family.pairs if pair.cell in best), key=lambda pair: -pair.ratio)
    yield from (findings.ratio(pair, family.per_work) for pair in pairs)
    yield from findings.drifts(family.cells)
    yield from findings.not_falling(family.cells)
    yield from findings.others_that_differ(family)
    unlike = [row for row in found if row["trains_alike"] is False]
    alike = [row for row in found if row["trains_alike"]]
    if alike and family.baseline is not None:
        worst = max(row["loss_apart"] for row in alike)
        n = max(row["loss_iterations"] for row in alike)
        who = f"{len(alike)} of {len(found) - 1} rows train like {family.baseline.label}"
        yield f"{who}: the mean loss of the last {units.count(n)} iterations is within {divergence.off_words(worst)}"
    for row in unlike:
        off = divergence.off_words(row["loss_apart"])
        yield (
            f"{row['label']} does not train alike: its loss is {off} apart; its speed is of no use until that"
            " is explained (mpsq report numerics)"
        )
    yield from _told_otherwise(family, context)


def _by_framework(family: Family) -> list[list[Arm]]:
    found: dict[Any, list[Arm]] = {}
    for cell in family.cells:
        if cell.times:
            found.setdefault(cell.key["framework"], []).append(cell)
    return list(found.values())


def _fastest(family: Family, found: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Compare the two fastest, judged together with all other pairs because they were selected from the data."""
    able = sorted((cell for cell in family.cells if cell.times), key=lambda cell: cost(family, cell))
    if family.per_work:
        able = [cell for cell in able if cell.work(family.per_work)]
    if len(able) < 2:
        return
    first, second = able[:2]
    verdict = judge(combinations(able, 2), family.per_work)[first, second]
    version = {row["label"]: row["framework_version"] for row in found}
    words = str(verdict) if verdict.decided else f"no verdict, {verdict}"
    fastest = "fastest" if verdict.word == Word.FASTER else "fastest as measured"
    yield (
        f"{fastest}: {first.label} ({first.key['framework']} {version[first.label] or 'of unknown version'}),"
        f" {units.ms(first.median_s)} ms an iteration; next {second.label} with {units.ms(second.median_s)},"
        f" {units.ratio(verdict.speedup)} ({words}, of all pairs)"
    )


def _told_otherwise(family: Family, context: Context) -> Iterable[str]:
    """Warn of settings that differ without having been requested: defaults of the workload files."""
    told = effective([cell.shown[0] for cell in family.cells if cell.shown], context)
    shown = {cell.label: told.get(cell.shown[0]["run_id"], {}) for cell in family.cells if cell.shown}
    names = {name for settings in shown.values() for name in settings}
    for name in sorted(names):
        values = {label: settings[name] for label, settings in shown.items() if name in settings}
        if len({str(value) for value in values.values()}) > 1:
            each = ", ".join(f"{word(name, value)} ({label})" for label, value in values.items())
            yield f"warning: a setting differs that was not asked for: {each}"


def unlike(families: Sequence[Family]) -> Iterable[str]:
    """Report frameworks that were not compared because their settings differ."""
    alike: dict[tuple[Any, ...], list[Family]] = {}
    for family in families:
        first = family.cells[0].runs[0]
        place = (*(family.common[name] for name in ("machine", "subject", "config")), first["device"], first["dtype"])
        alike.setdefault(place, []).append(family)
    for (_, subject, config, device, dtype), several in alike.items():
        named = [frameworks(family) for family in several]
        together = {name for some in named if len(some) > 1 for name in some}
        lonely = set().union(*named) - together
        if not lonely or len(set().union(*named)) < 2:
            continue
        several = [f for f in several if frameworks(f) & lonely or len(frameworks(f)) > 1]
        names = [name for name in several[0].common if len({str(f.common.get(name)) for f in several}) > 1]
        each = []
        for family in several[: footnotes.MOST_NAMED]:
            settings = " ".join(word(name, family.common.get(name)) for name in names)
            each.append(f"{', '.join(sorted(frameworks(family)))} with {settings}")
        more = f"; and {len(several) - len(each)} more" if len(several) > len(each) else ""
        what = " ".join(str(text) for text in (subject, config, device, dtype) if text)
        yield f"not compared, for settings differ ({what}): {'; '.join(each)}{more}"
