"""Every iteration that is stored of the chosen runs: nothing sampled, nothing smoothed."""

from __future__ import annotations

from queue_runner import units
from queue_runner.render import Column
from queue_runner.reports import Context, Result, Row, _choose

NAME = "iterations"
HELP = "every iteration of the chosen runs, or of the newest: time, loss, phase"
SQL = "SELECT run_id, run FROM v_run WHERE {chosen} AND n_iters > 0 ORDER BY run_id"
COLUMNS = (
    Column("run", "run"),
    Column("i", "i", units.count, True),
    Column("dur_s", "ms", lambda dur_s: units.seconds(dur_s * 1e3), True),
    Column("loss", "loss", units.loss, True),
    Column("phase", "phase"),
    Column("synced", "synced"),
    Column("allocated_bytes", "allocated", units.size, True),
)


def finish(rows: list[Row], context: Context) -> Result:
    """The iterations of the runs in `rows`; of the newest alone where the user chose none. `--iters` narrows them."""
    options = context.options
    lines = []
    if not rows:
        return Result(COLUMNS, [], lines=[_choose.nothing(context, "with iterations")])
    if not options.selectors and not options.where and len(rows) > 1:
        rows = rows[-1:]
        lines.append(f"the newest run, {rows[0]['run']}, of several: name runs (12, 12.3, g4) to see others")
    first, last = options.iters or (0, 2**62)
    found: list[Row] = []
    for row in rows:
        found += context.read(
            "SELECT run, i, dur_s, loss, phase, synced, allocated_bytes FROM v_iteration"
            " WHERE run_id = ? AND i BETWEEN ? AND ? ORDER BY offset",
            [row["run_id"], first, last],
        )
    for iteration in found:
        iteration["synced"] = bool(iteration["synced"])
    return Result(COLUMNS, found, lines=lines)
