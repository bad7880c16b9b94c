"""Micro-benchmarks: the metrics that jobs/harness/microbench/run.py reports become a row for each operation measured.

A run has cells, the cases it measured (n1000, linear.forward). The samples of a cell are the metrics CELL.time, its
work is CELL.flop and CELL.bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from queue_runner import units
from queue_runner.analysis import stats
from queue_runner.analysis.grouping import by_key, taints, word
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.reports._common import footnotes, prepare
from queue_runner.reports._common.report import Context, Row
from queue_runner.tables import Column

_HOW = frozenset({"max_iters", "warmup_iters", "calls", "sample_ms", "timing", "mode", "largest", "smallest"})
"""Settings of the measurement: how, and for how long."""
_WHAT = frozenset({"n", "op", "direction", "memory"})
"""Settings that the name of a cell includes."""
_KEY = ("machine", "framework", "framework_version", "device", "device_name", "compile", "dtype", "config", "settings")


_Part = tuple[Row, Mapping[str, list[float]]]
"""A run and the metrics of one of its cells, by name."""


@dataclass(frozen=True)
class Measured:
    """One cell over all its valid runs. Times are in seconds per call."""

    key: Mapping[str, Any]
    """by _KEY; config is None where the cell's name implies it"""
    cell: str
    runs: Sequence[Row]
    """the valid runs; if there are none, the invalid ones"""
    medians_s: Sequence[float]
    """one per run"""
    samples_s: Sequence[float]
    """samples of all runs"""
    facts: Mapping[str, float] = field(default_factory=dict)
    """medians over the runs of CELL.flop, CELL.bytes, CELL.time_unsynced, and of values of the whole run: roof.flops"""
    version: str = ""
    """version of the framework, if other cells have another one"""

    @property
    def median_s(self) -> float:
        """Median of the runs' medians."""
        return stats.median(self.medians_s)

    @property
    def spread_s(self) -> tuple[float | None, str | None]:
        """MAD over the medians of several runs ("runs"), or over the samples of a single one ("samples")."""
        if len(self.medians_s) > 1:
            return stats.mad(self.medians_s), "runs"
        return (stats.mad(self.samples_s), "samples") if len(self.samples_s) > 1 else (None, None)

    def rate(self, what: str) -> float | None:
        """Return FLOP or bytes per second; None where the cell has none."""
        amount = self.facts.get(what)
        return amount / self.median_s if amount and self.median_s > 0 else None

    def row(self) -> dict[str, Any]:
        """Return the values common to all micro-benchmark reports, raw and in SI units."""
        spread_s, over = self.spread_s
        q1_s, q3_s = stats.quartiles(self.samples_s)
        key = {name: value for name, value in self.key.items() if name != "machine"}
        return {
            **key,
            "cell": self.cell,
            "runs": [row["run"] for row in self.runs],
            "n_runs": len(self.runs),
            "n_samples": len(self.samples_s),
            "median_s": self.median_s,
            "spread_s": spread_s,
            "spread_over": over,
            "q1_s": q1_s,
            "q3_s": q3_s,
            "flops_per_s": self.rate("flop"),
            "bytes_per_s": self.rate("bytes"),
            "valid": self.valid,
            "taints": sorted({kind for row in self.runs for kind in taints(row)}),
        }

    @property
    def valid(self) -> bool:
        """Whether all its runs are valid."""
        return all(row["valid"] for row in self.runs)

    def label(self, device: bool = True) -> str:
        """Return where and how it ran: "torch cpu", "torch cpu compiled"."""
        key = self.key
        compiled = "compiled" if key["compile"] else ""
        words = [key["framework"], self.version, key["device"] if device else "", compiled, key["settings"]]
        return " ".join(str(part) for part in words if part)


@dataclass(frozen=True)
class Bench:
    """Data of a micro-benchmark report; `notes` explain the marks and list what was left out."""

    cells: Sequence[Measured]
    caveats: footnotes.Caveats
    notes: Sequence[str]

    def mark(self, cell: Measured) -> str:
        """Return the mark of its caveats, and whether its runs are invalid."""
        return self.caveats.mark({kind for row in cell.runs for kind in taints(row)}, not cell.valid)


def sql(workload: str) -> str:
    """Return the SELECT for the runs of a micro-benchmark workload."""
    return f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND workload = '{workload}' ORDER BY job_id, number"


