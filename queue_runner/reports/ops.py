"""Coverage of torch's operators on a device: those not native and why, and changes between versions.

A verdict of opcheck is a metric `op/NAME/DTYPE/DIRECTION/VERDICT`, whose value is the median of its timed calls in
seconds; the reason is in a note of the kind `opcheck`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct, field

from queue_runner import units
from queue_runner.analysis.grouping import taints, value_of
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.errors import UsageError
from queue_runner.model import Outcome
from queue_runner.monitor.answers import prepare, select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import footnotes
from queue_runner.reports._common.columns import columns, short, through
from queue_runner.reports._common.document import Result, Section
from queue_runner.tables import Column

NAME = "ops"
HELP = "operators by verdict: native, fallback, missing, wrong, error; differences between versions of torch"
READS = ("vs",)
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND workload = 'opcheck' ORDER BY job_id, number"


VERDICTS = ("native", "fallback", "missing", "wrong", "error", "unchecked")
WORST_FIRST = ("wrong", "error", "missing", "fallback", "unchecked")
BECAME, BROKE, CHANGED, NEW, GONE = "became native", "no longer native", "changed", "new", "gone"
_KEY = (
    "device",
    "device_name",
    "framework_version",
    "env",
    "config",
    "samples",
    "fallbacks",
    "os_version",
    "gpu_driver",
)
"""Names that distinguish tables. A check of two samples does not replace one of all; those of MPS depend on macOS."""
_VERSION = ("framework_version", "env")
"""Names in which tables that are compared by default may differ."""
_ALIASES = {"torch": "framework_version", "version": "framework_version"}
_NOTE = re.compile(r"(\S+) (\S+) (\S+) (\w+)(?: \(\d+ of \d+ samples\))?(?:: (.*))?", re.S)

Cell = tuple[str, str, str]
"""Operator, dtype, direction."""


class OpVerdict(Struct, frozen=True):
    """A run's result for one cell. `median_s` is in seconds per call, None where not timed."""

    run: str
    verdict: str
    median_s: float | None
    detail: str = ""


class Coverage(Struct):
    """One table: the newest verdict on each cell, over all runs with the same settings."""

    key: Mapping[str, Any]
    runs: list[ReportedRun] = field(default_factory=list)
    cells: dict[Cell, OpVerdict] = field(default_factory=dict)
    inventory: dict[str, float] = field(default_factory=dict)

    def label(self) -> str:
        """Return device and version: "cuda, torch 2.13.0"."""
        words = [str(self.key.get("device") or "a device")]
        if version := self.key.get("framework_version"):
            words.append(f"torch {version}")
        words += [f"{name}={value}" for name, value in self.key.items() if value and name not in _SAID]
        return ", ".join(words)

    def put(self, run: str, name: str, value: float | None, details: Mapping[tuple[str, ...], str]) -> None:
        """Add a metric of a run, with its detail by cell and verdict."""
        group, *parts = name.split("/")
        if group == "op" and len(parts) == 4 and parts[3] in VERDICTS:
            op, dtype, direction, verdict = parts
            self.cells[op, dtype, direction] = OpVerdict(run, verdict, value, details.get(tuple(parts), ""))
        elif group != "op" and value is not None:
            self.inventory[name.removeprefix("inventory.")] = value

    def counts(self) -> dict[tuple[str, str], Counter[str]]:
        """Count verdicts by dtype and direction, in the order in which they were checked."""
        counts: dict[tuple[str, str], Counter[str]] = {}
        for (_, dtype, direction), result in self.cells.items():
            counts.setdefault((dtype, direction), Counter())[result.verdict] += 1
        return counts


_SAID = frozenset({"machine", "device", "device_name", "framework_version", "config"})


class OpRow(NamedTuple):
    """A cell with its verdicts: in the current table, whose last run is `last_run`, and in the one `before` it."""

    last_run: ReportedRun
    op: str
    dtype: str
    direction: str
    now: OpVerdict | None
    was: OpVerdict | None
    before: Coverage | None

    @property
    def change(self) -> str | None:
        """The change between the two tables."""
        return _change(self.was, self.now) if self.before else None


