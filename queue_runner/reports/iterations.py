"""All stored iterations of the chosen runs, without sampling or smoothing."""

from __future__ import annotations

from queue_runner import units
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.run_view import MARK
from queue_runner.reports._common import select_runs
from queue_runner.reports._common.columns import RowColumn, columns
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.store import retries
from queue_runner.tables import Column

NAME = "iterations"
HELP = "every iteration of the chosen runs, or of the newest one: time, loss, phase"
SQL = f"SELECT run_id, run, {select_runs.INVALID} FROM v_run WHERE {{chosen}} AND n_iters > 0 ORDER BY run_id"
ONLY = "job_id = (SELECT job_id FROM v_run WHERE {chosen} AND n_iters > 0 ORDER BY run_id DESC LIMIT 1)"
COLUMNS = columns(
    "run i",
    Column("dur_s", "ms", lambda dur_s: units.seconds(dur_s * 1e3), True),
    "valid loss",
    Column("phase", "phase"),
    RowColumn("synced", "synced", words=lambda row: "unknown" if row["synced"] is None else str(row["synced"])),
    "allocated_bytes",
)
REDONE = Column("redone_by", "repeated by")
"""Only where runs resume each other: sums must leave out iterations that a later run repeated."""


def finish(rows: list[ReportedRun], context: Context) -> Result:
    """Return the iterations of the runs in `rows`, or of the newest if none was chosen, limited by `--iters`."""
    options = context.options
    lines = []
    if not rows:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "with iterations")])
    if not options.selectors and not options.where:
        newest = rows[-1].run
        parts = {segment.run_id for segment in retries.chain(context.connection, rows[-1].run_id)}
        rows = [row for row in rows if row.run_id in parts]
        others = f"run_id NOT IN ({', '.join(map(str, parts))})"
        if context.read(f"SELECT 1 FROM v_run WHERE {{chosen}} AND n_iters > 0 AND {others} LIMIT 1"):
            lines.append(f"newest run only, {newest}: select others by ID (12, 12.3, g4)")
    first, last = options.iters or (0, 2**62)
    shown_rows: list[Row] = []
    chosen = {row.run_id for row in rows}
    for row in rows:
        iterations = context.read(
            "SELECT run, i, dur_s, loss, phase, synced, allocated_bytes FROM v_iteration"
            " WHERE run_id = ? AND i BETWEEN ? AND ? ORDER BY offset",
            [row.run_id, first, last],
        )
        again = retries.redone(retries.chain(context.connection, row.run_id), row.run_id)
        again = [segment for segment in again if segment.run_id in chosen]
        resumed = f"resumed from a checkpoint of {row.run}, at iteration"
        lines += [f"{segment.run} {resumed} {segment.first_i}" for segment in again]
        for iteration in iterations:
            iteration["synced"] = None if iteration["synced"] is None else bool(iteration["synced"])
            iteration["valid"] = row.invalid is None
            iteration["mark"] = "" if iteration["valid"] else MARK
            iteration["redone_by"] = next((s.run for s in again if _has(s, iteration["i"])), None)
        shown_rows += iterations
    if not shown_rows:
        window = f" {units.count(first)} to {units.count(last)} (--iters)" if options.iters else " stored"
        lines.append(f"no iterations{window} in {rows[0].run if len(rows) == 1 else f'{len(rows)} runs'}")
        return Result(COLUMNS, [], lines=lines, text="")
    lines += select_runs.not_valid(rows)
    columns = (*COLUMNS, REDONE) if any(iteration["redone_by"] for iteration in shown_rows) else COLUMNS
    marked = any(iteration["mark"] for iteration in shown_rows)
    shown = [select_runs.MARK if column.key == "valid" else column for column in columns]
    shown = [column for column in shown if marked or column is not select_runs.MARK]
    return Result(columns, shown_rows, [Section("", shown, shown_rows)], lines)


def _has(segment: retries.Segment, i: int) -> bool:
    return segment.first_i is not None and segment.last_i is not None and segment.first_i <= i <= segment.last_i
