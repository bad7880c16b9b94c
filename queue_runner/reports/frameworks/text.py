"""Findings on frameworks in words: the fastest, whether they train alike, what was not compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from queue_runner import units
from queue_runner.analysis.comparison import Family, judge
from queue_runner.analysis.findings import drifts, not_falling, others_that_differ, ratio
from queue_runner.analysis.grouping import Arm, by_key, word
from queue_runner.analysis.significance import Word
from queue_runner.reports._common import divergence, footnotes
from queue_runner.reports._common.report import Context
from queue_runner.reports._common.settings import effective


def frameworks(family: Family) -> set[str]:
    """Return the frameworks with numbers to show."""
    return {str(arm.key.get("framework")) for arm in family.arms if arm.shown}


def cost(family: Family, arm: Arm) -> float:
    """Return seconds per iteration, or per token where iterations differ in size."""
    return (arm.median_s or math.inf) / ((arm.work(family.per_work) or 1.0) if family.per_work else 1.0)


def findings(family: Family, found: Sequence[Mapping[str, Any]], context: Context) -> Iterable[str]:
    """Return the answer, followed by its caveats."""
    if (n := sum(bool(arm.times) for arm in family.arms)) < 2:
        yield f"nothing to compare: {'only one' if n else 'no'} row has a valid run with a time"
    yield from _fastest(family, found)
    by_framework = by_key((arm for arm in family.arms if arm.times), lambda arm: arm.key["framework"])
    best = {min(arms, key=lambda arm: cost(family, arm)) for arms in by_framework.values()}
    pairs = sorted((pair for pair in family.pairs if pair.arm in best), key=lambda pair: -pair.ratio)
    yield from (ratio(pair, family.per_work) for pair in pairs)
    yield from drifts(family.arms)
    yield from not_falling(family.arms)
    yield from others_that_differ(family)
    unlike = [row for row in found if row["trains_alike"] is False]
    alike = [row for row in found if row["trains_alike"]]
    if alike and family.baseline is not None:
        worst = max(row["loss_apart"] for row in alike)
        n = max(row["loss_iterations"] for row in alike)
        rows = f"{len(alike)} of {len(found) - 1} rows train like {family.baseline.label}"
        most = divergence.format_difference(worst)
        yield f"{rows}: their mean loss of the last {units.count(n)} iterations differs by at most {most}"
    for row in unlike:
        finite = math.isfinite(row["loss_apart"])
        loss = f"differs by {divergence.format_difference(row['loss_apart'])}" if finite else "is not finite"
        yield (
            f"{row['label']} does not train alike: its loss {loss}; find out why before using its speed"
            " (mpsq report numerics)"
        )
    yield from _differing_defaults(family, context)


def _fastest(family: Family, found: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Compare the two fastest, judged together with all other pairs because they were selected from the data."""
    able = sorted((arm for arm in family.arms if arm.times), key=lambda arm: cost(family, arm))
    if family.per_work:
        able = [arm for arm in able if arm.work(family.per_work)]
    if len(able) < 2:
        return
    first, second = able[:2]
    verdict = judge(combinations(able, 2), family.per_work)[first, second]
    version = {row["label"]: row["framework_version"] for row in found}
    words = str(verdict) if verdict.decided else f"no verdict, {verdict}"
    fastest = "fastest" if verdict.word == Word.FASTER else "fastest as measured"
    yield (
        f"{fastest}: {first.label} ({first.key['framework']} {version[first.label] or 'of unknown version'}),"
        f" {units.ms(first.median_s)} ms/iter; next: {second.label}, {units.ms(second.median_s)} ms/iter,"
        f" {units.ratio(verdict.speedup)} ({words}, corrected for all pairs)"
    )


def _differing_defaults(family: Family, context: Context) -> Iterable[str]:
    """Warn of settings that differ without having been requested: defaults of the workload files."""
    reported = effective([arm.shown[0] for arm in family.arms if arm.shown], context)
    shown = {arm.label: reported.get(arm.shown[0]["run_id"], {}) for arm in family.arms if arm.shown}
    names = {name for settings in shown.values() for name in settings}
    for name in sorted(names):
        values = {label: settings[name] for label, settings in shown.items() if name in settings}
        if len({str(value) for value in values.values()}) > 1:
            each = ", ".join(f"{word(name, value)} ({label})" for label, value in values.items())
            yield f"warning: a setting differs by default: {each}"


def unlike(families: Sequence[Family]) -> Iterable[str]:
    """Report frameworks that were not compared because their settings differ."""

    def place(family: Family) -> tuple[Any, ...]:
        first = family.arms[0].runs[0]
        return *(family.common[name] for name in ("machine", "subject", "config")), first["device"], first["dtype"]

    for (_, subject, config, device, dtype), several in by_key(families, place).items():
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
        place_name = " ".join(str(part) for part in (subject, config, device, dtype) if part)
        yield f"not compared because settings differ ({place_name}): {'; '.join(each)}{more}"