class NotNative(NamedTuple):
    """The dtypes and directions in which an operator has the same verdict for the same reason."""

    op: str
    verdict: str
    detail: str
    dtypes: str
    directions: str


class DtypeCount(NamedTuple):
    """How often each verdict occurs for a dtype and a direction."""

    dtype: str
    direction: str
    verdicts: Counter[str]


def _now(key: str, title: str, words: Callable[[Any], str] | None = None, *, flexible: bool = False) -> Column:
    """Return a column of what the current table says of a cell."""
    return Column(key, title, words, words is not None, flexible, value=lambda row: getattr(row.now, key, None))


_BEFORE = Column("before", "before", value=lambda row: row.was and row.was.verdict)
COLUMNS = columns(
    _now("run", "run"),
    *through("last_run", "device device_name"),
    Column("framework_version", "torch", value=attrgetter("last_run.framework_version")),
    Column("env", "env", value=lambda row: row.last_run.factors.get("env")),
    *through("last_run", "config"),
    Column("op", "operator"),
    "dtype direction",
    _now("verdict", "verdict"),
    _now("median_s", "time", units.short_duration),
    _now("detail", "reason"),
    _BEFORE,
    Column("before_of", "before on", value=lambda row: row.before and row.before.label()),
    Column("change", "change"),
)
MOST_ROWS = 30
"""Maximum number of rows in a printed table; csv and json have all."""
MOST_SLOW = 10
_BROKEN = ("wrong", "error")
"""Verdicts to look at first, printed in full."""
_OP = Column("op", "operator", flexible=True)
_NOT_NATIVE = (
    _OP,
    Column("dtypes", "dtypes"),
    Column("directions", "direction"),
    Column("verdict", "verdict"),
    Column("detail", "reason", flexible=True),
)
_SLOW = columns(
    _OP, "dtype direction", _now("median_s", "time/call", short), _now("detail", "computed by the CPU", flexible=True)
)
_CHANGES = columns(
    _OP,
    "dtype direction",
    _BEFORE,
    _now("verdict", "now"),
    Column("detail", "reason", flexible=True, value=lambda row: (row.now and row.now.detail) or row.was.detail),
)


def finish(rows: list[ReportedRun], context: Context) -> Result:
    """Build tables for each device and version: operators not native, slowest fallbacks, changes.

    Raises: UsageError when --vs is invalid.
    """
    runs = prepare.prepare(rows, context)
    tables = _gather(runs, context)
    excluded = [r.run for r in runs if r.outcome not in (None, "SUCCEEDED") or "log_rewritten" in taints(r)]
    notes = [f"excluded (did not succeed, or log rewritten): {footnotes.named(excluded)}"] if excluded else []
    if not tables:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of opcheck with results")], notes=notes)
    pairs = _pairs(tables, context)
    earlier = {id(now): before for before, now in pairs}
    rows_of = {id(table): _rows(table, earlier.get(id(table))) for table in tables}
    raw = [row for table in tables for row in rows_of[id(table)]]
    sections = [section for table in tables for section in _sections(table, rows_of[id(table)])]
    sections += [_changes(before, now, rows_of[id(now)]) for before, now in pairs]
    return Result(COLUMNS, raw, sections, [], [*_legend(tables), *notes])


def _rows(table: Coverage, before: Coverage | None) -> list[OpRow]:
    """Return all cells with their verdicts in both tables, and the cells that only the earlier one has."""
    earlier = before.cells if before else {}
    cells = dict.fromkeys([*table.cells, *earlier])
    return [OpRow(table.runs[-1], *cell, table.cells.get(cell), earlier.get(cell), before) for cell in cells]


