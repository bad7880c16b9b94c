"""Runs that differ in one number only, as curves over it: the data of `scaling`.

A failed run reports less than a successful one (no optimizer after running out of memory); it belongs to each curve
that it does not contradict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from queue_runner.analysis import knee, stats
from queue_runner.analysis.grouping import BESIDE, MAIN, SUBJECT, WORK, by_key, spread_s, taints, value_of
from queue_runner.errors import UsageError
from queue_runner.model import Outcome, State
from queue_runner.reports._common.document import Context, Row
from queue_runner.reports._common.settings import effective

MATERIAL = 0.05
"""Minimum growth of memory to be reported, as a share of the memory at the smallest value."""
KNOWN = frozenset({"machine", "subject", "config", "device", "compile", "dtype", "framework"})
"""Names in a key that are not settings."""
STRAIGHT = 2.0
"""Maximum ratio between the slopes of both halves for the overall slope to be taken as bytes per unit."""
FIRST_CHOICES = ("batch_size", "n", "block_size")
_LENGTH_SETTINGS = frozenset({"max_iters", "warmup_iters", "seed", "batches"})
_LENGTH_SUFFIXES = ("_iters", "_interval")


@dataclass(frozen=True, eq=False)
class CurvePoint:
    """The runs with one value of the setting. `timed` are those whose times are shown."""

    value: float
    runs: Sequence[Row]
    include_invalid: bool

    @cached_property
    def fits(self) -> bool | None:
        """True if a run succeeded without swapping, False if none of the decided ones did, None if none is decided."""
        return any(_fits(row) for row in self.decided) if self.decided else None

    @cached_property
    def decided(self) -> list[Row]:
        """Runs that were neither cancelled nor skipped."""
        return [row for row in self.runs if row["outcome"] not in (Outcome.CANCELLED, Outcome.SKIPPED)]

    @property
    def decided_by_memory(self) -> bool | None:
        """As `fits`, but None where runs failed for reasons other than memory, such as a misspelled setting."""
        full = any(row["outcome"] in (Outcome.OUT_OF_MEMORY, Outcome.SUCCEEDED) for row in self.decided)
        return None if self.fits is False and not full else self.fits

    @cached_property
    def timed(self) -> list[Row]:
        """Runs with valid times; if there are none, those with invalid ones."""
        able = [row for row in self.runs if row["outcome"] == Outcome.SUCCEEDED and (row["median_s"] or 0) > 0]
        return [row for row in able if row["valid"] or self.include_invalid] or able

    @property
    def valid(self) -> bool:
        """Whether the times are valid, or invalid ones are included."""
        return bool(self.timed) and (self.include_invalid or all(row["valid"] for row in self.timed))

    @property
    def n_counting(self) -> int:
        """Number of successful and valid runs, or of all successful ones if invalid ones are included."""
        return sum(r["outcome"] == Outcome.SUCCEEDED and bool(r["valid"] or self.include_invalid) for r in self.runs)

    @property
    def failed(self) -> Row | None:
        """The newest run showing that the value does not fit."""
        return self.decided[-1] if self.fits is False else None

    @property
    def median_s(self) -> float | None:
        """The geometric mean of the run medians, as in every report."""
        return stats.geometric_mean([row["median_s"] for row in self.timed]) if self.timed else None

    @property
    def noise(self) -> float | None:
        """Relative noise of the time: a standard deviation derived from the spread."""
        mad_s, _ = spread_s(self.timed)
        return stats.MAD_TO_SD * mad_s / self.median_s if mad_s is not None and self.median_s else None

    def rate(self, unit: str) -> float | None:
        """Return tokens or samples per second at the geometric mean of the runs' times."""
        times = [row["median_s"] / row[f"{unit}s_per_iter"] for row in self.timed if row[f"{unit}s_per_iter"]]
        return 1 / stats.geometric_mean(times) if times else None

    @cached_property
    def memory(self) -> tuple[int | None, str | None]:
        """Peak bytes and their kind: "reserved" on a device, "RSS" of the process on the CPU. Runs with
        invalid times are included: they need as much memory."""
        runs = [row for row in self.runs if row["outcome"] == Outcome.SUCCEEDED]
        name = "max_rss_bytes" if any(row["device"] in ("cpu", None) for row in runs) else "peak_reserved_bytes"
        values = [row[name] for row in runs if row[name]]
        return (max(values), "RSS" if name == "max_rss_bytes" else "reserved") if values else (None, None)


def _fits(row: Row) -> bool:
    return row["outcome"] == Outcome.SUCCEEDED and "swapping" not in taints(row)


