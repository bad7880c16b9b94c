"""Statements on curves: their knees and ends, and the footnotes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.grouping import word
from queue_runner.analysis.knee import ENOUGH, FEWEST, Knee
from queue_runner.model import Ending, Outcome
from queue_runner.reports._common import footnotes
from queue_runner.reports._common.report import Context, Row
from queue_runner.reports.scaling.curves import KNOWN, Curve
from queue_runner.submit.find_max import next, search

WHAT_A_KNEE_IS = (
    f"knee: the smallest value with at least {units.percent(ENOUGH, 2)} of the highest throughput; none where"
    " that is the largest value, or where there are fewer than 3"
)


def ending(row: Row) -> Ending | str:
    """Return how a run that does not fit ended."""
    ending = Ending(Outcome(row["outcome"]), row["exit_code"], row["signal"], row["reason"] or "")
    return "only by swapping" if ending.outcome is Outcome.SUCCEEDED else ending


def lines(curve: Curve, curves: Sequence[Curve]) -> Iterable[str]:
    """Report the knee, what fits, and bytes per unit; preceded by the curve's name if there are several."""
    if len(curves) > 1:
        yield f"{_short(curve, curves)}:"
    yield _knee_words(curve)
    yield _fit_words(curve)
    if (grows := curve.bytes_each) is not None:
        kinds = {point.memory[1] for point in curve.points} - {None}
        besides = f", and {units.size(grows[1])} besides" if grows[1] > 0 else ""
        yield f"one more {curve.name} takes {units.size(grows[0])} ({', '.join(map(str, kinds))}{besides})"


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
        return "no knee: the runs do not tell how many tokens or samples an iteration has"
    if knee is None:
        return f"no knee: fewer than {FEWEST} values of {name} have a time that counts"
    best = f"the best, {units.number(knee.best.rate)} {unit}s/s at {value(knee.best.size)}"
    doubt = "; not sure: the times vary by more than the 5 % that decide (--repeats)" if knee.noisy else ""
    if knee.at is None:
        return f"no knee up to {name} {value(knee.best.size)}: the throughput still rises there{doubt}"
    if knee.at is not knee.best and knee.at.size != knee.best.size:
        text = f"the knee is {name} {value(knee.at.size)}, with {units.percent(knee.share(knee.at))} of {best}"
    else:
        text = f"the knee is {name} {value(knee.at.size)}, the best, with {units.number(knee.best.rate)} {unit}s/s"
    where = "; it is the smallest tried" if knee.below is None else f"; {_not_yet(knee)}"
    return f"{text}{where}{_falls(curve, knee)}{doubt}"


def _not_yet(knee: Knee) -> str:
    assert knee.below is not None
    return f"{value(knee.below.size)} has {units.percent(knee.share(knee.below))}"


def _falls(curve: Curve, knee: Knee) -> str:
    """Describe a fall of the rate beyond the best, if there is one."""
    assert curve.unit is not None
    rates = [(point.value, rate) for point in curve.points if point.valid and (rate := point.rate(curve.unit))]
    size, rate = rates[-1]
    fell = rate < ENOUGH * knee.best.rate
    return f"; beyond the best it falls, to {units.percent(rate / knee.best.rate)} at {value(size)}" if fell else ""


def _fit_words(curve: Curve) -> str:
    largest, beyond, name = curve.largest, curve.too_large, curve.name
    works = f"{name} {value(largest.value)} is the largest that fits" if largest else f"no {name} fits"
    if largest and (size := largest.memory[0]):
        works += f", with {units.size(size)} ({largest.memory[1]})"
    if beyond is None:
        return f"{works.replace('that fits', 'tried, and it fits')}; none was seen to fail"
    row = beyond.decided[-1]
    reason = f": {row['reason']}" if row["reason"] else ""
    too_large = row["outcome"] in (Outcome.OUT_OF_MEMORY, Outcome.SUCCEEDED)  # success by swapping
    what = "does not" if too_large else "failed otherwise"
    return f"{works}; the smallest that {what} is {value(beyond.value)}, {ending(row)}{reason}"


def value(x: float) -> str:
    """Format a value of the setting, as an integer where possible."""
    return units.count(int(x)) if x == int(x) else units.number(x, 6)


def caveats(curves: Sequence[Curve], found: footnotes.Taints) -> list[tuple[str, list[tuple[Row, str]]]]:
    """Return by kind of caveat the timed runs that have it, with its detail."""
    kinds: dict[str, list[tuple[Row, str]]] = {}
    for row in (row for curve in curves for point in curve.points for row in point.timed):
        for taint in found.of(row):
            if taint["severity"] == "caveat":
                kinds.setdefault(taint["kind"], []).append((row, taint["detail"]))
    return list(kinds.items())


def notes(curves: Sequence[Curve], found: footnotes.Taints, marks: dict[str, str], context: Context) -> Iterable[str]:
    """Return all footnotes, searches first."""
    yield from _searches(curves, context)
    if any(curve.unit for curve in curves):
        yield WHAT_A_KNEE_IS
    jax = [curve.first for curve in curves if curve.first["framework"] == "jax"]
    if any(row["device"] not in ("cpu", None) for row in jax):
        yield (
            "reserved by jax: XLA takes most of a device's memory when it starts, unless"
            " XLA_PYTHON_CLIENT_PREALLOCATE=false; it is not what the size needs"
        )
    over = {point.spread_s[1] for curve in curves for point in curve.points}
    words = [f"{units.PLUS_MINUS} is the MAD of the medians of several runs"] if "runs" in over else []
    words += ["(in brackets) is the MAD of the iterations of one run"] if "iterations" in over else []
    if words:
        yield "ms/iter: median; " + "; ".join(words)
    yield from (footnotes.caveat(marks[kind], kind, runs) for kind, runs in caveats(curves, found) if kind in marks)
    rows = [row for curve in curves for point in curve.points for row in point.runs]
    bad = [row for row in rows if not row["valid"] and row["median_s"]]
    if bad:
        each = "; ".join(f"{row['run']} {footnotes.why(row, found)}" for row in bad[: footnotes.MOST_NAMED])
        more = f"; and {len(bad) - footnotes.MOST_NAMED} more" if len(bad) > footnotes.MOST_NAMED else ""
        counted = "counted all the same (--all)" if context.options.include_invalid else "no times of these count"
        yield f"! {counted}, but whether they fit does: {each}{more}"
    for curve in curves:
        for point in curve.points:
            if curve.largest and point.failed and point.value < curve.largest.value:
                row, at = point.failed, f"{curve.name} {value(point.value)}"
                yield f"{row['run']} ({at}) did not succeed though more fits: {ending(row)}"


def _searches(curves: Sequence[Curve], context: Context) -> Iterable[str]:
    """Report the state of each --find-max, in the words of its own rules."""
    from queue_runner.spec import JobSpec

    told: set[tuple[Any, ...]] = set()
    for curve in curves:
        for row in (row for point in curve.points for row in point.runs if row["find_max"]):
            asked = search.parse(row["find_max"])
            apart = row["group_id"], row["find_max"], search.without(JobSpec.from_json(row["spec_json"]), asked.key)
            if apart not in told:
                told.add(apart)
                at = next.standing_of(context.connection, row["job_id"])
                if at is not None:
                    which = f" ({_short(curve, curves)})" if len(curves) > 1 else ""
                    yield f"--find-max {asked} of g{row['group_id']}{which}: {at.sentence(asked.key)}"