def _sections(table: Coverage, rows: Sequence[OpRow]) -> list[Section]:
    made = [_coverage(table)]
    others = _not_native(table)
    if broken := [row for row in others if row.verdict in _BROKEN]:
        lines = [f"{row.op}, {row.dtypes}, {row.directions}: {row.verdict}: {row.detail}" for row in broken[:MOST_ROWS]]
        made.append(Section(f"wrong or error, {table.label()}", (), [], lines + _more(len(broken))))
    if lacking := [row for row in others if row.verdict not in _BROKEN]:
        title = f"{'not' if len(lacking) == len(others) else 'otherwise not'} native, {table.label()}"
        made.append(Section(title, _NOT_NATIVE, lacking[:MOST_ROWS], _more(len(lacking))))
    slow = [
        (op.now.median_s, op) for op in rows if op.now and op.now.verdict == "fallback" and op.now.median_s is not None
    ]
    if slow:
        slow.sort(key=lambda pair: -pair[0])
        made.append(Section(f"slowest fallbacks, {table.label()}", _SLOW, [op for _, op in slow[:MOST_SLOW]]))
    return made


def _coverage(table: Coverage) -> Section:
    counts = [DtypeCount(*place, verdicts) for place, verdicts in table.counts().items()]
    used = [verdict for verdict in VERDICTS if any(row.verdicts[verdict] for row in counts)]
    columns = [
        Column("dtype", "dtype"),
        Column("direction", "direction"),
        Column("n", "total", units.count, True, value=lambda row: row.verdicts.total()),
        *(_of_verdict(verdict) for verdict in used),
    ]
    name = table.key.get("device_name")
    config = f" {table.key['config']}" if table.key.get("config") else ""
    runs = " ".join(row.run for row in table.runs)
    title = f"opcheck{config}, {table.label()}{f', on {name}' if name else ''} (run {runs})"
    n, native = len(table.cells), sum(result.verdict == "native" for result in table.cells.values())
    share = f"native: {units.percent(native / n)} of {units.count(n)}"
    return Section(title, columns, counts, [share, *_inventory(table)])


def _of_verdict(verdict: str) -> Column:
    return Column(verdict, verdict, units.count, True, value=lambda row: row.verdicts[verdict])


def _inventory(table: Coverage) -> list[str]:
    known = table.inventory
    if not {"functions", "with_mps", "without_mps"} <= known.keys():
        return []
    return [
        f"native_functions.yaml of this torch: {units.count(known['functions'])} functions, "
        f"{units.count(known['with_mps'])} with an MPS kernel, {units.count(known['without_mps'])} with kernels for "
        "CPU and CUDA but not for MPS"
    ]


def _not_native(table: Coverage) -> list[NotNative]:
    """Return a row for each operator, verdict and reason, with the dtypes and directions that share it, worst first."""
    directions: dict[tuple[str, str, str, str], list[str]] = {}
    for (op, dtype, direction), result in table.cells.items():
        if result.verdict != "native":
            directions.setdefault((op, result.verdict, result.detail, dtype), []).append(direction)
    dtypes: dict[tuple[str, str, str, str], list[str]] = {}
    for (op, verdict, detail, dtype), shared_by in directions.items():
        dtypes.setdefault((op, verdict, detail, "both" if len(shared_by) > 1 else shared_by[0]), []).append(dtype)
    rows = [
        NotNative(op, verdict, detail, " ".join(names), shared_by)
        for (op, verdict, detail, shared_by), names in dtypes.items()
    ]
    return sorted(rows, key=lambda row: (WORST_FIRST.index(row.verdict), row.op))


def _changes(before: Coverage, now: Coverage, rows: Sequence[OpRow]) -> Section:
    counts = Counter(row.change for row in rows)
    words = [f"{units.count(counts[word])} {word}" for word in (BECAME, BROKE, CHANGED, NEW, GONE) if counts[word]]
    changed = [row for word in (BROKE, CHANGED, BECAME) for row in rows if row.change == word]
    title = f"{before.label()} -> {now.label()}: {', '.join(words) or 'no verdict changed'}"
    return Section(title, _CHANGES, changed[:MOST_ROWS], _more(len(changed)))


def _more(n: int) -> list[str]:
    return [f"... and {units.count(n - MOST_ROWS)} more (--json and --format csv list all)"] if n > MOST_ROWS else []


