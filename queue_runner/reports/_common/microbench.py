"""Reports of micro-benchmarks: a row for each cell, which is a case that a job measured (n1000, linear.forward).

The samples of a cell are the metrics CELL.time, its work is CELL.flop and CELL.bytes (jobs/harness/microbench/run.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis import stats
from queue_runner.analysis.grouping import Arm, group, not_replaced, word
from queue_runner.analysis.peaks import Peak
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.model import Outcome
from queue_runner.monitor.answers import prepare, select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import footnotes
from queue_runner.reports._common.arm_rows import ArmNumbers, of_arm
from queue_runner.reports._common.columns import columns, shared, short, through
from queue_runner.reports._common.device_peaks import Peaks
from queue_runner.reports._common.document import Result, Section
from queue_runner.tables import Column

_HOW = frozenset({"max_iters", "warmup_iters", "calls", "sample_ms", "timing", "mode", "largest", "smallest"})
"""Settings of the measurement: how, and for how long."""
_WHAT = frozenset({"n", "op", "direction", "memory"})
"""Settings that the name of a cell includes."""
_KEY = ("machine", "framework", "framework_version", "device", "device_name", "compile", "dtype", "where", "config")
_SETTINGS, _CELL = "(settings)", "(cell)"
Metrics = Mapping[str, Sequence[float]]
"""The values that a run reported of a cell, by name, and those of the whole run: roof.flops."""


class CellRow(ArmNumbers, Struct, frozen=True, kw_only=True):
    """One cell, of the shown runs of one arm. Times are in seconds per call; the iterations of a single run are
    samples. It is `excluded` if no run is valid."""

    arm: Arm
    version: str | None
    """the version of the framework, where the report has several"""
    samples_s: Sequence[float]
    peak: Peak | None
    medians: Mapping[str, float]
    """medians over the runs of all other metrics"""

    run = of_arm(lambda arm: arm.shown[0])
    cell = of_arm(lambda arm: str(arm.key[_CELL]))
    settings = of_arm(lambda arm: str(arm.key[_SETTINGS]))
    runs = of_arm(lambda arm: [run.run for run in arm.shown])
    n_runs = of_arm(lambda arm: len(arm.shown))
    median_s = of_arm(lambda arm: arm.median_s or 0.0)
    spread_over = of_arm(lambda arm: "samples" if arm.spread_s[1] == "iterations" else arm.spread_s[1])
    excluded = of_arm(lambda arm: not all(run.valid for run in arm.shown))

    @property
    def flops_per_s(self) -> float | None:
        """Floating-point operations per second."""
        return self._per_s("flop")

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes moved per second."""
        return self._per_s("bytes")

    def _per_s(self, name: str) -> float | None:
        work = self.medians.get(name)
        return work / self.median_s if work and self.median_s > 0 else None


PLACE = through("run", "framework framework_version device device_name")
NUMBERS = columns(
    "runs n_runs",
    shared("n_samples", lambda cell: len(cell.samples_s)),
    "median_s spread_s spread_over",
    shared("q1_s", lambda cell: stats.quartiles(cell.samples_s)[0]),
    shared("q3_s", lambda cell: stats.quartiles(cell.samples_s)[1]),
)


class Microbench(Struct, frozen=True):
    """The report of one workload: its columns, and how it shows the cells of a table."""

    workload: str
    columns: Sequence[Column]
    title: Callable[[CellRow], str]
    sections: Callable[[str, Sequence[CellRow], Column], Iterable[Section]]
    """of a table, from its title, its cells and the column of caveats"""
    notes: Callable[[Sequence[CellRow]], Iterable[str]]
    findings: Callable[[Sequence[CellRow]], Iterable[str]] = lambda _cells: ()
    order: Callable[[CellRow], Any] = lambda _cell: 0
    with_config: bool = False
    """whether a preset distinguishes cells"""

    @property
    def sql(self) -> str:
        where = f"{{chosen}} AND workload = '{self.workload}'"
        return f"SELECT {prepare.RUN} FROM v_run WHERE {where} ORDER BY job_id, number"

    def finish(self, runs: list[ReportedRun], context: Context) -> Result:
        """Build the tables of each machine."""
        runs = prepare.prepare(runs, context)
        include_invalid = context.options.include_invalid
        cells = sorted(_cells(runs, context, self.with_config), key=self.order)
        shown = {run.run_id: run for cell in cells for run in cell.arm.shown}
        marks = footnotes.CaveatMarks(runs, shown.values(), context)
        ended = [run for run in not_replaced(runs) if run.outcome is not None]
        used = {run.run_id for run in shown.values() if run.valid or include_invalid}
        notes = [*marks.notes(), *marks.excluded(ended, used)]
        if any(not run.valid for run in shown.values()) and not include_invalid:
            notes.append(f"a row marked {footnotes.EXCLUDED} has no valid run: its numbers come from invalid ones")
        if not cells:
            nothing = select_runs.nothing(context, f"of {self.workload} with results")
            return Result(self.columns, [], lines=[nothing], notes=notes)
        sections: list[Section] = []
        lines: list[str] = []
        for (_, title), table in by_key(cells, lambda cell: (cell.run.machine, self.title(cell))).items():
            sections += self.sections(title, table, marks.column)
            lines += self.findings([cell for cell in table if cell.valid or include_invalid])
        spreads = footnotes.spreads("time: geometric mean of the run medians", {cell.spread_over for cell in cells})
        return Result(self.columns, cells, sections, lines, [*self.notes(cells), *spreads, *notes])


