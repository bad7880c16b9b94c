"""Runs of the same spec, as one cell: which of them count, their combined numbers, their label. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from queue_runner.analysis import stats
from queue_runner.model import Outcome, State

Row = Mapping[str, Any]
"""A run: the columns of v_run, and `factors`, the further settings and versions that distinguish runs."""

SUBJECT = ("machine", "subject", "config")
"""The factors that compared cells always share: runs of two machines are never compared."""
MAIN = ("device", "compile", "dtype", "framework")
"""The factors that distinguish cells and are named first."""
WORK = ("token", "sample")
"""The units of an iteration's work. A ratio is never of time per token against time per sample."""
_BARE = frozenset(
    {"arguments", "subject", "config", "device", "dtype", "framework", "device_name", "optimizer", "data_name"}
)
"""Factors whose value is self-explanatory."""


def value_of(row: Row, name: str) -> Any:
    """Return the setting or version of that name, or else a column of v_run."""
    factors: Mapping[str, Any] = row["factors"]
    return factors[name] if name in factors else row.get(name)


def word(name: str, value: Any) -> str:
    """Return a factor's value in words: "eager", "mps", "max_iters=20"."""
    if name == "compile":
        return "" if value is None else "compiled" if value else "eager"
    if name == "resumed":
        return "resumed" if value else ""
    if name in _BARE:
        return "" if value is None else str(value)
    return f"{name}={'unset' if value is None else value}"


@dataclass(frozen=True, eq=False)
class Arm:
    """Runs of the same spec. Only `used` ones give numbers: those that succeeded and are valid, or all if requested."""

    key: Mapping[str, Any]
    runs: Sequence[Row]
    used: Sequence[Row]
    label: str = ""

    @cached_property
    def ended(self) -> list[Row]:
        return [row for row in self.runs if row["state"] == State.DONE]

    @cached_property
    def left_out(self) -> list[Row]:
        """Runs that ended and do not count."""
        ids = {row["run_id"] for row in self.used}
        return [row for row in self.ended if row["run_id"] not in ids]

    @cached_property
    def shown(self) -> Sequence[Row]:
        """Runs whose numbers are shown: those that count; if none does, the invalid ones, which are never compared."""
        return self.used or [row for row in self.left_out if row["outcome"] == Outcome.SUCCEEDED]

    @cached_property
    def times(self) -> list[float]:
        """Seconds per iteration, one median for each run that counts: the values compared."""
        return [row["median_s"] for row in self.used if (row["median_s"] or 0) > 0]

    @cached_property
    def median_s(self) -> float | None:
        return self.median("median_s")

    @cached_property
    def spread_s(self) -> tuple[float | None, str | None]:
        """MAD over the medians of several runs ("runs"); of a single run, over its iterations ("iterations")."""
        medians = [row["median_s"] for row in self.shown if row["median_s"] is not None]
        if len(medians) > 1:
            return stats.mad(medians), "runs"
        several = (self.median("n_measure") or 0) > 1
        return (self.median("mad_s"), "iterations") if medians and several else (None, None)

    def work(self, unit: str) -> float | None:
        """Return the amount of a unit of WORK per iteration."""
        return self.median(f"{unit}s_per_iter")

    def median(self, name: str) -> float | None:
        """Return the median of a column over the runs that are shown; None where no run has it."""
        return middle(self.shown, name)


def middle(rows: Iterable[Row], name: str) -> float | None:
    """Return the median of a column; None where no row has it, nan where one is nan, which cannot be ordered."""
    values = [row[name] for row in rows if row[name] is not None]
    if any(value != value for value in values):
        return math.nan
    return stats.median(values) if values else None


def taints(row: Row) -> list[str]:
    """Return the kinds of taint of a run."""
    return row["taints"].split(",") if row["taints"] else []


def group(rows: Iterable[Row], names: Sequence[str], include_invalid: bool = False) -> list[Arm]:
    """Group runs into cells, keyed by SUBJECT and `names`.

    A run without numbers joins the other runs of its spec: it could not report what it ran on.
    """
    names = [*SUBJECT, *(name for name in names if name not in SUBJECT)]
    members: dict[tuple[Any, ...], list[Row]] = {}
    place: dict[Any, tuple[Any, ...]] = {}
    for row in sorted(rows, key=lambda row: (row["median_s"] is None, row["run_id"])):
        key = tuple(value_of(row, name) for name in names)
        if row["median_s"] is None:
            key = place.get(row["spec_hash"], key)
        place.setdefault(row["spec_hash"], key)
        members.setdefault(key, []).append(row)
    return [_cell(dict(zip(names, key, strict=True)), runs, include_invalid) for key, runs in members.items()]


def _cell(key: Mapping[str, Any], runs: list[Row], include_invalid: bool) -> Arm:
    runs.sort(key=lambda row: row["run_id"])
    return Arm(key, runs, [row for row in runs if _counts(row, include_invalid)])


def _counts(row: Row, include_invalid: bool) -> bool:
    well = row["outcome"] == Outcome.SUCCEEDED
    return bool(well or row["median_s"] is not None) if include_invalid else bool(well and row["valid"])


def order(cell: Arm) -> tuple[Any, ...]:
    """Return a sort key: the cpu first, eager before compiled, full precision before others, then by the rest."""
    key = cell.key
    device = str(key.get("device"))
    rest = [(0, value, "") if isinstance(value, int | float) else (1, 0, str(value)) for value in key.values()]
    return device != "cpu", device, bool(key.get("compile")), key.get("dtype") not in ("fp32", None), rest


def labelled(cells: Sequence[Arm], common: Mapping[str, Any]) -> list[Arm]:
    """Name cells by device and mode, by what else differs of MAIN, and by the rest where two would look alike."""
    names = [name for name in cells[0].key if name not in common]
    differ = {name for name in names if len({cell.key[name] for cell in cells}) > 1}
    shown = [name for name in names if name in ("device", "compile") or (name in differ and name in MAIN)]
    for name in names:
        if name in differ and name not in shown and _splits(cells, shown, name):
            shown.append(name)
    for unset in (False, True):  # an unset setting is named only where two rows would look alike
        labels = [_label(cell, shown, unset) or str(cell.key["subject"]) for cell in cells]
        if len({*labels}) == len(labels):
            break
    return [replace(cell, label=label) for cell, label in zip(cells, labels, strict=True)]


def _label(cell: Arm, names: Sequence[str], unset: bool) -> str:
    return " ".join(filter(None, (word(name, cell.key[name]) for name in names if unset or cell.key[name] is not None)))


def _splits(cells: Sequence[Arm], shown: Sequence[str], name: str) -> bool:
    """Return whether cells that look the same by `shown` differ in `name`."""
    seen: dict[tuple[Any, ...], Any] = {}
    alike = [(tuple(cell.key[other] for other in shown), cell.key[name]) for cell in cells]
    return any(seen.setdefault(key, value) != value for key, value in alike)
