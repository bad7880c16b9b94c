"""Reports of micro-benchmarks: a row for each cell, which is a case that a job measured (n1000, linear.forward).

The samples of a cell are the metrics CELL.time, its work is CELL.flop and CELL.bytes (jobs/harness/microbench/run.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queue_runner import units
from queue_runner.analysis import stats
from queue_runner.analysis.grouping import Arm, by_key, group, taints, word
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.model import Outcome
from queue_runner.reports._common import footnotes, prepare, select_runs
from queue_runner.reports._common.columns import RowColumn, short
from queue_runner.reports._common.device_peaks import Peaks
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.tables import Column

_HOW = frozenset({"max_iters", "warmup_iters", "calls", "sample_ms", "timing", "mode", "largest", "smallest"})
"""Settings of the measurement: how, and for how long."""
_WHAT = frozenset({"n", "op", "direction", "memory"})
"""Settings that the name of a cell includes."""
_KEY = ("machine", "framework", "framework_version", "device", "device_name", "compile", "dtype", "where", "config")
_SETTINGS, _CELL = "(settings)", "(cell)"
Metrics = Mapping[str, Sequence[float]]
"""The values that a run reported of a cell, by name, and those of the whole run: roof.flops."""


@dataclass(frozen=True)
class Microbench:
    """The report of one workload: what it adds to the row of a cell, and how it shows the rows of a table."""

    workload: str
    columns: Sequence[Column]
    values: Callable[[Row, Peaks], Row]
    title: Callable[[Row], str]
    sections: Callable[[str, Sequence[Row], Column], Iterable[Section]]
    """of a table, from its title, its rows and the column of caveats"""
    notes: Callable[[Sequence[Row]], Iterable[str]]
    findings: Callable[[Sequence[Row]], Iterable[str]] = lambda _rows: ()
    order: Callable[[Row], Any] = lambda _row: 0
    with_config: bool = False
    """whether a preset distinguishes cells"""

    @property
    def sql(self) -> str:
        where = f"{{chosen}} AND workload = '{self.workload}'"
        return f"SELECT {prepare.RUN} FROM v_run WHERE {where} ORDER BY job_id, number"

    def finish(self, runs: list[ReportedRun], context: Context) -> Result:
        """Build the tables of each machine. Raises: UsageError when --vs, --group-by or --iters is given."""
        runs = prepare.uncompared(runs, context, "reports of micro-benchmarks take")
        include_invalid, peaks = context.options.include_invalid, Peaks(context)
        rows, shown = _rows(runs, context, self.with_config)
        rows = sorted(({**row, **self.values(row, peaks)} for row in rows), key=self.order)
        marks = footnotes.CaveatMarks(runs, shown.values(), context)
        invalid = [run for run in runs if run.outcome is not None and (run.run_id not in shown or not run.valid)]
        notes = [*marks.notes(), *marks.excluded(invalid, include_invalid)]
        if any(not run.valid for run in shown.values()) and not include_invalid:
            notes.append(f"a row marked {footnotes.EXCLUDED} has no valid run: its numbers are of invalid ones")
        if not rows:
            nothing = select_runs.nothing(context, f"of {self.workload} with results")
            return Result(self.columns, [], lines=[nothing], notes=notes)
        sections: list[Section] = []
        lines: list[str] = []
        for (_, title), table in by_key(rows, lambda row: (row["machine"], self.title(row))).items():
            sections += self.sections(title, table, marks.column)
            lines += self.findings([row for row in table if row["valid"] or include_invalid])
        spreads = footnotes.spreads("time: median of the run medians", {row["spread_over"] for row in rows})
        return Result(self.columns, rows, sections, lines, [*self.notes(rows), *spreads, *notes])


def _rows(runs: Sequence[ReportedRun], context: Context, with_config: bool) -> tuple[list[Row], dict[int, ReportedRun]]:
    """Return a row for each cell, raw and in SI units, and the runs whose numbers they are."""
    able = [
        replace(run, subject="", config=run.config if with_config else None)
        for run in runs
        if run.outcome == Outcome.SUCCEEDED
    ]
    select = "SELECT run_id, name, value FROM v_metric WHERE run_id IN ({runs}) AND value IS NOT NULL"
    reported = context.by_run(select, able)
    settings = _settings(able)
    metrics: dict[tuple[int, str], Metrics] = {}
    timed = []
    for run in able:
        cells: dict[str, dict[str, list[float]]] = {}
        for metric in reported.get(run.run_id, []):
            cell, _, name = metric["name"].rpartition(".")
            cells.setdefault(cell, {}).setdefault(name, []).append(metric["value"])
        roof = {f"roof.{name}": values for name, values in cells.get("roof", {}).items()}
        for cell, values in cells.items():
            if times := values.get("time"):
                metrics[run.run_id, cell] = {**values, **roof}
                mad_s = stats.mad(times) if len(times) > 1 else None
                factors = {_SETTINGS: settings[run.run_id], _CELL: cell}
                spread = replace(run, median_s=stats.median(times), mad_s=mad_s, n_measure=len(times))
                timed.append(replace(spread, factors=factors))
    arms = group(timed, [*_KEY, _SETTINGS, _CELL], context.options.include_invalid)
    rows = [_row(arm, [metrics[run.run_id, arm.key[_CELL]] for run in arm.shown]) for arm in arms]
    versions = Counter(framework for framework, _ in {(row["framework"], row["framework_version"]) for row in rows})
    for row in rows:
        row["version"] = row["framework_version"] if versions[row["framework"]] > 1 else None
    return rows, {run.run_id: run for arm in arms for run in arm.shown}


def _settings(runs: Sequence[ReportedRun]) -> dict[int, str]:
    """Return by run its settings as text, and the versions and variables in which otherwise equal runs differ."""

    def requested(run: ReportedRun) -> str:
        return " ".join(f"{name}={run.settings[name]}" for name in sorted(run.settings.keys() - _HOW - _WHAT))

    texts = {}
    for same in by_key(runs, lambda run: (*(getattr(run, name) for name in _KEY), requested(run))).values():
        names = {name for run in same for name in run.factors} - {name for run in same for name in run.settings}
        differ = [name for name in sorted(names) if len({str(run.factors.get(name)) for run in same}) > 1]
        for run in same:
            words = [word(name, value) for name in differ if (value := run.factors.get(name)) is not None]
            texts[run.run_id] = " ".join(filter(None, [requested(run), *words]))
    return texts


def _row(arm: Arm, metrics: Sequence[Metrics]) -> Row:
    """Return the numbers of a cell. Times are in seconds per call; the spread is the MAD over the medians of several
    runs, or over the samples of a single one; `facts` are medians over the runs of all other metrics."""
    samples_s = [time_s for values in metrics for time_s in values["time"]]
    median_s = arm.median("median_s") or 0.0
    mad_s, over = arm.spread_s
    q1_s, q3_s = stats.quartiles(samples_s)
    names = sorted({name for values in metrics for name in values} - {"time"})
    facts = {name: stats.median(stats.median(of[name]) for of in metrics if name in of) for name in names}
    flop, moved = facts.get("flop"), facts.get("bytes")
    valid = all(run.valid for run in arm.shown)
    return {
        **{name: arm.key[name] for name in _KEY},
        "settings": arm.key[_SETTINGS],
        "cell": arm.key[_CELL],
        "runs": [run.run for run in arm.shown],
        "n_runs": len(arm.shown),
        "n_samples": len(samples_s),
        "median_s": median_s,
        "spread_s": mad_s,
        "spread_over": "samples" if over == "iterations" else over,
        "q1_s": q1_s,
        "q3_s": q3_s,
        "flops_per_s": flop / median_s if flop and median_s > 0 else None,
        "bytes_per_s": moved / median_s if moved and median_s > 0 else None,
        "facts": facts,
        "valid": valid,
        "excluded": not valid,
        "taints": sorted({kind for run in arm.shown for kind in taints(run)}),
    }


def label(row: Row, device: bool = True) -> str:
    """Return where and how a row ran: "torch cpu", "torch cpu compiled"."""
    compiled = word("compile", row["compile"]) if row["compile"] else ""
    words = [row["framework"], row["version"], row["device"] if device else "", compiled, row["settings"]]
    return " ".join(str(part) for part in words if part)


def caption(row: Row) -> str:
    """Return where a row ran: "on Apple M1 Max"."""
    return ", ".join(filter(None, [f"on {row['device_name'] or row['device']}", row["where"]]))


def _spread(row: Mapping[str, Any]) -> str:
    """Format the spread as a share of the median: "0.8 %" over runs, "(0.8 %)" over the samples of one run."""
    spread_s, median_s = row["spread_s"], row["median_s"]
    text = units.percent(spread_s / median_s, 2) if spread_s is not None and median_s else units.MISSING
    return f"({text})" if row["spread_over"] == "samples" else text


RUNS = Column("n_runs", "runs", units.count, True)
TIME = Column("median_s", "time", short, True)
SPREAD = RowColumn("spread", units.PLUS_MINUS, _spread, True)
GB_PER_S = Column("bytes_per_s", "GB/s", lambda rate: units.number(rate and rate / 1e9, 3), True)


def rates(rows: Sequence[Row], **titles: str) -> list[Column]:
    """Return columns of FLOP/s by key and title, all in TFLOP/s or GFLOP/s, whichever suits the highest."""
    fastest = max((row[key] or 0.0 for row in rows for key in titles), default=0.0)
    size, unit = (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")

    def words(x: float | None) -> str:
        return units.number(None if x is None else x / size, 3)

    return [Column(key, f"{title} {unit}".strip(), words, True) for key, title in titles.items()]
