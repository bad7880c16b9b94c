"""Coverage of torch's operators on a device: those not native and why, and changes between versions.

A verdict of opcheck is a metric `op/NAME/DTYPE/DIRECTION/VERDICT`, whose value is the median of its timed calls in
seconds; the reason is in a note of the kind `opcheck`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
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


class Coverage(Struct, dict=True):
    """One table: the newest verdict on each cell, over all runs with the same settings. `before` is the table that it
    is compared with."""

    key: Mapping[str, Any]
    runs: list[ReportedRun] = field(default_factory=list)
    cells: dict[Cell, OpVerdict] = field(default_factory=dict)
    before: Coverage | None = None

    @property
    def last_run(self) -> ReportedRun:
        return self.runs[-1]

    @cached_property
    def label(self) -> str:
        """Device and version: "cuda, torch 2.13.0"."""
        words = [str(self.key.get("device") or "a device")]
        if version := self.key.get("framework_version"):
            words.append(f"torch {version}")
        words += [f"{name}={value}" for name, value in self.key.items() if value and name not in _SAID]
        return ", ".join(words)

    @cached_property
    def rows(self) -> list[OpRow]:
        """All cells with their verdicts in both tables, those that only the earlier one has at the end."""
        earlier = self.before.cells if self.before else {}
        cells = dict.fromkeys([*self.cells, *earlier])
        return [OpRow(self, *cell, self.cells.get(cell), earlier.get(cell)) for cell in cells]


_SAID = frozenset({"machine", "device", "device_name", "framework_version", "config"})


class OpRow(NamedTuple):
    """A cell of a table with its verdicts: there, and in the table before."""

    table: Coverage
    op: str
    dtype: str
    direction: str
    now: OpVerdict | None
    was: OpVerdict | None

    @property
    def change(self) -> str | None:
        """The change between the two tables; "" if there is none."""
        if self.table.before is None:
            return None
        if self.was is None or self.now is None:
            return NEW if self.was is None else GONE
        if self.was.verdict == self.now.verdict:
            return ""
        return BECAME if self.now.verdict == "native" else BROKE if self.was.verdict == "native" else CHANGED


class NotNative(NamedTuple):
    """The dtypes and directions in which an operator has the same verdict for the same reason."""

    op: str
    verdict: str
    detail: str
    directions: str
    dtypes: str


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
    *through("table.last_run", "device device_name"),
    Column("framework_version", "torch", value=attrgetter("table.last_run.framework_version")),
    Column("env", "env", value=lambda row: row.table.last_run.factors.get("env")),
    *through("table.last_run", "config"),
    Column("op", "operator"),
    "dtype direction",
    _now("verdict", "verdict"),
    _now("median_s", "time", units.short_duration),
    _now("detail", "reason"),
    _BEFORE,
    Column("before_of", "before on", value=lambda row: row.table.before and row.table.before.label),
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
    able = [run for run in runs if run.outcome == Outcome.SUCCEEDED and "log_rewritten" not in taints(run)]
    excluded = [run.run for run in runs if run not in able and run.outcome is not None]
    notes = [f"excluded (did not succeed, or log rewritten): {footnotes.named(excluded)}"] if excluded else []
    tables = _gather(able, context)
    if not tables:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of opcheck with results")], notes=notes)
    _pair(tables, context)
    raw = [row for table in tables for row in table.rows]
    sections = [section for table in tables for section in _sections(table)]
    sections += [_changes(table.before, table) for table in tables if table.before]
    used = {result.verdict for table in tables for result in table.cells.values()}
    legend = [text for verdict, text in _MEANINGS.items() if verdict in used]
    return Result(COLUMNS, raw, sections, [], [*legend, _SAMPLES, *notes])


def _sections(table: Coverage) -> list[Section]:
    made = [_coverage(table)]
    others = _not_native(table)
    if broken := [row for row in others if row.verdict in _BROKEN]:
        lines = [f"{row.op}, {row.dtypes}, {row.directions}: {row.verdict}: {row.detail}" for row in broken[:MOST_ROWS]]
        made.append(Section(f"wrong or error, {table.label}", (), [], lines + _more(len(broken))))
    if lacking := [row for row in others if row.verdict not in _BROKEN]:
        title = f"{'not' if len(lacking) == len(others) else 'otherwise not'} native, {table.label}"
        made.append(Section(title, _NOT_NATIVE, lacking[:MOST_ROWS], _more(len(lacking))))
    fallbacks = [row for row in table.rows if row.now and row.now.verdict == "fallback"]
    slow = [(row.now.median_s, row) for row in fallbacks if row.now and row.now.median_s is not None]
    if slow:
        slow.sort(key=lambda pair: -pair[0])
        made.append(Section(f"slowest fallbacks, {table.label}", _SLOW, [row for _, row in slow[:MOST_SLOW]]))
    return made


def _coverage(table: Coverage) -> Section:
    verdicts: dict[tuple[str, str], Counter[str]] = {}
    for (_, dtype, direction), result in table.cells.items():
        verdicts.setdefault((dtype, direction), Counter())[result.verdict] += 1
    counts = [DtypeCount(*place, counter) for place, counter in verdicts.items()]
    total = sum(verdicts.values(), Counter[str]())
    columns = [
        Column("dtype", "dtype"),
        Column("direction", "direction"),
        Column("n", "total", units.count, True, value=lambda row: row.verdicts.total()),
        *(_of_verdict(verdict) for verdict in VERDICTS if total[verdict]),
    ]
    name = table.key.get("device_name")
    config = f" {table.key['config']}" if table.key.get("config") else ""
    runs = " ".join(row.run for row in table.runs)
    title = f"opcheck{config}, {table.label}{f', on {name}' if name else ''} (run {runs})"
    share = units.percent(total["native"] / total.total())
    return Section(title, columns, counts, [f"native: {share} of {units.count(total.total())}"])


def _of_verdict(verdict: str) -> Column:
    return Column(verdict, verdict, units.count, True, value=lambda row: row.verdicts[verdict])


def _not_native(table: Coverage) -> list[NotNative]:
    """Return a row for each operator, verdict and reason, with the dtypes and directions that share it, worst first."""
    others = [(*cell, result) for cell, result in table.cells.items() if result.verdict != "native"]
    by_dtype = by_key(others, lambda cell: (cell[0], cell[3].verdict, cell[3].detail, cell[1]))
    alike = by_key(by_dtype.items(), lambda item: (*item[0][:3], "both" if len(item[1]) > 1 else item[1][0][2]))
    rows = [
        NotNative(op, verdict, detail, directions, " ".join(dtype for (*_, dtype), _ in same))
        for (op, verdict, detail, directions), same in alike.items()
    ]
    return sorted(rows, key=lambda row: (WORST_FIRST.index(row.verdict), row.op))


def _changes(before: Coverage, now: Coverage) -> Section:
    rows = by_key(now.rows, lambda row: row.change)
    words = [f"{units.count(len(rows[word]))} {word}" for word in (BECAME, BROKE, CHANGED, NEW, GONE) if word in rows]
    changed = [row for word in (BROKE, CHANGED, BECAME) for row in rows.get(word, ())]
    title = f"{before.label} -> {now.label}: {', '.join(words) or 'no verdict changed'}"
    return Section(title, _CHANGES, changed[:MOST_ROWS], _more(len(changed)))


def _more(n: int) -> list[str]:
    return [f"... and {units.count(n - MOST_ROWS)} more (--json and --format csv list all)"] if n > MOST_ROWS else []


_MEANINGS = {
    "fallback": "fallback: computed by the CPU for the device (PYTORCH_ENABLE_MPS_FALLBACK=1)",
    "missing": "missing: not implemented for the device, or not in that dtype",
    "wrong": "wrong: differs from the CPU by more than the dtype's tolerance and more than 16 times the CPU's own"
    " rounding error",
    "error": "error: exception, crash, timeout or out of memory",
    "unchecked": "unchecked: it ran, but the CPU has no result to compare with",
}
_SAMPLES = "an operator gets the worst verdict of its samples, which are small: times are launch overhead"


def _gather(able: Sequence[ReportedRun], context: Context) -> list[Coverage]:
    """Return the tables of the prepared rows, those of one device next to each other, by version."""
    metrics = context.tuples_by_run(  # in reported order, since a later one corrects an earlier one
        "SELECT run_id, name, value FROM v_metric WHERE run_id IN ({runs}) AND name LIKE 'op/%'"
        " ORDER BY run_id, offset",
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
            _, *place = name.split("/")
            if len(place) == 4 and place[3] in VERDICTS:
                op, dtype, direction, verdict = place
                result = OpVerdict(row.run, verdict, value, details.get(tuple(place), ""))
                table.cells[op, dtype, direction] = result
    filled = [table for table in tables.values() if table.cells]
    return [table for versions in _by_device(filled) for table in sorted(versions, key=_order)]


def _by_device(tables: Sequence[Coverage]) -> list[list[Coverage]]:
    """Return the tables that differ in nothing but the version together."""
    fixed = [name for name in ("machine", *_KEY) if name not in _VERSION]
    return [*by_key(tables, lambda table: tuple(table.key[name] for name in fixed)).values()]


def _pair(tables: Sequence[Coverage], context: Context) -> None:
    """Say of each table which one is `before` it: the --vs baseline, or the version before of the same device.

    Raises: UsageError when the baseline is missing or ambiguous.
    """
    baseline = {_ALIASES.get(name, name): value for name, value in context.options.vs.items()}
    if unknown := next((name for name in baseline if name not in _KEY), ""):
        raise UsageError(f'--vs: no table has a "{unknown}"', f"use one of {', '.join(_KEY)}")
    if not baseline:
        for before, now in (pair for versions in _by_device(tables) for pair in pairwise(versions)):
            now.before = before
        return
    fitting = [table for table in tables if all(str(table.key[name]) == value for name, value in baseline.items())]
    if len(fitting) != 1:
        text = ",".join(f"{name}={value}" for name, value in baseline.items())
        labels = "; ".join(dict.fromkeys(table.label for table in tables))
        raise UsageError(
            f"the report has several tables, and --vs {text} fits {len(fitting) or 'none'} of them",
            f"name exactly one: {labels}",
        )
    for table in tables:
        table.before = fitting[0] if table is not fitting[0] else None


def _order(table: Coverage) -> tuple[list[int], str, str]:
    """Return a sort key with versions as numbers: 2.9 is before 2.13."""
    text = str(table.key.get("framework_version") or "")
    return [int(part) for part in re.findall(r"\d+", text.split("+")[0])], text, str(table.key.get("env") or "")
