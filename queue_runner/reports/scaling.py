"""Throughput and memory against batch size, or another swept number: where it stops paying, what still fits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from queue_runner import find_max, search, units
from queue_runner.errors import UsageError
from queue_runner.grouping import taints, word
from queue_runner.knee import ENOUGH, FEWEST, Knee
from queue_runner.model import Ending, Outcome
from queue_runner.render import Column
from queue_runner.reports import Context, Result, Row, Section, _choose, _curves, _facts, _notes
from queue_runner.reports._curves import Curve, Point

NAME = "scaling"
HELP = "throughput and memory against batch size or another swept number: the knee, the largest that fits"
SQL = (
    f"SELECT {_facts.RUN}, spec_json, peak_allocated_bytes, peak_reserved_bytes,"
    " NULLIF(json_extract(spec_json, '$.find_max'), '') AS find_max"
    " FROM v_run WHERE {chosen} AND state = 'DONE' ORDER BY job_id, number"
)
COLUMNS = (
    Column("workload", "workload"),
    Column("config", "config"),
    Column("framework", "framework"),
    Column("framework_version", "version"),
    Column("device", "device"),
    Column("device_name", "device name"),
    Column("compile", "compile"),
    Column("dtype", "dtype"),
    Column("factors", "factors", json.dumps),
    Column("setting", "setting"),
    Column("value", "value", units.number, True),
    Column("runs", "runs", " ".join),
    Column("n_timed", "timed", units.count, True),
    Column("valid", "counts"),
    Column("median_s", "time an iteration", units.short_duration, True),
    Column("spread_s", "spread", units.short_duration, True),
    Column("spread_over", "spread over"),
    Column("tokens_per_s", "tokens/s", units.number, True),
    Column("samples_per_s", "samples/s", units.number, True),
    Column("share_of_best", "of best", units.percent, True),
    Column("memory_bytes", "memory", units.size, True),
    Column("memory_is", "memory is"),
    Column("allocated_bytes", "allocated", units.size, True),
    Column("fits", "fits"),
    Column("outcome", "outcome"),
    Column("is_knee", "knee"),
    Column("is_largest", "largest that fits"),
    Column("taints", "taints", " ".join),
)
MOST_CURVES = 6
"""Shown where no runs were chosen."""
_NAMED = ("config", "framework", "framework_version", "device", "device_name", "dtype")
_KNOWN = frozenset({"machine", "subject", "config", "device", "compile", "dtype", "framework"})
WHAT_A_KNEE_IS = (
    f"knee: the smallest value with at least {units.percent(ENOUGH, 2)} of the highest throughput; none where"
    " that is the largest value, or where there are fewer than 3"
)


def finish(rows: list[Row], context: Context) -> Result:
    """A table for each curve, and in words where it bends and ends. Raises: UsageError (--group-by, any --vs)."""
    if context.options.vs:
        raise UsageError(
            f"{NAME} takes no --vs: each curve stands for itself", "--group-by batch_size names its setting"
        )
    rows = _facts.windowed(_facts.prepare(rows, context), context)
    curves = _curves.curves(rows, context) if rows else []
    if not curves:
        which = "that ended beside another of the same question with another number, such as --set batch_size=8,16,32,"
        return Result(COLUMNS, [], lines=[_choose.nothing(context, which)])
    found = _notes.Taints(rows, context)
    n_shown = len(curves) if context.options.chosen else MOST_CURVES
    told = curves[:n_shown]
    marks = _notes.letters(kind for kind, _ in _caveats(told, found))
    sections = [_section(curve, marks) for curve in told]
    lines = [line for curve in told for line in _lines(curve, told)]
    notes = [*_notes_of(told, found, marks, context)]
    if len(curves) > n_shown:
        notes.append(f"{len(curves) - n_shown} older curves are not shown: mpsq report scaling g4 chooses")
    return Result(COLUMNS, [_row(curve, point) for curve in curves for point in curve.points], sections, lines, notes)


def _row(curve: Curve, point: Point) -> dict[str, Any]:
    first, knee = curve.first, curve.knee
    rate = point.rate(curve.unit) if curve.unit and point.valid else None
    memory_bytes, memory_is = point.memory
    allocated = [row["peak_allocated_bytes"] for row in point.runs if row["peak_allocated_bytes"]]
    spread_s, over = point.spread_s
    return {
        "workload": first["subject"],
        **{name: first[name] for name in _NAMED},
        "compile": None if first["compile"] is None else bool(first["compile"]),
        "factors": {name: value for name, value in curve.key.items() if name not in _KNOWN and value is not None},
        "setting": curve.name,
        "value": int(point.value) if point.value == int(point.value) else point.value,
        "runs": [row["run"] for row in point.runs],
        "n_timed": len(point.timed),
        "valid": point.valid,
        "median_s": point.median_s,
        "spread_s": spread_s,
        "spread_over": over,
        "tokens_per_s": point.rate("token"),
        "samples_per_s": point.rate("sample"),
        "share_of_best": rate / knee.best.rate if knee and rate else None,
        "memory_bytes": memory_bytes,
        "memory_is": memory_is,
        "allocated_bytes": max(allocated, default=None),
        "fits": point.said,
        "outcome": str(_ending(point.failed or point.runs[-1])) if not point.fits else Outcome.SUCCEEDED.value,
        "is_knee": bool(knee and knee.at and knee.at.size == point.value),
        "is_largest": point is curve.largest,
        "taints": sorted({kind for row in point.timed for kind in taints(row)}),
    }


def _ending(row: Row) -> Ending | str:
    ending = Ending(Outcome(row["outcome"]), row["exit_code"], row["signal"], row["reason"] or "")
    return "only by swapping" if ending.outcome is Outcome.SUCCEEDED else ending


def _section(curve: Curve, marks: dict[str, str]) -> Section:
    unit = curve.unit
    shown = [_shown(curve, point, marks) for point in curve.points]
    kinds = {point.memory[1] for point in curve.points} - {None}
    memory = next(iter(kinds)) if len(kinds) == 1 else "memory"
    columns = [
        Column("value", curve.name, right=True),
        Column("runs", "runs", right=True),
        Column("time", "ms/iter", right=True),
        *([Column("mark", "")] if any(row["mark"] for row in shown) else []),
        *([Column("rate", f"{unit}s/s", right=True), Column("share", "of best", right=True)] if unit else []),
        Column("memory", str(memory), right=True),
        Column("what", "", flexible=True),
    ]
    return Section(_title(curve), columns, shown)


def _title(curve: Curve) -> str:
    key, first = curve.key, curve.first
    version = " ".join(filter(None, (first["framework"], first["framework_version"])))
    words = [f"{first['subject']} {key['config'] or ''}".strip(), version]
    words += [word(name, key[name]) for name in ("device", "compile", "dtype") if key[name] is not None]
    words += [word(name, value) for name, value in key.items() if name not in _KNOWN and value is not None]
    words = [text for text in words if text]
    words += [f"on {first['device_name']}"] if first["device_name"] else []
    return ", ".join([*words, *filter(None, [first["where"]])])


def _shown(curve: Curve, point: Point, marks: dict[str, str]) -> dict[str, str]:
    row = _row(curve, point)
    spread_s, over = point.spread_s
    value, plus_minus, spread = units.plus_minus(point.median_s, spread_s, "", 1e-3).partition(f" {units.PLUS_MINUS} ")
    what = ["knee"] if row["is_knee"] else []
    what += ["largest that fits"] if row["is_largest"] and curve.too_large else []
    what += [row["outcome"]] if not point.fits else []
    return {
        "value": _value(point.value),
        "runs": f"{point.n_counting}/{len(point.runs)}",
        "time": f"{value} ({spread})" if plus_minus and over == "iterations" else f"{value}{plus_minus}{spread}",
        "mark": _mark(point, row["taints"], marks),
        "rate": units.number(point.rate(curve.unit)) if curve.unit else "",
        "share": units.percent(row["share_of_best"]),
        "memory": units.size(row["memory_bytes"]),
        "what": ", ".join(what),
    }


def _mark(point: Point, kinds: Sequence[str], marks: dict[str, str]) -> str:
    return ("!" if point.timed and not point.valid else "") + "".join(marks.get(kind, "") for kind in kinds)


def _lines(curve: Curve, curves: Sequence[Curve]) -> Iterable[str]:
    if len(curves) > 1:
        yield f"{_short(curve, curves)}:"
    yield _knee_words(curve)
    yield _fit_words(curve)
    if (grows := curve.bytes_each) is not None:
        kinds = {point.memory[1] for point in curve.points} - {None}
        besides = f", and {units.size(grows[1])} besides" if grows[1] > 0 else ""
        yield f"one more {curve.name} takes {units.size(grows[0])} ({', '.join(map(str, kinds))}{besides})"


def _short(curve: Curve, curves: Sequence[Curve]) -> str:
    """What it is in a few words, with what else tells it from the others."""
    key = curve.key
    words = [key["subject"], key["config"], key["framework"], key["device"], word("compile", key["compile"])]
    differ = [n for n in key if n not in _KNOWN and len({str(other.key.get(n)) for other in curves}) > 1]
    words += [key["dtype"], *(word(n, key[n]) for n in differ)]
    return " ".join(str(text) for text in [*words, curve.first["where"]] if text)


def _knee_words(curve: Curve) -> str:
    knee, name, unit = curve.knee, curve.name, curve.unit
    if unit is None:
        return "no knee: the runs do not tell how many tokens or samples an iteration has"
    if knee is None:
        return f"no knee: fewer than {FEWEST} values of {name} have a time that counts"
    best = f"the best, {units.number(knee.best.rate)} {unit}s/s at {_value(knee.best.size)}"
    doubt = "; not sure: the times vary by more than the 5 % that decide (--repeats)" if knee.noisy else ""
    if knee.at is None:
        return f"no knee up to {name} {_value(knee.best.size)}: the throughput still rises there{doubt}"
    if knee.at is not knee.best and knee.at.size != knee.best.size:
        text = f"the knee is {name} {_value(knee.at.size)}, with {units.percent(knee.share(knee.at))} of {best}"
    else:
        text = f"the knee is {name} {_value(knee.at.size)}, the best, with {units.number(knee.best.rate)} {unit}s/s"
    where = "; it is the smallest tried" if knee.below is None else f"; {_not_yet(knee)}"
    return f"{text}{where}{_falls(curve, knee)}{doubt}"


def _not_yet(knee: Knee) -> str:
    assert knee.below is not None
    return f"{_value(knee.below.size)} has {units.percent(knee.share(knee.below))}"


def _falls(curve: Curve, knee: Knee) -> str:
    """What becomes of it beyond the best."""
    assert curve.unit is not None
    rates = [(point.value, rate) for point in curve.points if point.valid and (rate := point.rate(curve.unit))]
    size, rate = rates[-1]
    fell = rate < ENOUGH * knee.best.rate
    return f"; beyond the best it falls, to {units.percent(rate / knee.best.rate)} at {_value(size)}" if fell else ""


def _fit_words(curve: Curve) -> str:
    largest, beyond, name = curve.largest, curve.too_large, curve.name
    works = f"{name} {_value(largest.value)} is the largest that fits" if largest else f"no {name} fits"
    if largest and (size := largest.memory[0]):
        works += f", with {units.size(size)} ({largest.memory[1]})"
    if beyond is None:
        return f"{works.replace('that fits', 'tried, and it fits')}; none was seen to fail"
    row = beyond.decided[-1]
    reason = f": {row['reason']}" if row["reason"] else ""
    too_large = row["outcome"] in (Outcome.OUT_OF_MEMORY, Outcome.SUCCEEDED)  # the latter by swapping
    what = "does not" if too_large else "failed otherwise"
    return f"{works}; the smallest that {what} is {_value(beyond.value)}, {_ending(row)}{reason}"


def _value(x: float) -> str:
    return units.count(int(x)) if x == int(x) else units.number(x, 6)


def _caveats(curves: Sequence[Curve], found: _notes.Taints) -> list[tuple[str, list[tuple[Row, str]]]]:
    kinds: dict[str, list[tuple[Row, str]]] = {}
    for row in (row for curve in curves for point in curve.points for row in point.timed):
        for taint in found.of(row):
            if taint["severity"] == "caveat":
                kinds.setdefault(taint["kind"], []).append((row, taint["detail"]))
    return list(kinds.items())


def _notes_of(curves: Sequence[Curve], found: _notes.Taints, marks: dict[str, str], context: Context) -> Iterable[str]:
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
    yield from (_notes.caveat(marks[kind], kind, runs) for kind, runs in _caveats(curves, found) if kind in marks)
    rows = [row for curve in curves for point in curve.points for row in point.runs]
    bad = [row for row in rows if not row["valid"] and row["median_s"]]
    if bad:
        each = "; ".join(f"{row['run']} {_notes.why(row, found)}" for row in bad[: _notes.MOST_NAMED])
        more = f"; and {len(bad) - _notes.MOST_NAMED} more" if len(bad) > _notes.MOST_NAMED else ""
        counted = "counted all the same (--all)" if context.options.include_invalid else "no times of these count"
        yield f"! {counted}, but whether they fit does: {each}{more}"
    for curve in curves:
        for point in curve.points:
            if curve.largest and point.failed and point.value < curve.largest.value:
                row, at = point.failed, f"{curve.name} {_value(point.value)}"
                yield f"{row['run']} ({at}) did not succeed though more fits: {_ending(row)}"


def _searches(curves: Sequence[Curve], context: Context) -> Iterable[str]:
    """Where each --find-max stands, in the words of its own rules."""
    from queue_runner.spec import JobSpec

    told: set[tuple[Any, ...]] = set()
    for curve in curves:
        for row in (row for point in curve.points for row in point.runs if row["find_max"]):
            asked = search.parse(row["find_max"])
            apart = row["group_id"], row["find_max"], search.without(JobSpec.from_json(row["spec_json"]), asked.key)
            if apart not in told:
                told.add(apart)
                at = find_max.standing_of(context.connection, row["job_id"])
                if at is not None:
                    which = f" ({_short(curve, curves)})" if len(curves) > 1 else ""
                    yield f"--find-max {asked} of g{row['group_id']}{which}: {at.sentence(asked.key)}"
