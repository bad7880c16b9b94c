"""Micro-benchmarks: the metrics that jobs/harness/bench.py reports become a row for each operation that was measured.

A run has cells (n1000, linear.forward). A cell's samples are the metrics CELL.time, its work CELL.flop and CELL.bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from queue_runner import stats, units
from queue_runner.grouping import taints, word
from queue_runner.model import Outcome
from queue_runner.reports import Context, Row, _facts, _notes

_HOW = frozenset({"max_iters", "warmup_iters", "calls", "sample_ms", "timing", "mode", "largest", "smallest"})
"""Settings that say how long and how something is measured."""
_WHAT = frozenset({"n", "op", "direction", "memory"})
"""Settings that a cell's name tells."""
_KEY = ("machine", "framework", "framework_version", "device", "device_name", "compile", "dtype", "config", "settings")


@dataclass(frozen=True)
class Measured:
    """One cell over all its runs that count. Times are of one call, in seconds."""

    key: Mapping[str, Any]
    """by _KEY; config is None where it tells nothing that the cell does not"""
    cell: str
    runs: Sequence[Row]
    medians_s: Sequence[float]
    """one for each run"""
    samples_s: Sequence[float]
    """of all runs"""
    facts: Mapping[str, float] = field(default_factory=dict)
    """medians over the runs of CELL.flop, CELL.bytes, CELL.time_unsynced, and of what is the run's own: roof.flops"""

    @property
    def median_s(self) -> float:
        """The median of the runs' medians."""
        return stats.median(self.medians_s)

    @property
    def spread_s(self) -> tuple[float | None, str | None]:
        """MAD over the medians of several runs ("runs"); of one run, over its samples ("samples")."""
        if len(self.medians_s) > 1:
            return stats.mad(self.medians_s), "runs"
        return (stats.mad(self.samples_s), "samples") if len(self.samples_s) > 1 else (None, None)

    def rate(self, what: str) -> float | None:
        """FLOP or bytes per second; None where the cell has none."""
        amount = self.facts.get(what)
        return amount / self.median_s if amount and self.median_s > 0 else None

    def row(self) -> dict[str, Any]:
        """What every report of micro-benchmarks has, raw and in SI units."""
        spread_s, over = self.spread_s
        q1_s, q3_s = stats.quartiles(self.samples_s)
        key = {name: value for name, value in self.key.items() if name != "machine"}
        return {
            **key,
            "compile": None if key["compile"] is None else bool(key["compile"]),
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
            "taints": sorted({kind for row in self.runs for kind in taints(row)}),
        }

    def label(self) -> str:
        """What it ran on and how: "torch cpu compiled"."""
        key = self.key
        words = [key["framework"], key["device"], word("compile", key["compile"]), key["settings"]]
        return " ".join(str(part) for part in words if part)


def sql(workload: str) -> str:
    """The runs of a workload of this kind."""
    return f"SELECT {_facts.RUN} FROM v_run WHERE {{chosen}} AND workload = '{workload}' ORDER BY job_id, number"


def measured(rows: Sequence[Row], context: Context, with_config: bool) -> tuple[list[Measured], list[str]]:
    """The cells of prepared rows, and notes: what was left out and why, and the caveats of what was not.

    `with_config`: whether a preset tells cells apart (the sizes of `kernels`).
    """
    used = [row for row in rows if _counts(row, context)]
    metrics = _metrics(used, context)
    found: dict[tuple[Any, ...], list[tuple[Row, str, Mapping[str, list[float]]]]] = {}
    for row in used:
        said = metrics.get(row["run_id"], {})
        shared = {f"roof.{name}": values for name, values in said.get("roof", {}).items()}
        for cell, values in said.items():
            if values.get("time"):
                key = (*(_value(row, name, with_config) for name in _KEY), cell)
                found.setdefault(key, []).append((row, cell, {**values, **shared}))
    cells = [_cell(key, parts) for key, parts in found.items()]
    return cells, _told([row for row in rows if row not in used], used, _notes.Taints(rows, context))


