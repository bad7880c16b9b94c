"""All stored iterations of the chosen runs, without sampling or smoothing."""

from __future__ import annotations

import math
from typing import NamedTuple

from queue_runner import units
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Result, Section
from queue_runner.reports._common.losses import IS_NAN
from queue_runner.store import retries
from queue_runner.tables import Column

NAME = "iterations"
HELP = "every iteration of the chosen runs, or of the newest one: time, loss, phase"
READS = ("iters",)
SQL = f"SELECT run_id, run, {select_runs.INVALID} FROM v_run WHERE {{chosen}} AND n_iters > 0 ORDER BY run_id"
ONLY = "job_id = (SELECT job_id FROM v_run WHERE {chosen} AND n_iters > 0 ORDER BY run_id DESC LIMIT 1)"
COLUMNS = columns(
    "run i",
    Column("dur_s", "ms", units.ms, True),
    Column("valid", "valid", value=lambda row: row.invalid is None),
    "loss",
    Column("phase", "phase"),
    Column("synced", "synced", lambda synced: "unknown" if synced is None else str(synced)),
    "allocated_bytes",
)
REDONE = Column("redone_by", "repeated by")
"""Only where runs resume each other: sums must leave out iterations that a later run repeated."""


class Iteration(NamedTuple):
    """A stored iteration; `invalid` says why the numbers of its run are not valid."""

    run: str
    i: int
    dur_s: float
    loss: float | None
    phase: str
    synced: bool | None
    allocated_bytes: int | None
    invalid: str | None
    redone_by: str | None


def finish(rows: list[ReportedRun], context: Context) -> Result:
    """Return the iterations of the runs in `rows`, or of the newest if none was chosen, limited by `--iters`."""
    options = context.options
    lines = []
    if not rows:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context, "with iterations")])
    if not options.chosen:
        newest = rows[-1].run
        parts = {segment.run_id for segment in retries.chain(context.connection, rows[-1].run_id)}
        rows = [row for row in rows if row.run_id in parts]
        others = f"run_id NOT IN ({', '.join(map(str, parts))})"
        if context.tuples(f"SELECT 1 FROM v_run WHERE {{chosen}} AND n_iters > 0 AND {others} LIMIT 1"):
            lines.append(f"newest run only, {newest}: select others by ID (12, 12.3, g4)")
    first, last = options.iters or (0, 2**62)
    shown_rows: list[Iteration] = []
    chosen = {row.run_id for row in rows}
    for row in rows:
        repeats = retries.redone(retries.chain(context.connection, row.run_id), row.run_id)
        repeats = [segment for segment in repeats if segment.run_id in chosen]
        resumed = f"resumed from a checkpoint of {row.run}, at iteration"
        lines += [f"{segment.run} {resumed} {segment.first_i}" for segment in repeats]
        for i, dur_s, loss, is_nan, phase, synced, allocated in context.tuples(
            f"SELECT i, dur_s, loss, {IS_NAN}, phase, synced, allocated_bytes FROM v_iteration t"
            " WHERE run_id = ? AND i BETWEEN ? AND ? ORDER BY offset",
            [row.run_id, first, last],
        ):
            loss = math.nan if is_nan else loss
            known_sync = None if synced is None else bool(synced)
            redone_by = next((segment.run for segment in repeats if _has(segment, i)), None)
            shown_rows.append(Iteration(row.run, i, dur_s, loss, phase, known_sync, allocated, row.invalid, redone_by))
    if not shown_rows:
        window = f" {units.count(first)} to {units.count(last)} (--iters)" if options.iters else " stored"
        lines.append(f"no iterations{window} in {rows[0].run if len(rows) == 1 else f'{len(rows)} runs'}")
        return Result(COLUMNS, [], lines=lines, text="")
    lines += select_runs.not_valid(rows)
    columns = (*COLUMNS, REDONE) if any(iteration.redone_by for iteration in shown_rows) else COLUMNS
    marks = [select_runs.MARK] if any(iteration.invalid for iteration in shown_rows) else []
    shown = [shown for column in columns for shown in (marks if column.key == "valid" else [column])]
    return Result(columns, shown_rows, [Section("", shown, shown_rows)], lines)


def _has(segment: retries.Segment, i: int) -> bool:
    return segment.first_i is not None and segment.last_i is not None and segment.first_i <= i <= segment.last_i