def _cells(runs: Sequence[ReportedRun], context: Context, with_config: bool) -> list[CellRow]:
    """Return the cells that the successful runs measured."""
    able = [
        run.changed(subject="", config=run.config if with_config else None)
        for run in runs
        if run.outcome == Outcome.SUCCEEDED
    ]
    select = "SELECT run_id, name, value FROM v_metric WHERE run_id IN ({runs}) AND value IS NOT NULL"
    reported = context.tuples_by_run(select, able)
    settings, peaks = _settings(able), Peaks(context)
    metrics: dict[tuple[int, str], Metrics] = {}
    timed = []
    for run in able:
        cells: dict[str, dict[str, list[float]]] = {}
        for path, value in reported.get(run.run_id, []):
            cell, _, name = path.rpartition(".")
            cells.setdefault(cell, {}).setdefault(name, []).append(value)
        roof = {f"roof.{name}": values for name, values in cells.get("roof", {}).items()}
        for cell, values in cells.items():
            if times := values.get("time"):
                metrics[run.run_id, cell] = {**values, **roof}
                mad_s = stats.mad(times) if len(times) > 1 else None
                factors = {_SETTINGS: settings[run.run_id], _CELL: cell}
                spread = run.changed(median_s=stats.median(times), mad_s=mad_s, n_measure=len(times))
                timed.append(spread.changed(factors=factors))
    arms = group(timed, [*_KEY, _SETTINGS, _CELL], context.options.include_invalid)
    versions = Counter(name for name, _ in {(arm.key["framework"], arm.key["framework_version"]) for arm in arms})
    several = {name for name, n in versions.items() if n > 1}
    return [_cell(arm, [metrics[run.run_id, arm.key[_CELL]] for run in arm.shown], several, peaks) for arm in arms]


def _cell(arm: Arm, metrics: Sequence[Metrics], several: Collection[str], peaks: Peaks) -> CellRow:
    key, names = arm.key, {name for values in metrics for name in values} - {"time"}
    return CellRow(
        arm=arm,
        version=key["framework_version"] if key["framework"] in several else None,
        samples_s=[time_s for values in metrics for time_s in values["time"]],
        peak=peaks.find(key["machine"], key["device"], key["device_name"], key["dtype"], or_measured=True),
        medians={name: stats.median(stats.median(x[name]) for x in metrics if name in x) for name in names},
    )


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


def label(cell: CellRow, device: bool = True) -> str:
    """Return where and how a cell was measured: "torch cpu", "torch cpu compiled"."""
    run = cell.run
    compiled = word("compile", run.compile) if run.compile else ""
    words = [run.framework, cell.version, run.device if device else "", compiled, cell.settings]
    return " ".join(str(part) for part in words if part)


def caption(cell: CellRow) -> str:
    """Return where a cell was measured: "on Apple M1 Max"."""
    return ", ".join(filter(None, [f"on {cell.run.device_name or cell.run.device}", cell.run.where]))


def _spread(cell: CellRow) -> str:
    """Format the spread as a share of the median: "0.8 %" over runs, "(0.8 %)" over the samples of one run."""
    known = cell.spread_s is not None and cell.median_s
    text = units.percent((cell.spread_s or 0.0) / cell.median_s, 2) if known else units.MISSING
    return f"({text})" if cell.spread_over == "samples" else text


RUNS = Column("n_runs", "runs", units.count, True)
TIME = Column("median_s", "time", short, True)
SPREAD = Column("spread", units.PLUS_MINUS, right=True, value=_spread)
GB_PER_S = Column("bytes_per_s", "GB/s", lambda rate: units.number(rate and rate / 1e9, 3), True)


def rates(cells: Sequence[CellRow], *columns: Column) -> list[Column]:
    """Return columns of FLOP/s, all in TFLOP/s or GFLOP/s, whichever suits the highest; their titles come before the
    unit."""
    fastest = max((column.of(cell) or 0.0 for cell in cells for column in columns), default=0.0)
    size, unit = (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")

    def words(x: float | None) -> str:
        return units.number(None if x is None else x / size, 3)

    return [replace(column, title=f"{column.title} {unit}".strip(), words=words) for column in columns]


RATE = Column("flops_per_s", "", right=True)
