"""Runs that differ in one number alone, as curves over it: what `scaling` is made of.

A run that failed says less of itself than one that succeeded (a device out of memory tells no optimizer); it belongs to
each curve that it does not contradict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from queue_runner.analysis import knee, stats
from queue_runner.analysis.grouping import MAIN, SUBJECT, WORK, taints, value_of
from queue_runner.errors import UsageError
from queue_runner.model import Outcome, State
from queue_runner.reports._common.report import Context, Row
from queue_runner.reports._common.settings import effective

MATERIAL = 0.05
"""Of the memory of the smallest: what it must grow by for its growth to be told."""
KNOWN = frozenset({"machine", "subject", "config", "device", "compile", "dtype", "framework"})
"""What a key holds besides settings."""
STRAIGHT = 2.0
"""How many times the slope of one half may be the other's for the whole's to be called what one more takes."""
FIRST_CHOICES = ("batch_size", "n", "block_size")
_HOW_LONG = frozenset({"max_iters", "warmup_iters", "seed", "batches"})
_HOW_OFTEN = ("_iters", "_interval")


@dataclass(frozen=True, eq=False)
class Point:
    """The runs with one value of the setting. `timed` are those whose times are shown: see `valid`."""

    value: float
    runs: Sequence[Row]
    include_invalid: bool

    @cached_property
    def fits(self) -> bool | None:
        """True where a run succeeded without swapping, False where all that are decided did not, None for no answer."""
        return any(_fits(row) for row in self.decided) if self.decided else None

    @cached_property
    def decided(self) -> list[Row]:
        """Runs that nobody stopped."""
        return [row for row in self.runs if row["outcome"] not in (Outcome.CANCELLED, Outcome.SKIPPED)]

    @property
    def said(self) -> bool | None:
        """As `fits`, but None where runs failed for reasons that have nothing to do with room, a typing error say."""
        full = any(row["outcome"] in (Outcome.OUT_OF_MEMORY, Outcome.SUCCEEDED) for row in self.decided)
        return None if self.fits is False and not full else self.fits

    @cached_property
    def timed(self) -> list[Row]:
        """Those that count; where none does, the invalid ones."""
        able = [row for row in self.runs if row["outcome"] == Outcome.SUCCEEDED and (row["median_s"] or 0) > 0]
        return [row for row in able if row["valid"] or self.include_invalid] or able

    @property
    def valid(self) -> bool:
        """Whether its times count."""
        return bool(self.timed) and (self.include_invalid or all(row["valid"] for row in self.timed))

    @property
    def n_counting(self) -> int:
        """Runs that succeeded and are valid, or all that succeeded where invalid ones are wanted."""
        return sum(r["outcome"] == Outcome.SUCCEEDED and bool(r["valid"] or self.include_invalid) for r in self.runs)

    @property
    def failed(self) -> Row | None:
        """The newest run that says that it does not fit."""
        return self.decided[-1] if self.fits is False else None

    @property
    def median_s(self) -> float | None:
        return stats.median(row["median_s"] for row in self.timed) if self.timed else None

    @cached_property
    def spread_s(self) -> tuple[float | None, str | None]:
        """MAD over the medians of several runs ("runs"); of one, over its iterations ("iterations")."""
        if len(self.timed) > 1:
            return stats.mad([row["median_s"] for row in self.timed]), "runs"
        several = self.timed and (self.timed[0]["n_measure"] or 0) > 1
        return (self.timed[0]["mad_s"], "iterations") if several else (None, None)

    @property
    def noise(self) -> float | None:
        """Of the time, as a share of it: a standard deviation of what is spread."""
        spread_s, _ = self.spread_s
        return stats.MAD_TO_SD * spread_s / self.median_s if spread_s is not None and self.median_s else None

    def rate(self, unit: str) -> float | None:
        """Tokens or samples a second, at the runs' median time."""
        times = [row["median_s"] / row[f"{unit}s_per_iter"] for row in self.timed if row[f"{unit}s_per_iter"]]
        return 1 / stats.median(times) if times else None

    @cached_property
    def memory(self) -> tuple[int | None, str | None]:
        """Bytes at the highest and what they are: "reserved" on a device, "RSS" of the process on the CPU. Contended
        and other runs whose times do not count are in: they take no less."""
        runs = [row for row in self.runs if row["outcome"] == Outcome.SUCCEEDED]
        name = "max_rss_bytes" if any(row["device"] in ("cpu", None) for row in runs) else "peak_reserved_bytes"
        values = [row[name] for row in runs if row[name]]
        return (max(values), "RSS" if name == "max_rss_bytes" else "reserved") if values else (None, None)


def _fits(row: Row) -> bool:
    return row["outcome"] == Outcome.SUCCEEDED and "swapping" not in taints(row)