def _counts(row: Row, context: Context) -> bool:
    return row["outcome"] == Outcome.SUCCEEDED and bool(row["valid"] or context.options.include_invalid)


def _value(row: Row, name: str, with_config: bool) -> Any:
    if name == "settings":
        told = {key: value for key, value in row["settings"].items() if key not in _HOW | _WHAT}
        return " ".join(f"{key}={value}" for key, value in sorted(told.items()))
    return None if name == "config" and not with_config else row[name]


def _metrics(rows: Sequence[Row], context: Context) -> dict[int, dict[str, dict[str, list[float]]]]:
    """By run, cell and name."""
    found: dict[int, dict[str, dict[str, list[float]]]] = {}
    ids = ", ".join(str(int(row["run_id"])) for row in rows)
    said = context.read(f"SELECT run_id, name, value FROM v_metric WHERE run_id IN ({ids}) AND value IS NOT NULL")
    for metric in said:
        cell, _, name = metric["name"].rpartition(".")
        found.setdefault(metric["run_id"], {}).setdefault(cell, {}).setdefault(name, []).append(metric["value"])
    return found


def _cell(key: tuple[Any, ...], parts: Sequence[tuple[Row, str, Mapping[str, list[float]]]]) -> Measured:
    names = {name for _, _, values in parts for name in values} - {"time"}
    return Measured(
        key=dict(zip(_KEY, key[:-1], strict=True)),
        cell=key[-1],
        runs=[row for row, *_ in parts],
        medians_s=[stats.median(values["time"]) for *_, values in parts],
        samples_s=[time_s for *_, values in parts for time_s in values["time"]],
        facts={n: stats.median(stats.median(values[n]) for *_, values in parts if n in values) for n in sorted(names)},
    )


def _told(left_out: Sequence[Row], used: Sequence[Row], found: _notes.Taints) -> list[str]:
    lines = []
    for row in left_out[: _notes.MOST_NAMED]:
        if row["state"] != "DONE":
            continue
        invalid = [f"{t['kind']} ({t['detail']})" for t in found.of(row) if t["severity"] == "invalid"]
        why = ", ".join(invalid) if row["outcome"] == Outcome.SUCCEEDED else row["reason"] or row["outcome"]
        lines.append(f"left out: {row['run']} {why}")
    if len(left_out) > _notes.MOST_NAMED:
        lines.append(f"left out: {len(left_out) - _notes.MOST_NAMED} more")
    caveats: dict[str, list[str]] = {}
    for row in used:
        for taint in found.of(row):
            caveats.setdefault(f"{taint['kind']}: {taint['detail']}", []).append(row["run"])
    return lines + [f"{text} ({_notes.named(runs)})" for text, runs in caveats.items()]


def spread(found: Measured, rate: float | None, scale: float) -> str:
    """A rate with its spread, which is as large a share of it as that of the time: `5.27 ± 0.04` over runs,
    `5.27 (0.04)` over the samples of one run."""
    spread_s, over = found.spread_s
    width = None if spread_s is None or rate is None or not found.median_s else rate * spread_s / found.median_s
    text = units.plus_minus(rate, width, "", scale)
    value, plus_minus, after = text.partition(f" {units.PLUS_MINUS} ")
    return f"{value} ({after})" if plus_minus and over == "samples" else text


def spreads(cells: Sequence[Measured]) -> list[str]:
    """What stands behind the numbers, in words."""
    over = {cell.spread_s[1] for cell in cells}
    what = {
        "runs": f"{units.PLUS_MINUS} is the MAD of the medians of several runs",
        "samples": "(in brackets) is the MAD of the samples of one run, which says nothing about another run",
    }
    words = [text for name, text in what.items() if name in over]
    return [f"median of the runs' medians; {'; '.join(words)}"] if words else []


def caption(found: Measured) -> str:
    """The machine's part: "on Apple M1 Max (mps), torch 2.13.0"."""
    return f"on {found.key['device_name'] or found.key['device']}"