def measured(rows: Sequence[Row], context: Context, with_config: bool) -> Bench:
    """Return the cells of prepared rows. `with_config`: whether a preset distinguishes cells (the sizes of `kernels`).

    Raises: UsageError when --vs, --group-by or --iters is given: they have no meaning here.
    """
    if context.options.vs or context.options.group_by or context.options.iters:
        raise UsageError(
            "reports of micro-benchmarks take no --vs, --group-by or --iters",
            "select runs with --where framework=torch,dtype=fp32",
        )
    able = [row for row in rows if row["outcome"] == Outcome.SUCCEEDED]
    metrics = _metrics(able, context)
    found: dict[tuple[Any, ...], list[_Part]] = {}
    apart = _apart(able, with_config)
    for row in able:
        by_cell = metrics.get(row["run_id"], {})
        shared = {f"roof.{name}": values for name, values in by_cell.get("roof", {}).items()}
        for cell, values in by_cell.items():
            if values.get("time"):
                key = (*_key(row, with_config)[:-1], apart[row["run_id"]], cell)
                found.setdefault(key, []).append((row, {**values, **shared}))
    invalid_too = context.options.include_invalid
    cells = []
    for key, parts in found.items():
        valid = [part for part in parts if part[0]["valid"] or invalid_too]
        cells.append(_cell(key, valid or parts))
    versions = Counter(name for name, _ in {(c.key["framework"], c.key["framework_version"]) for c in cells})
    several = {name for name, n in versions.items() if n > 1}
    cells = [
        replace(c, version=c.key["framework_version"] or "") if c.key["framework"] in several else c for c in cells
    ]
    shown = {row["run_id"]: row for cell in cells for row in cell.runs}
    found_taints = footnotes.Taints(rows, context)
    caveats = found_taints.caveats(shown.values())
    bad = [row for row in rows if row["outcome"] is not None and (row["run_id"] not in shown or not row["valid"])]
    notes = [*caveats.notes(), *found_taints.excluded(bad, invalid_too)]
    if any(not row["valid"] for row in shown.values()) and not invalid_too:
        notes.append(f"a row marked {footnotes.EXCLUDED} has no valid run: its numbers are of invalid ones")
    return Bench(cells, caveats, notes)


def _key(row: Row, with_config: bool) -> tuple[Any, ...]:
    return tuple(_value(row, name, with_config) for name in _KEY)


def _apart(rows: Sequence[Row], with_config: bool) -> dict[int, str]:
    """Return by run, as text, its settings and the versions and variables in which otherwise equal runs differ."""
    found = {}
    for key, group in by_key(rows, lambda row: _key(row, with_config)).items():
        names = sorted(
            {name for row in group for name in row["factors"]} - {name for row in group for name in row["settings"]}
        )
        differ = [name for name in names if len({str(row["factors"].get(name)) for row in group}) > 1]
        for row in group:
            words = [word(name, value) for name in differ if (value := row["factors"].get(name)) is not None]
            found[row["run_id"]] = " ".join(filter(None, [key[-1], *words]))
    return found


def _value(row: Row, name: str, with_config: bool) -> Any:
    if name == "settings":
        settings = {key: value for key, value in row["settings"].items() if key not in _HOW | _WHAT}
        return " ".join(f"{key}={value}" for key, value in sorted(settings.items()))
    return None if name == "config" and not with_config else row[name]


def _metrics(rows: Sequence[Row], context: Context) -> dict[int, dict[str, dict[str, list[float]]]]:
    """Read the metrics by run, cell and name."""
    found: dict[int, dict[str, dict[str, list[float]]]] = {}
    ids = ", ".join(str(int(row["run_id"])) for row in rows)
    for metric in context.read(
        f"SELECT run_id, name, value FROM v_metric WHERE run_id IN ({ids}) AND value IS NOT NULL"
    ):
        cell, _, name = metric["name"].rpartition(".")
        found.setdefault(metric["run_id"], {}).setdefault(cell, {}).setdefault(name, []).append(metric["value"])
    return found


def _cell(key: tuple[Any, ...], parts: Sequence[_Part]) -> Measured:
    names = {name for _, values in parts for name in values} - {"time"}
    return Measured(
        key=dict(zip(_KEY, key[:-1], strict=True)),
        cell=key[-1],
        runs=[row for row, _ in parts],
        medians_s=[stats.median(values["time"]) for _, values in parts],
        samples_s=[time_s for _, values in parts for time_s in values["time"]],
        facts={n: stats.median(stats.median(values[n]) for _, values in parts if n in values) for n in sorted(names)},
    )


def tables(
    cells: Sequence[Measured], rows: Sequence[dict[str, Any]], title: Callable[[Measured], str]
) -> list[tuple[str, list[tuple[Measured, dict[str, Any]]]]]:
    """Return the title and the cells, with their rows, of each table; a table is of one machine."""
    by_place = by_key(zip(cells, rows, strict=True), lambda result: (result[0].key["machine"], title(result[0])))
    return [(title, results) for (_, title), results in by_place.items()]


def spread(found: Measured) -> str:
    """Format the spread as a share of the median: "0.8 %" over runs, "(0.8 %)" over the samples of one run."""
    spread_s, over = found.spread_s
    text = units.percent(spread_s / found.median_s, 2) if spread_s is not None and found.median_s else units.MISSING
    return f"({text})" if over == "samples" else text


def rates(rows: Sequence[Mapping[str, Any]], **titles: str) -> list[Column]:
    """Return columns of FLOP/s by key and title, all in TFLOP/s or GFLOP/s, whichever suits the highest."""
    fastest = max((row[key] or 0.0 for row in rows for key in titles), default=0.0)
    size, unit = (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")

    def words(x: float | None) -> str:
        return units.number(None if x is None else x / size, 3)

    return [Column(key, f"{title} {unit}".strip(), words, True) for key, title in titles.items()]


def spreads(cells: Sequence[Measured]) -> Iterable[str]:
    """Explain times and spreads."""
    return footnotes.spreads("time: median of the run medians", {cell.spread_s[1] for cell in cells})


def caption(found: Measured) -> str:
    """Return where it ran: "on Apple M1 Max"."""
    return ", ".join(filter(None, [f"on {found.key['device_name'] or found.key['device']}", found.runs[0]["where"]]))
