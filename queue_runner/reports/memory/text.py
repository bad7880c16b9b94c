"""Findings on the memory of runs in words: leaks, memory kept unused, out-of-memory endings, footnotes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queue_runner import units
from queue_runner.analysis import stats
from queue_runner.model import Outcome
from queue_runner.monitor.listing import ending
from queue_runner.reports._common import footnotes
from queue_runner.reports.memory.series import FEWEST, MATERIAL_BYTES, MATERIAL_SHARE, Series

PER = 1000
"""Number of iterations for which growth is given."""
FRAGMENTED = 1.5
"""Minimum ratio of reserved to allocated, at the peak of reserved, that is reported."""


def n_bytes(x: float) -> str:
    """Format bytes; zero is 0, without a unit."""
    return "0" if x == 0 else units.size(round(x))


def interval(slope: stats.Slope) -> str:
    """Format the interval for 1,000 iterations, with a common unit once: "208 to 250 MiB"."""
    low, high = n_bytes(slope.low * PER), n_bytes(slope.high * PER)
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(' ' + unit) else low} to {high}"


def findings(series: Sequence[Series]) -> Iterable[str]:
    """Report leaks, then memory kept unused, then runs out of memory."""
    for one in series:
        if one.leak and one.slope is not None:
            yield (
                f"{one.run['run']} ({one.arm.label}) leaks: {one.grows} grows by {n_bytes(one.slope.middle * PER)} per"
                f" 1,000 iterations (95 % CI {interval(one.slope)}), also in the second half"
            )
    unknown = [one for one in series if one.leak is None]
    well = [one for one in series if one.leak is False]
    if well:
        yield f"no leak detected in {_runs(well)}"
    if unknown:
        yield f"growth unknown in {_runs(unknown)}: fewer than {FEWEST} measured iterations"
    yield from _unused(series)
    for one in series:
        if one.run["outcome"] == Outcome.OUT_OF_MEMORY:
            i, _, allocated, reserved = one.points[-1]
            known = [f"{units.size(allocated)} allocated"] if allocated is not None else []
            known += [f"{units.size(reserved)} {'resident' if one.resident else 'reserved'}"] if reserved else []
            yield (
                f"{one.run['run']} ({one.arm.label}) ran out of memory; after its last reported iteration,"
                f" {units.count(i)}: {' and '.join(known)}"
            )


def _unused(series: Sequence[Series]) -> Iterable[str]:
    """Report memory reserved between iterations beyond what is allocated, from FRAGMENTED on."""
    fragmented: dict[tuple[str, str, bool], list[Series]] = {}
    for one in series:
        if one.ratio is not None and one.ratio >= FRAGMENTED:
            jax = one.run["framework"] == "jax"
            key = ("", "", jax) if jax else (one.run["subject"], one.arm.label, jax)
            fragmented.setdefault(key, []).append(one)
    for (subject, label, jax), group in fragmented.items():
        most = units.ratio(max(one.ratio or 0.0 for one in group))
        if jax:
            yield (
                f"jax, {_runs(group)}, reserves up to {most} the size of its arrays between iterations: XLA reserves"
                " most of a device's memory at start unless XLA_PYTHON_CLIENT_PREALLOCATE=false, so this is not what"
                " the model needs"
            )
            continue
        label = f"{subject} {label}" if len({other.run["subject"] for other in series}) > 1 else label
        yield (
            f"{label}, {_runs(group)}, reserves up to {most} the size of its tensors between iterations: kept for"
            " temporary tensors of an iteration, or fragmented"
        )


def _runs(series: Sequence[Series]) -> str:
    return f"{len(series)} run{'s' if len(series) > 1 else ''} ({footnotes.named([one.run['run'] for one in series])})"


def notes(series: Sequence[Series]) -> Iterable[str]:
    """Explain the columns, and name the runs included that did not succeed."""
    if any(not one.resident for one in series):
        yield "allocated: in tensors; reserved: from the driver; both after each iteration, not the peak within it"
        yield "ratio: reserved over allocated, at the peak of reserved"
    if any(one.resident for one in series):
        yield "RSS: resident set size after each iteration, including libraries and data; rows of the CPU"
    yield (
        f"growth: per 1,000 iterations, Theil-Sen slope of the measured ones; leak: 95 % CI above 0, overall and in the"
        f" second half, and more than {units.percent(MATERIAL_SHARE, 1)} and {units.size(MATERIAL_BYTES)} in total"
    )
    failed = [f"{one.run['run']} {ending(one.run)}" for one in series if one.run["outcome"] != Outcome.SUCCEEDED]
    if failed:
        yield f"included up to their end: {footnotes.named(failed)}"
    if any(not one.run["valid"] for one in series):
        yield "runs with invalid times are included: their memory is valid, except that swapping lowers RSS"
