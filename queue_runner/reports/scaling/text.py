"""Findings on curves in words: their knees, what fits, footnotes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.grouping import word
from queue_runner.analysis.knee import ENOUGH, FEWEST, Knee
from queue_runner.model import Outcome
from queue_runner.monitor import listing
from queue_runner.reports._common import footnotes
from queue_runner.reports._common.report import Context, Row
from queue_runner.reports.scaling.curves import KNOWN, Curve
from queue_runner.spec import JobSpec
from queue_runner.submit.find_max import next, search

KNEE = (
    f"knee: smallest value with at least {units.percent(ENOUGH, 2)} of the highest throughput; none if that is the"
    f" largest value, or with fewer than {FEWEST} values"
)


def ending(row: Row) -> str:
    """Return how a run that does not fit ended."""
    return "swapping" if row["outcome"] == Outcome.SUCCEEDED else listing.ending(row)


def findings(curve: Curve, curves: Sequence[Curve]) -> Iterable[str]:
    """Report the knee, what fits, and bytes per unit; preceded by the curve's name if there are several."""
    if len(curves) > 1:
        yield f"{_short(curve, curves)}:"
    yield _knee_words(curve)
    yield _fit_words(curve)
    if (grows := curve.bytes_each) is not None:
        kinds = {point.memory[1] for point in curve.points} - {None}
        constant = f", plus a constant {units.size(grows[1])}" if grows[1] > 0 else ""
        yield f"memory per unit of {curve.name}: {units.size(grows[0])} ({', '.join(map(str, kinds))}{constant})"


def _short(curve: Curve, curves: Sequence[Curve]) -> str:
    """Return a short name of the curve, with the settings that distinguish it from the others."""
    key = curve.key
    words = [key["subject"], key["config"], key["framework"], key["device"], word("compile", key["compile"])]
    differ = [n for n in key if n not in KNOWN and len({str(other.key.get(n)) for other in curves}) > 1]
    words += [key["dtype"], *(word(n, key[n]) for n in differ)]
    return " ".join(str(text) for text in [*words, curve.first["where"]] if text)


def _knee_words(curve: Curve) -> str:
    knee, name, unit = curve.knee, curve.name, curve.unit
    if unit is None:
        return "no knee: the runs do not report tokens or samples per iteration"
    if knee is None:
        return f"no knee: fewer than {FEWEST} values of {name} have a valid time"
    best = f"the maximum, {units.number(knee.best.rate)} {unit}s/s at {value(knee.best.size)}"
    doubt = "; uncertain: the times vary by more than the deciding 5 % (increase --repeats)" if knee.noisy else ""
    if knee.at is None:
        return f"no knee up to {name} {value(knee.best.size)}: throughput still rises{doubt}"
    if knee.at is not knee.best and knee.at.size != knee.best.size:
        text = f"knee: {name} {value(knee.at.size)}, {units.percent(knee.share(knee.at))} of {best}"
    else:
        text = f"knee: {name} {value(knee.at.size)}, the maximum, {units.number(knee.best.rate)} {unit}s/s"
    below = knee.below
    where = f"; {value(below.size)} reaches {units.percent(knee.share(below))}" if below else "; the smallest tried"
    return f"{text}{where}{_falls(curve, knee)}{doubt}"


def _falls(curve: Curve, knee: Knee) -> str:
    """Describe a fall of the rate beyond the maximum, if there is one."""
    assert curve.unit is not None
    rates = [(point.value, rate) for point in curve.points if point.valid and (rate := point.rate(curve.unit))]
    size, rate = rates[-1]
    fell = rate < ENOUGH * knee.best.rate
    return f"; it falls to {units.percent(rate / knee.best.rate)} at {value(size)}" if fell else ""


def _fit_words(curve: Curve) -> str:
    largest, beyond, name = curve.largest, curve.too_large, curve.name
    works = f"largest {name} that fits: {value(largest.value)}" if largest else f"no {name} fits"
    if largest and (size := largest.memory[0]):
        works += f", using {units.size(size)} ({largest.memory[1]})"
    if beyond is None:
        return f"{works}; no larger value failed"
    row = beyond.decided[-1]
    reason = f": {row['reason']}" if row["reason"] else ""
    too_large = row["outcome"] in (Outcome.OUT_OF_MEMORY, Outcome.SUCCEEDED)  # success by swapping
    failed = "does not fit" if too_large else "fails otherwise"
    return f"{works}; smallest that {failed}: {value(beyond.value)}, {ending(row)}{reason}"


def value(x: float) -> str:
    """Format a value of the setting, as an integer where possible."""
    return units.count(int(x)) if x == int(x) else units.number(x, 6)


def notes(
    curves: Sequence[Curve], found: footnotes.Taints, caveats: footnotes.Caveats, context: Context
) -> Iterable[str]:
    """Return all footnotes, searches first."""
    yield from _searches(curves, context)
    if any(curve.unit for curve in curves):
        yield KNEE
    jax = [curve.first for curve in curves if curve.first["framework"] == "jax"]
    if any(row["device"] not in ("cpu", None) for row in jax):
        yield (
            "reserved by jax: XLA reserves most of a device's memory at start unless"
            " XLA_PYTHON_CLIENT_PREALLOCATE=false, so this is not what the size needs"
        )
    points = [(curve, point) for curve in curves for point in curve.points]
    yield from footnotes.spreads("ms/iter: median", {point.spread_s[1] for _, point in points})
    yield from caveats.notes()
    bad = [row for _, point in points for row in point.runs if not row["valid"] and row["median_s"]]
    for note in found.excluded(bad, context.options.include_invalid):
        yield f"times {note}; whether they fit is used"
    for curve, point in points:
        if curve.largest and point.failed and point.value < curve.largest.value:
            row, at = point.failed, f"{curve.name} {value(point.value)}"
            yield f"{row['run']} ({at}) failed although a larger value fits: {ending(row)}"


def _searches(curves: Sequence[Curve], context: Context) -> Iterable[str]:
    """Report the state of each --find-max."""
    seen: set[tuple[Any, ...]] = set()
    for curve in curves:
        for row in (row for point in curve.points for row in point.runs if row["find_max"]):
            request = search.parse(row["find_max"])
            spec = search.without(JobSpec.from_json(row["spec_json"]), request.key)
            key = row["group_id"], row["find_max"], spec
            if key not in seen:
                seen.add(key)
                standing = next.standing_of(context.connection, row["job_id"])
                if standing is not None:
                    which = f" ({_short(curve, curves)})" if len(curves) > 1 else ""
                    yield f"--find-max {request} of g{row['group_id']}{which}: {standing.sentence(request.key)}"