@dataclass(frozen=True, eq=False)
class Curve:
    """Points by value, everything else being the same. `key` holds what that is."""

    name: str
    key: Mapping[str, Any]
    points: Sequence[Point]

    @property
    def first(self) -> Row:
        """A run that says of all what it is."""
        return next((point.timed[0] for point in self.points if point.timed), self.points[0].runs[0])

    @property
    def unit(self) -> str | None:
        """token or sample, whichever every timed run tells."""
        timed = [point for point in self.points if point.timed]
        return next((unit for unit in WORK if timed and all(point.rate(unit) for point in timed)), None)

    @cached_property
    def knee(self) -> knee.Knee | None:
        """Of the points whose times count."""
        unit = self.unit
        points = [(point, point.rate(unit)) for point in self.points if point.valid] if unit else []
        return knee.find([knee.Point(point.value, rate, point.noise) for point, rate in points if rate])

    @cached_property
    def largest(self) -> Point | None:
        """The largest that fits."""
        return max((point for point in self.points if point.fits), key=lambda point: point.value, default=None)

    @cached_property
    def too_large(self) -> Point | None:
        """The smallest beyond it that does not."""
        least = self.largest.value if self.largest else -1.0
        beyond = [point for point in self.points if point.failed and point.value > least]
        return min(beyond, key=lambda point: point.value, default=None)

    @cached_property
    def bytes_each(self) -> tuple[float, float] | None:
        """Bytes that one more takes, by Theil and Sen, and those that are there besides; None for fewer than
        three, where all take about the same, and where it is no straight line (a matrix of n x n)."""
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


def curves(rows: Sequence[Row], context: Context) -> list[Curve]:
    """The curves of prepared rows, each over the setting that --group-by names, or that varies most to the point.

    Raises: UsageError where --group-by names several, or a setting that is no number.
    """
    told = effective(rows, context)
    for row in rows:
        row["effective"] = told[row["run_id"]]
    asked = _asked(rows, context)
    found: list[Curve] = []
    for subject in dict.fromkeys((row["machine"], row["subject"]) for row in rows):
        some = [row for row in rows if (row["machine"], row["subject"]) == subject]
        name = asked or _choice(some)
        if name is not None:
            found += _over(name, [row for row in some if number(row["effective"].get(name)) is not None], context)
    return sorted(found, key=lambda curve: -max(row["run_id"] for point in curve.points for row in point.runs))


def number(value: Any) -> float | None:
    """A setting's value, where it is a finite number; a command's are words."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        x = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return x if math.isfinite(x) else None


def _asked(rows: Sequence[Row], context: Context) -> str | None:
    names = context.options.group_by
    if not names:
        return None
    values = [row["effective"].get(names[0]) for row in rows]
    if len(names) > 1 or not any(number(value) is not None for value in values):
        known = sorted({name for row in rows for name, value in row["settings"].items() if number(value) is not None})
        hint = f"for example --group-by {known[0]}" if known else "mpsq submit nanogpt --set batch_size=8,16,32"
        raise UsageError("scaling: --group-by takes one setting that is a number", hint)
    return names[0]


def _choice(rows: Sequence[Row]) -> str | None:
    """What --find-max looks for; else the batch size; else the whole number with the most values."""
    sought = [str(row["find_max"]).partition("=")[0] for row in rows if row["find_max"]]
    if sought:
        return sought[-1]
    values: dict[str, set[float]] = {}
    for row in rows:
        for name, value in row["settings"].items():
            if (x := number(value)) is not None and x == int(x) and not _says_how_long(name):
                values.setdefault(name, set()).add(x)
                values[name] |= {known for other in rows if (known := number(other["effective"].get(name))) is not None}
    several = [name for name in values if len(values[name]) > 1]
    first = [name for name in FIRST_CHOICES if name in several]
    return first[0] if first else max(sorted(several), key=lambda name: len(values[name]), default=None)


def _says_how_long(name: str) -> bool:
    return name in _HOW_LONG or name.endswith(_HOW_OFTEN)


def _over(name: str, rows: Sequence[Row], context: Context) -> list[Curve]:
    names = [*SUBJECT, *MAIN, *sorted({other for row in rows for other in row["factors"]} - {name})]
    well = [row for row in rows if row["median_s"] is not None]
    runs: dict[tuple[Any, ...], list[Row]] = {}
    for row in well:
        runs.setdefault(tuple(value_of(row, other) for other in names), []).append(row)
    for row in (row for row in rows if row["median_s"] is None and row["state"] == State.DONE):
        key = tuple(value_of(row, other) for other in names)
        settings = {at for at, other in enumerate(names) if other in row["settings"] or _set_somewhere(other, rows)}
        alike = [known for known in runs if _agree(known, key, settings)]
        for known in alike or [key]:
            runs.setdefault(known, []).append(row)
    made = [Curve(name, dict(zip(names, key, strict=True)), _points(name, some, context)) for key, some in runs.items()]
    return [curve for curve in made if len(curve.points) > 1 or curve.first["find_max"]]


def _set_somewhere(name: str, rows: Iterable[Row]) -> bool:
    return any(name in row["settings"] for row in rows)


def _agree(known: tuple[Any, ...], key: tuple[Any, ...], settings: set[int]) -> bool:
    """Nothing that is known of both differs; a setting that is not said is one that differs."""
    pairs = enumerate(zip(known, key, strict=True))
    return all(a == b or (at not in settings and (a is None or b is None)) for at, (a, b) in pairs)


def _points(name: str, rows: Sequence[Row], context: Context) -> list[Point]:
    values: dict[float, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["run_id"]):
        values.setdefault(float(number(row["effective"][name]) or 0.0), []).append(row)
    return [Point(value, values[value], context.options.include_invalid) for value in sorted(values)]
