"""Runs that differ in one number only, as curves over it: what fits, and where the knee is. Pure.

A failed run reports less than a successful one (no optimizer after running out of memory); it belongs to each curve
that it does not contradict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct

from queue_runner.analysis import stats
from queue_runner.analysis.grouping import MAIN, SUBJECT, WORK, Arm, not_replaced, taints, value_of
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.model import Outcome, State

ENOUGH = 0.95
"""Share of the highest throughput that the knee reaches."""
FEWEST = 3
"""Minimum number of sizes."""
FIRST_CHOICES = ("batch_size", "n", "block_size")
_LENGTH_SETTINGS = frozenset({"max_iters", "warmup_iters", "seed", "batches"})
_LENGTH_SUFFIXES = ("_iters", "_interval")


class RatePoint(Struct, frozen=True):
    """A size, its throughput (units of work per second) and the relative noise of that: a robust estimate of the
    standard deviation as a share of the throughput; None if unknown."""

    size: float
    rate: float
    noise: float | None = None


class Knee(Struct, frozen=True):
    """The knee of a curve. `at` is None if only the largest size reaches ENOUGH: throughput still rises.

    `below` is the next smaller size: the knee lies between it and `at`; None if `at` is the smallest size, so that the
    knee may be smaller still. `noisy`: the noise of the throughputs exceeds the 5 % margin.
    """

    best: RatePoint
    at: RatePoint | None
    below: RatePoint | None
    noisy: bool

    def share(self, point: RatePoint) -> float:
        """Return the throughput of `point` as a share of the best."""
        return point.rate / self.best.rate


def find_knee(points: Sequence[RatePoint]) -> Knee | None:
    """Return the knee of points of different sizes, in any order; None with fewer than FEWEST of positive throughput.

    There is no standard definition of a knee. Kneedle (Satopaa et al. 2011, "Finding a 'Kneedle' in a Haystack",
    ICDCSW) takes the point of maximum curvature, which moves when a larger size is added. Here it is the smallest size
    beyond which less than 5 % can be gained, so that smaller noise has no effect.
    """
    ordered = sorted((point for point in points if point.rate > 0), key=lambda point: point.size)
    if len(ordered) < FEWEST:
        return None
    best = max(ordered, key=lambda point: point.rate)
    k = next(k for k, point in enumerate(ordered) if point.rate >= ENOUGH * best.rate)
    below = ordered[k - 1] if k else None
    deciding = [point for point in (best, ordered[k], below) if point is not None]
    noisy = any(point.noise is not None and point.noise > 1 - ENOUGH for point in deciding)
    return Knee(best, ordered[k] if k < len(ordered) - 1 else None, below, noisy)


class CurvePoint(Arm, frozen=True, eq=False, dict=True):
    """The runs with one `value` of the setting."""

    value: float = 0.0

    @property
    def decided(self) -> list[ReportedRun]:
        """Runs that were neither cancelled nor skipped."""
        return [row for row in self.runs if row.outcome not in (Outcome.CANCELLED, Outcome.SKIPPED)]

    @cached_property
    def fits(self) -> bool | None:
        """True if a run succeeded without swapping, False if none of the decided ones did, None if none is decided."""
        fitting = (row.outcome == Outcome.SUCCEEDED and "swapping" not in taints(row) for row in self.decided)
        return any(fitting) if self.decided else None

    @property
    def decided_by_memory(self) -> bool | None:
        """As `fits`, but None where runs failed for reasons other than memory, such as a misspelled setting."""
        full = any(row.outcome in (Outcome.OUT_OF_MEMORY, Outcome.SUCCEEDED) for row in self.decided)
        return None if self.fits is False and not full else self.fits

    @property
    def failed(self) -> ReportedRun | None:
        """The newest run showing that the value does not fit."""
        return self.decided[-1] if self.fits is False else None

    @cached_property
    def with_time(self) -> list[ReportedRun]:
        return [row for row in self.shown if (row.median_s or 0) > 0]

    @property
    def valid(self) -> bool:
        """Whether the times are valid, or invalid ones are included."""
        return bool(self.used and self.with_time)

    @property
    def noise(self) -> float | None:
        """Relative noise of the time: the standard deviation over runs, or that which the MAD of one run's iterations
        estimates."""
        spread_s, over = self.spread_s
        if spread_s is None or not self.median_s:
            return None
        return spread_s / self.median_s * (1.0 if over == "runs" else stats.MAD_TO_SD)

    @cached_property
    def memory(self) -> tuple[int | None, str | None]:
        """Peak bytes and their kind: "reserved" on a device, "RSS" of the process on the CPU. Runs with
        invalid times are included: they need as much memory."""
        runs = [row for row in self.runs if row.outcome == Outcome.SUCCEEDED]
        name = "max_rss_bytes" if any(row.device in ("cpu", None) for row in runs) else "peak_reserved_bytes"
        values = [value for row in runs if (value := getattr(row, name))]
        return (max(values), "RSS" if name == "max_rss_bytes" else "reserved") if values else (None, None)


class Curve(Struct, frozen=True, eq=False, dict=True):
    """Points by value, everything else being equal. `key` holds the equal factors."""

    name: str
    key: Mapping[str, Any]
    points: Sequence[CurvePoint]

    @property
    def first(self) -> ReportedRun:
        """A run that represents the curve."""
        return next((point.with_time[0] for point in self.points if point.with_time), self.points[0].runs[0])

    @property
    def newest_run(self) -> int:
        return max(int(row.run_id) for point in self.points for row in point.runs)

    @property
    def unit(self) -> str | None:
        """token or sample, whichever is known at every point with a time."""
        timed = [point for point in self.points if point.with_time]
        return next((unit for unit in WORK if timed and all(point.rate(unit) for point in timed)), None)

    @cached_property
    def rates(self) -> list[RatePoint]:
        """The throughput at each value with valid times."""
        rates = [(point, point.rate(self.unit)) for point in self.points if point.valid] if self.unit else []
        return [RatePoint(point.value, rate, point.noise) for point, rate in rates if rate]

    @cached_property
    def knee(self) -> Knee | None:
        return find_knee(self.rates)

    @cached_property
    def largest(self) -> CurvePoint | None:
        """The largest point that fits."""
        return max((point for point in self.points if point.fits), key=lambda point: point.value, default=None)

    @cached_property
    def too_large(self) -> CurvePoint | None:
        """The smallest point beyond `largest` that does not fit."""
        least = self.largest.value if self.largest else -1.0
        beyond = [point for point in self.points if point.failed and point.value > least]
        return min(beyond, key=lambda point: point.value, default=None)


def find_curves(
    rows: Sequence[ReportedRun], settings: Mapping[int, Mapping[str, Any]], name: str | None, include_invalid: bool
) -> list[Curve]:
    """Return the curves of prepared rows over the setting `name`, else over the one of `_choice`, the newest first.
    `settings` are the effective ones by run."""
    numbers = {
        run_id: {key: x for key, value in effective.items() if (x := number(value)) is not None}
        for run_id, effective in settings.items()
    }
    curves: list[Curve] = []
    for group in by_key(rows, lambda row: (row.machine, row.subject)).values():
        if chosen := name or _choice(group, numbers):
            able = [row for row in group if chosen in numbers[row.run_id]]
            values = {row.run_id: numbers[row.run_id][chosen] for row in able}
            curves += _over(chosen, able, values, include_invalid)
    return sorted(curves, key=lambda curve: -curve.newest_run)


def number(value: Any) -> float | None:
    """Return a setting's value if it is a finite number, as an integer where possible, else None; a command's values
    are strings."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        x = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if not math.isfinite(x) else int(x) if x == int(x) else x


