"""Micro-benchmarks: the metrics that jobs/harness/microbench/run.py reports become a row for each operation measured.

A run has cells, the cases it measured (n1000, linear.forward). The samples of a cell are the metrics CELL.time, its
work is CELL.flop and CELL.bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import units
from queue_runner.analysis import stats
from queue_runner.analysis.grouping import by_key, taints, word
from queue_runner.model import Outcome
from queue_runner.reports._common import footnotes, prepare
from queue_runner.reports._common.columns import RowColumn, short
from queue_runner.reports._common.document import Context, Row
from queue_runner.tables import Column

_HOW = frozenset({"max_iters", "warmup_iters", "calls", "sample_ms", "timing", "mode", "largest", "smallest"})
"""Settings of the measurement: how, and for how long."""
_WHAT = frozenset({"n", "op", "direction", "memory"})
"""Settings that the name of a cell includes."""
_KEY = ("machine", "framework", "framework_version", "device", "device_name", "compile", "dtype", "where")
"""Columns that distinguish results, besides the config and the settings."""


@dataclass(frozen=True)
class Bench:
    """The cells over all their valid runs as rows, raw and in SI units; `notes` list what was left out.

    `facts` of a row are medians over the runs of CELL.flop, CELL.bytes, CELL.time_unsynced, and of values of the whole
    run: roof.flops. `version` is that of the framework, if other rows have another one.
    """

    rows: Sequence[Row]
    taints: footnotes.CaveatMarks
    notes: Sequence[str]


def sql(workload: str) -> str:
    """Return the SELECT for the runs of a micro-benchmark workload."""
    return f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND workload = '{workload}' ORDER BY job_id, number"


def measured(rows: Sequence[Row], context: Context, with_config: bool) -> Bench:
    """Return the results of runs. `with_config`: whether a preset distinguishes cells (the sizes of `kernels`).

    Raises: UsageError when --vs, --group-by or --iters is given.
    """
    rows = prepare.uncompared(rows, context, "reports of micro-benchmarks take")
    able = [row for row in rows if row["outcome"] == Outcome.SUCCEEDED]
    select = "SELECT run_id, name, value FROM v_metric WHERE run_id IN ({runs}) AND value IS NOT NULL"
    metrics = context.by_run(select, able)
    keys = _keys(able, with_config)
    parts: dict[tuple[Any, ...], list[tuple[Row, Mapping[str, list[float]]]]] = {}
    for row in able:
        cells = _by_cell(metrics.get(row["run_id"], []))
        shared = {f"roof.{name}": values for name, values in cells.get("roof", {}).items()}
        for cell, values in cells.items():
            if values.get("time"):
                place = (*keys[row["run_id"]].values(), cell)
                parts.setdefault(place, []).append((row, {**values, **shared}))
    invalid_too = context.options.include_invalid
    made: list[Row] = []
    shown: dict[int, Row] = {}
    for place, found in parts.items():
        used = [part for part in found if part[0]["valid"] or invalid_too] or found
        shown |= {row["run_id"]: row for row, _ in used}
        made.append({**keys[used[0][0]["run_id"]], "cell": place[-1], **_numbers(used)})
    versions = Counter(framework for framework, _ in {(row["framework"], row["framework_version"]) for row in made})
    for row in made:
        row["version"] = row["framework_version"] if versions[row["framework"]] > 1 else None
    found_taints = footnotes.CaveatMarks(rows, shown.values(), context)
    bad = [row for row in rows if row["outcome"] is not None and (row["run_id"] not in shown or not row["valid"])]
    notes = [*found_taints.notes(), *found_taints.excluded(bad, invalid_too)]
    if any(not row["valid"] for row in shown.values()) and not invalid_too:
        notes.append(f"a row marked {footnotes.EXCLUDED} has no valid run: its numbers are of invalid ones")
    return Bench(made, found_taints, notes)


def _keys(rows: Sequence[Row], with_config: bool) -> dict[int, dict[str, Any]]:
    """Return by run what distinguishes its results. `settings`, as text, are followed by the versions and variables in
    which otherwise equal runs differ."""
    found = {}
    for group in by_key(rows, lambda row: tuple(_key(row, with_config).values())).values():
        names = {name for row in group for name in row["factors"]} - {name for row in group for name in row["settings"]}
        differ = [name for name in sorted(names) if len({str(row["factors"].get(name)) for row in group}) > 1]
        for row in group:
            key = _key(row, with_config)
            words = [word(name, value) for name in differ if (value := row["factors"].get(name)) is not None]
            found[row["run_id"]] = {**key, "settings": " ".join(filter(None, [key["settings"], *words]))}
    return found


def _key(row: Row, with_config: bool) -> dict[str, Any]:
    settings = [f"{name}={row['settings'][name]}" for name in sorted(row["settings"].keys() - _HOW - _WHAT)]
    config = row["config"] if with_config else None
    return {**{name: row[name] for name in _KEY}, "config": config, "settings": " ".join(settings)}


def _by_cell(metrics: Iterable[Row]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for metric in metrics:
        cell, _, name = metric["name"].rpartition(".")
        found.setdefault(cell, {}).setdefault(name, []).append(metric["value"])
    return found


def _numbers(parts: Sequence[tuple[Row, Mapping[str, list[float]]]]) -> dict[str, Any]:
    """Return the numbers of a cell, from its runs with their metrics. Times are in seconds per call; the spread is the
    MAD over the medians of several runs, or over the samples of a single one."""
    runs = [row for row, _ in parts]
    medians_s = [stats.median(values["time"]) for _, values in parts]
    samples_s = [time_s for _, values in parts for time_s in values["time"]]
    median_s = stats.median(medians_s)
    q1_s, q3_s = stats.quartiles(samples_s)
    spread_of, over = (medians_s, "runs") if len(runs) > 1 else (samples_s, "samples")
    names = sorted({name for _, values in parts for name in values} - {"time"})
    facts = {name: stats.median(stats.median(of[name]) for _, of in parts if name in of) for name in names}
    flop, moved = facts.get("flop"), facts.get("bytes")
    valid = all(row["valid"] for row in runs)
    return {
        "runs": [row["run"] for row in runs],
        "n_runs": len(runs),
        "n_samples": len(samples_s),
        "median_s": median_s,
        "spread_s": stats.mad(spread_of) if len(spread_of) > 1 else None,
        "spread_over": over if len(spread_of) > 1 else None,
        "q1_s": q1_s,
        "q3_s": q3_s,
        "flops_per_s": flop / median_s if flop and median_s > 0 else None,
        "bytes_per_s": moved / median_s if moved and median_s > 0 else None,
        "facts": facts,
        "valid": valid,
        "excluded": not valid,
        "taints": sorted({kind for row in runs for kind in taints(row)}),
    }


def label(row: Mapping[str, Any], device: bool = True) -> str:
    """Return where and how a row ran: "torch cpu", "torch cpu compiled"."""
    compiled = word("compile", row["compile"]) if row["compile"] else ""
    words = [row["framework"], row["version"], row["device"] if device else "", compiled, row["settings"]]
    return " ".join(str(part) for part in words if part)


def caption(row: Mapping[str, Any]) -> str:
    """Return where a row ran: "on Apple M1 Max"."""
    return ", ".join(filter(None, [f"on {row['device_name'] or row['device']}", row["where"]]))


def tables(rows: Iterable[Row], title: Callable[[Row], str]) -> list[tuple[str, list[Row]]]:
    """Return the title and the rows of each table; a table is of one machine."""
    by_place = by_key(rows, lambda row: (row["machine"], title(row)))
    return [(title, found) for (_, title), found in by_place.items()]


def _spread(row: Mapping[str, Any]) -> str:
    """Format the spread as a share of the median: "0.8 %" over runs, "(0.8 %)" over the samples of one run."""
    spread_s, median_s = row["spread_s"], row["median_s"]
    text = units.percent(spread_s / median_s, 2) if spread_s is not None and median_s else units.MISSING
    return f"({text})" if row["spread_over"] == "samples" else text


RUNS = Column("n_runs", "runs", units.count, True)
TIME = Column("median_s", "time", short, True)
SPREAD = RowColumn("spread", units.PLUS_MINUS, _spread, True)


def rates(rows: Sequence[Mapping[str, Any]], **titles: str) -> list[Column]:
    """Return columns of FLOP/s by key and title, all in TFLOP/s or GFLOP/s, whichever suits the highest."""
    fastest = max((row[key] or 0.0 for row in rows for key in titles), default=0.0)
    size, unit = (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")

    def words(x: float | None) -> str:
        return units.number(None if x is None else x / size, 3)

    return [Column(key, f"{title} {unit}".strip(), words, True) for key, title in titles.items()]


def spreads(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Explain times and spreads."""
    return footnotes.spreads("time: median of the run medians", {row["spread_over"] for row in rows})
