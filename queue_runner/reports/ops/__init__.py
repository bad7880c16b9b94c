"""Coverage of torch's operators on a device: those not native and why, and changes between versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.grouping import taints
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.errors import UsageError
from queue_runner.reports._common import prepare, select_runs
from queue_runner.reports._common.columns import RowColumn, columns, short
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.reports.ops import coverage
from queue_runner.reports.ops.coverage import BECAME, BROKE, CHANGED, GONE, NEW, VERDICTS, WORST_FIRST, Coverage
from queue_runner.tables import Column

NAME = "ops"
FOR = "opcheck"
HELP = "operators by verdict: native, fallback, missing, wrong, error; differences between versions of torch"
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} AND workload = 'opcheck' ORDER BY job_id, number"
COLUMNS = columns(
    "run device device_name",
    Column("framework_version", "torch"),
    Column("env", "env"),
    "config",
    Column("op", "operator"),
    "dtype direction verdict median_s",
    Column("detail", "reason"),
    Column("before", "before"),
    Column("before_of", "before on"),
    Column("change", "change"),
)
MOST_ROWS = 30
"""Maximum number of rows in a printed table; csv and json have all."""
MOST_SLOW = 10
_BROKEN = ("wrong", "error")
"""Verdicts to look at first, printed in full."""
_OP = Column("op", "operator", flexible=True)
_REASON = Column("detail", "reason", flexible=True)
_NOT_NATIVE = columns(_OP, Column("dtypes", "dtypes"), Column("directions", "direction"), "verdict", _REASON)
_SLOW = columns(
    _OP,
    "dtype direction",
    Column("median_s", "time/call", short, True),
    Column("detail", "computed by the CPU", flexible=True),
)
_CHANGES = columns(
    _OP,
    "dtype direction",
    Column("before", "before"),
    Column("verdict", "now"),
    RowColumn("detail", "reason", lambda row: row["detail"] or row["detail_before"], flexible=True),
)


def finish(rows: list[ReportedRun], context: Context) -> Result:
    """Build tables for each device and version: operators not native, slowest fallbacks, changes.

    Raises: UsageError when --vs or --group-by is invalid or --iters is given.
    """
    if context.options.iters:
        raise UsageError(
            f"{NAME} takes no --iters: operators have no iterations", "select runs with --where device=mps"
        )
    runs = prepare.prepare(rows, context)
    tables = coverage.gather(runs, context)
    excluded = [r.run for r in runs if r.outcome not in (None, "SUCCEEDED") or "log_rewritten" in taints(r)]
    notes = [f"excluded (did not succeed, or log rewritten): {', '.join(excluded)}"] if excluded else []
    if not tables:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "of opcheck with results")], notes=notes)
    pairs = coverage.pairs(tables, context)
    earlier = {id(now): before for before, now in pairs}
    rows_of = {id(table): _rows(table, earlier.get(id(table))) for table in tables}
    raw = [row for table in tables for row in rows_of[id(table)]]
    sections = [section for table in tables for section in _sections(table, rows_of[id(table)])]
    sections += [_changes(before, now, rows_of[id(now)]) for before, now in pairs]
    return Result(COLUMNS, raw, sections, [], [*_legend(tables), *notes])


def _rows(table: Coverage, before: Coverage | None) -> list[dict[str, Any]]:
    """Return all cells with their verdicts, here and in the earlier table, and the cells that only that one has."""
    rows = []
    cells = dict.fromkeys([*table.cells, *(before.cells if before else ())])
    run = table.runs[-1]
    for cell in cells:
        now, was = table.cells.get(cell), before.cells.get(cell) if before else None
        rows.append(
            {
                **{name: getattr(run, name) for name in ("device", "device_name", "framework_version", "config")},
                "env": run.factors.get("env"),
                **dict(zip(("op", "dtype", "direction"), cell, strict=True)),
                **{name: getattr(now, name, None) for name in ("run", "verdict", "median_s", "detail")},
                "detail_before": was.detail if was else None,
                "before": was.verdict if was else None,
                "before_of": before.label() if before else None,
                "change": coverage.change(was, now) if before else None,
            }
        )
    return rows


def _sections(table: Coverage, rows: Sequence[Row]) -> list[Section]:
    made = [_coverage(table)]
    others = _not_native(table)
    if broken := [row for row in others if row["verdict"] in _BROKEN]:
        lines = ["{op}, {dtypes}, {directions}: {verdict}: {detail}".format(**row) for row in broken[:MOST_ROWS]]
        made.append(Section(f"wrong or error, {table.label()}", (), [], lines + _more(len(broken))))
    if lacking := [row for row in others if row["verdict"] not in _BROKEN]:
        title = f"{'not' if len(lacking) == len(others) else 'otherwise not'} native, {table.label()}"
        made.append(Section(title, _NOT_NATIVE, lacking[:MOST_ROWS], _more(len(lacking))))
    slow = [row for row in rows if row["verdict"] == "fallback" and row["median_s"] is not None]
    if slow:
        slow.sort(key=lambda row: -row["median_s"])
        made.append(Section(f"slowest fallbacks, {table.label()}", _SLOW, slow[:MOST_SLOW]))
    return made


def _coverage(table: Coverage) -> Section:
    counts = table.counts()
    used = [verdict for verdict in VERDICTS if any(found[verdict] for found in counts.values())]
    columns = [
        Column("dtype", "dtype"),
        Column("direction", "direction"),
        Column("n", "total", units.count, True),
        *(Column(verdict, verdict, units.count, True) for verdict in used),
    ]
    rows = [
        {"dtype": dtype, "direction": direction, "n": found.total(), **{v: found[v] for v in used}}
        for (dtype, direction), found in counts.items()
    ]  # fmt: skip
    name = table.key.get("device_name")
    config = f" {table.key['config']}" if table.key.get("config") else ""
    runs = " ".join(row.run for row in table.runs)
    title = f"opcheck{config}, {table.label()}{f', on {name}' if name else ''} (run {runs})"
    n, native = len(table.cells), sum(one.verdict == "native" for one in table.cells.values())
    share = f"native: {units.percent(native / n)} of {units.count(n)}"
    return Section(title, columns, rows, [share, *_inventory(table)])


def _inventory(table: Coverage) -> list[str]:
    known = table.inventory
    if not {"functions", "with_mps", "without_mps"} <= known.keys():
        return []
    return [
        f"native_functions.yaml of this torch: {units.count(known['functions'])} functions, "
        f"{units.count(known['with_mps'])} with an MPS kernel, {units.count(known['without_mps'])} with kernels for "
        "CPU and CUDA but not for MPS"
    ]


def _not_native(table: Coverage) -> list[dict[str, Any]]:
    """Return a row for each operator, verdict and reason, with the dtypes and directions that share it, worst first."""
    directions: dict[tuple[str, str, str, str], list[str]] = {}
    for (op, dtype, direction), result in table.cells.items():
        if result.verdict != "native":
            directions.setdefault((op, result.verdict, result.detail, dtype), []).append(direction)
    dtypes: dict[tuple[str, str, str, str], list[str]] = {}
    for (op, verdict, detail, dtype), shared_by in directions.items():
        dtypes.setdefault((op, verdict, detail, "both" if len(shared_by) > 1 else shared_by[0]), []).append(dtype)
    rows = [
        {"op": op, "verdict": verdict, "detail": detail, "dtypes": " ".join(names), "directions": shared_by}
        for (op, verdict, detail, shared_by), names in dtypes.items()
    ]
    return sorted(rows, key=lambda row: (WORST_FIRST.index(row["verdict"]), row["op"]))


def _changes(before: Coverage, now: Coverage, rows: Sequence[Row]) -> Section:
    counts = Counter(row["change"] for row in rows)
    words = [f"{units.count(counts[word])} {word}" for word in (BECAME, BROKE, CHANGED, NEW, GONE) if counts[word]]
    changed = [row for word in (BROKE, CHANGED, BECAME) for row in rows if row["change"] == word]
    title = f"{before.label()} -> {now.label()}: {', '.join(words) or 'no verdict changed'}"
    return Section(title, _CHANGES, changed[:MOST_ROWS], _more(len(changed)))


def _more(n: int) -> list[str]:
    return [f"... and {units.count(n - MOST_ROWS)} more (--json and --format csv list all)"] if n > MOST_ROWS else []


def _legend(tables: Sequence[Coverage]) -> list[str]:
    """Explain the verdicts that occur."""
    used = {one.verdict for table in tables for one in table.cells.values()}
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