def _choice(rows: Sequence[ReportedRun], numbers: Mapping[int, Mapping[str, float]]) -> str | None:
    """Return the setting that --find-max searches, else the first varying one of FIRST_CHOICES, else the integer
    setting with the most values."""
    searched = [str(row.find_max).partition("=")[0] for row in rows if row.find_max]
    if searched:
        return searched[-1]
    requested = {name for row in rows for name, value in row.settings.items() if isinstance(number(value), int)}
    values = {
        name: {numbers[row.run_id][name] for row in rows if name in numbers[row.run_id]}
        for name in sorted(requested)
        if name not in _LENGTH_SETTINGS and not name.endswith(_LENGTH_SUFFIXES)
    }
    several = [name for name in values if len(values[name]) > 1]
    first = [name for name in FIRST_CHOICES if name in several]
    return first[0] if first else max(several, key=lambda name: len(values[name]), default=None)


def _over(name: str, rows: Sequence[ReportedRun], values: Mapping[int, float], include_invalid: bool) -> list[Curve]:
    """Return the curves over the setting `name`, whose values by run are given."""
    requested = {factor for row in rows for factor in row.settings}
    factors = {factor for row in rows for factor in row.factors} - {name}
    if any(row.find_max for row in rows):  # one search is one curve: its answer is over all its probes
        factors = {factor for factor in factors if factor in requested or not _is_software(factor)}
    names = [*SUBJECT, *MAIN, *sorted(factors)]

    def key_of(row: ReportedRun) -> tuple[Any, ...]:
        return tuple(value_of(row, name) for name in names)

    def agree(known: tuple[Any, ...], key: tuple[Any, ...]) -> bool:
        """Return whether no value known of both differs; a missing setting differs."""
        pairs = zip(names, known, key, strict=True)
        return all(a == b or (factor not in requested and None in (a, b)) for factor, a, b in pairs)

    members = by_key((row for row in rows if row.median_s is not None), key_of)
    for row in (row for row in rows if row.median_s is None and row.state == State.DONE):
        for same in [known for known in members if agree(known, key_of(row))] or [key_of(row)]:
            members.setdefault(same, []).append(row)
    curves = []
    for key, runs in members.items():
        common = dict(zip(names, key, strict=True))
        by_value = by_key(runs, lambda row: values[row.run_id])
        points = [_point(common, value, by_value[value], include_invalid) for value in sorted(by_value)]
        curves.append(Curve(name, common, points))
    return [curve for curve in curves if len(curve.points) > 1 or curve.first.find_max]


def _is_software(name: str) -> bool:
    """Return whether a factor that is not a setting is a version, or the code: it follows from the request."""
    return name not in ("env", "resumed", "arguments") and not name.startswith("mps_")


def _point(key: Mapping[str, Any], value: float, rows: Sequence[ReportedRun], include_invalid: bool) -> CurvePoint:
    runs = not_replaced(rows)
    used = [row for row in runs if row.outcome == Outcome.SUCCEEDED and (row.valid or include_invalid)]
    return CurvePoint(key, runs, used, value=value)