def _legend(tables: Sequence[Coverage]) -> list[str]:
    """Explain the verdicts that occur."""
    used = {result.verdict for table in tables for result in table.cells.values()}
    words = {
        "fallback": "fallback: computed by the CPU for the device (PYTORCH_ENABLE_MPS_FALLBACK=1)",
        "missing": "missing: not implemented for the device, or not in that dtype",
        "wrong": "wrong: differs from the CPU by more than the dtype's tolerance and more than 16 times the CPU's own"
        " rounding error",
        "error": "error: exception, crash, timeout or out of memory",
        "unchecked": "unchecked: it ran, but the CPU has no result to compare with",
    }
    texts = [text for verdict, text in words.items() if verdict in used]
    return [*texts, "an operator gets the worst verdict of its samples, which are small: times are launch overhead"]


def _gather(rows: Sequence[ReportedRun], context: Context) -> list[Coverage]:
    """Return the tables of the successful prepared rows."""
    able = [r for r in rows if r.outcome == Outcome.SUCCEEDED and "log_rewritten" not in taints(r)]
    able.sort(key=lambda r: (r.job_id, r.number))
    metrics = context.tuples_by_run(  # in reported order, since a later one corrects an earlier one
        "SELECT run_id, name, value FROM v_metric WHERE run_id IN ({runs})"
        " AND (name LIKE 'op/%' OR name LIKE 'inventory.%') ORDER BY run_id, offset",
        able,
    )
    notes = context.tuples_by_run("SELECT run_id, text FROM notes WHERE run_id IN ({runs}) AND kind = 'opcheck'", able)
    tables: dict[tuple[Any, ...], Coverage] = {}
    for row in able:
        key = {name: value_of(row, name) for name in ("machine", *_KEY)}
        table = tables.setdefault(tuple(key.values()), Coverage(key))
        table.runs.append(row)
        texts = [_NOTE.fullmatch(text) for (text,) in notes.get(row.run_id, [])]
        details = {match.groups()[:4]: match[5] or "" for match in texts if match}
        for name, value in metrics.get(row.run_id, []):
            table.put(row.run, name, value, details)
    return [table for table in tables.values() if table.cells]


def _pairs(tables: Sequence[Coverage], context: Context) -> list[tuple[Coverage, Coverage]]:
    """Return tables to compare, earlier first: each with the --vs baseline, or adjacent versions of one device.

    Raises: UsageError when the baseline is missing or ambiguous.
    """
    baseline = {_ALIASES.get(name, name): value for name, value in context.options.vs.items()}
    if unknown := next((name for name in baseline if name not in _KEY), ""):
        raise UsageError(f'--vs: no table has a "{unknown}"', f"use one of {', '.join(_KEY)}")
    if not baseline:

        def without_versions(table: Coverage) -> tuple[Any, ...]:
            return tuple((name, value) for name, value in table.key.items() if name not in _VERSION)

        several = by_key(tables, without_versions).values()
        return [pair for versions in several for pair in pairwise(sorted(versions, key=_order))]
    fitting = [table for table in tables if all(str(table.key[name]) == value for name, value in baseline.items())]
    if len(fitting) != 1:
        text = ",".join(f"{name}={value}" for name, value in baseline.items())
        labels = "; ".join(dict.fromkeys(table.label() for table in tables))
        raise UsageError(
            f"the report has several tables, and --vs {text} fits {len(fitting) or 'none'} of them",
            f"name exactly one: {labels}",
        )
    return [(fitting[0], table) for table in tables if table is not fitting[0]]


def _order(table: Coverage) -> tuple[list[int], str, str]:
    """Return a sort key with versions as numbers: 2.9 is before 2.13."""
    text = str(table.key.get("framework_version") or "")
    return [int(part) for part in re.findall(r"\d+", text.split("+")[0])], text, str(table.key.get("env") or "")


def _change(before: OpVerdict | None, now: OpVerdict | None) -> str:
    """Return the change of a cell between two tables; empty if there is none."""
    if before is None or now is None:
        return NEW if before is None else GONE
    if before.verdict == now.verdict:
        return ""
    return BECAME if now.verdict == "native" else BROKE if before.verdict == "native" else CHANGED