@dataclass(frozen=True, eq=False)
class Curve:
    """Points by value, everything else being equal. `key` holds what is equal."""

    name: str
    key: Mapping[str, Any]
    points: Sequence[CurvePoint]

    @property
    def first(self) -> Row:
        """A run that represents the curve."""
        return next((point.timed[0] for point in self.points if point.timed), self.points[0].runs[0])

    @property
    def unit(self) -> str | None:
        """token or sample, whichever is known at every timed point."""
        timed = [point for point in self.points if point.timed]
        return next((unit for unit in WORK if timed and all(point.rate(unit) for point in timed)), None)

    @cached_property
    def knee(self) -> knee.Knee | None:
        """The knee over the points with valid times."""
        unit = self.unit
        points = [(point, point.rate(unit)) for point in self.points if point.valid] if unit else []
        return knee.find([knee.RatePoint(point.value, rate, point.noise) for point, rate in points if rate])

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

    @cached_property
    def bytes_each(self) -> tuple[float, float] | None:
        """Bytes per unit of the value (Theil-Sen slope), and the constant part; None for fewer than three points, if
        all take about the same, or if the relation is not linear (a matrix of n x n)."""
        known = [(point.value, float(point.memory[0])) for point in self.points if point.memory[0]]
        if len(known) < knee.FEWEST:
            return None
        slope = stats.theil_sen(*map(list, zip(*known, strict=True)))
        if slope * (known[-1][0] - known[0][0]) < MATERIAL * known[0][1]:
            return None
        half = len(known) // 2
        early, late = ((b - a) / (y - x) for (x, a), (y, b) in ((known[0], known[half]), (known[half], known[-1])))
        if not (early > 0 and 1 / STRAIGHT <= late / early <= STRAIGHT):
            return None
        return slope, stats.median(n_bytes - slope * value for value, n_bytes in known)


def find_curves(rows: Sequence[Row], context: Context) -> list[Curve]:
    """Return the curves of prepared rows, over the setting named by --group-by or else the one of `_choice`.

    Raises: UsageError when --group-by names several settings, or one that is not a number.
    """
    settings = effective(rows, context)
    for row in rows:
        row["effective"] = settings[row["run_id"]]
    requested = _requested(rows, context)
    found: list[Curve] = []
    for group in by_key(rows, lambda row: (row["machine"], row["subject"])).values():
        name = requested or _choice(group)
        if name is not None:
            found += _over(name, [row for row in group if number(row["effective"].get(name)) is not None], context)
    return sorted(found, key=lambda curve: -max(row["run_id"] for point in curve.points for row in point.runs))


def number(value: Any) -> float | None:
    """Return a setting's value if it is a finite number, else None; a command's values are strings."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        x = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return x if math.isfinite(x) else None


def _requested(rows: Sequence[Row], context: Context) -> str | None:
    names = context.options.group_by
    if not names:
        return None
    values = [row["effective"].get(names[0]) for row in rows]
    if len(names) > 1 or not any(number(value) is not None for value in values):
        known = sorted({name for row in rows for name, value in row["settings"].items() if number(value) is not None})
        hint = f"for example --group-by {known[0]}" if known else "mpsq submit nanogpt --set batch_size=8,16,32"
        raise UsageError("scaling: --group-by takes one numeric setting", hint)
    return names[0]


def _choice(rows: Sequence[Row]) -> str | None:
    """Return the setting that --find-max searches, else the first varying one of FIRST_CHOICES, else the integer
    setting with the most values."""
    sought = [str(row["find_max"]).partition("=")[0] for row in rows if row["find_max"]]
    if sought:
        return sought[-1]
    values: dict[str, set[float]] = {}
    for row in rows:
        for name, value in row["settings"].items():
            if (x := number(value)) is not None and x == int(x) and not _sets_length(name):
                values.setdefault(name, set()).add(x)
                values[name] |= {known for other in rows if (known := number(other["effective"].get(name))) is not None}
    several = [name for name in values if len(values[name]) > 1]
    first = [name for name in FIRST_CHOICES if name in several]
    return first[0] if first else max(sorted(several), key=lambda name: len(values[name]), default=None)


def _sets_length(name: str) -> bool:
    return name in _LENGTH_SETTINGS or name.endswith(_LENGTH_SUFFIXES)


def _over(name: str, rows: Sequence[Row], context: Context) -> list[Curve]:
    others = {other for row in rows for other in row["factors"]} - {name}
    if any(row["find_max"] for row in rows):  # one search is one curve: its answer is over all its probes
        asked = {other for row in rows for other in row["settings"]}
        others = {other for other in others if other in asked or not is_software(other)}
    names = [*SUBJECT, *MAIN, *sorted(others)]
    well = [row for row in rows if row["median_s"] is not None]
    runs = by_key(well, lambda row: tuple(value_of(row, other) for other in names))
    for row in (row for row in rows if row["median_s"] is None and row["state"] == State.DONE):
        key = tuple(value_of(row, other) for other in names)
        settings = {at for at, other in enumerate(names) if any(other in one["settings"] for one in rows)}
        alike = [known for known in runs if _agree(known, key, settings)]
        for known in alike or [key]:
            runs.setdefault(known, []).append(row)
    curves = [Curve(name, dict(zip(names, key, strict=True)), _points(name, at, context)) for key, at in runs.items()]
    return [curve for curve in curves if len(curve.points) > 1 or curve.first["find_max"]]


def is_software(name: str) -> bool:
    """Return whether a factor that is no setting is a version, or the code: it follows from what was requested."""
    return name not in ("env", "resumed", "arguments", BESIDE) and not name.startswith("mps_")


def _agree(known: tuple[Any, ...], key: tuple[Any, ...], settings: set[int]) -> bool:
    """Return whether no value known of both differs; a missing setting differs."""
    pairs = enumerate(zip(known, key, strict=True))
    return all(a == b or (at not in settings and (a is None or b is None)) for at, (a, b) in pairs)


def _points(name: str, rows: Sequence[Row], context: Context) -> list[CurvePoint]:
    ordered = sorted(rows, key=lambda row: row["run_id"])
    values = by_key(ordered, lambda row: float(number(row["effective"][name]) or 0.0))
    return [CurvePoint(value, values[value], context.options.include_invalid) for value in sorted(values)]
