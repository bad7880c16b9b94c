"""Statements on the memory of runs: leaks, memory kept unused, out-of-memory endings, footnotes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis import stats
from queue_runner.model import Ending, Outcome
from queue_runner.reports._common import footnotes
from queue_runner.reports.memory.series import FEWEST, MATERIAL_BYTES, MATERIAL_SHARE, Series

PER = 1000
"""Number of iterations for which growth is given."""
FRAGMENTED = 1.5
"""Minimum ratio of reserved to allocated, at the peak of reserved, that is reported."""


def ending(row: Mapping[str, Any]) -> Ending:
    """Return how a run ended, for use in a sentence."""
    return Ending(Outcome(row["outcome"]), row["exit_code"], row["signal"], row["reason"] or "")


def n_bytes(x: float) -> str:
    """Format bytes; zero is 0, without a unit."""
    return "0" if x == 0 else units.size(round(x))


def interval(slope: stats.Slope) -> str:
    """Format the interval for 1,000 iterations, with a common unit once: "208 to 250 MiB"."""
    low, high = n_bytes(slope.low * PER), n_bytes(slope.high * PER)
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(' ' + unit) else low} to {high}"


def lines(series: Sequence[Series]) -> Iterable[str]:
    """Report leaks, then memory kept unused, then runs out of memory."""
    for one in series:
        if one.leak and one.slope is not None:
            yield (
                f"{one.run['run']} ({one.cell.label}) leaks: {one.grows} grows by {n_bytes(one.slope.middle * PER)} in"
                f" 1,000 iterations (95 % interval {interval(one.slope)}), in the second half still"
            )
    unsure = [one for one in series if one.leak is None]
    well = [one for one in series if one.leak is False]
    if well:
        yield f"no leak shown in {_runs(well)}"
    if unsure:
        yield f"nothing can be said of growth in {_runs(unsure)}: fewer than {FEWEST} measured iterations"
    kept: dict[tuple[str, str, bool], list[Series]] = {}
    for one in series:
        if one.ratio is not None and one.ratio >= FRAGMENTED:
            jax = one.run["framework"] == "jax"
            kept.setdefault(("", "", jax) if jax else (one.run["subject"], one.cell.label, jax), []).append(one)
    for (subject, label, jax), some in kept.items():
        most = units.ratio(max(one.ratio or 0.0 for one in some))
        if jax:
            yield (
                f"jax, {_runs(some)}, holds up to {most} what its arrays take between iterations: XLA takes most of a"
                " device's memory when it starts, unless XLA_PYTHON_CLIENT_PREALLOCATE=false, and that is not what the"
                " model needs"
            )
            continue
        label = f"{subject} {label}" if len({other.run["subject"] for other in series}) > 1 else label
        yield (
            f"{label}, {_runs(some)}, holds up to {most} what its tensors take between iterations: kept for what an"
            " iteration needs in its midst, or fragmented"
        )
    for one in series:
        if one.run["outcome"] == Outcome.OUT_OF_MEMORY:
            i, _, allocated, reserved = one.points[-1]
            known = [f"{units.size(allocated)} allocated"] if allocated is not None else []
            known += [f"{units.size(reserved)} {'resident' if one.resident else 'reserved'}"] if reserved else []
            yield (
                f"{one.run['run']} ({one.cell.label}) ran out of memory; after iteration {units.count(i)}, the last"
                f" that it told, {' and '.join(known)}"
            )


def _runs(series: Sequence[Series]) -> str:
    return f"{len(series)} run{'s' if len(series) > 1 else ''} ({footnotes.named([one.run['run'] for one in series])})"


def notes(series: Sequence[Series]) -> Iterable[str]:
    """Explain the columns, and name the runs included that did not succeed."""
    if any(not one.resident for one in series):
        yield "allocated: in tensors; reserved: taken from the driver; after each iteration, not at its highest"
        yield "ratio: reserved over allocated where most is reserved"
    if any(one.resident for one in series):
        yield "RSS: what the process has resident after each iteration, libraries and data as well; cpu rows"
    yield (
        f"growth: in 1,000 iterations, Theil-Sen slope over measured ones; a leak: 95 % interval above 0, overall and"
        f" in the second half, and more than {units.percent(MATERIAL_SHARE, 1)} and {units.size(MATERIAL_BYTES)} in all"
    )
    badly = [f"{one.run['run']} {ending(one.run)}" for one in series if one.run["outcome"] != Outcome.SUCCEEDED]
    if badly:
        yield f"up to their end: {footnotes.named(badly)}"
    if any(not one.run["valid"] for one in series):
        yield "runs whose times do not count are in: it changes none of these numbers but that swapping lowers RSS"
