"""Times of each run in the format of time(1): `real`, `user` and `sys` seconds, a dash where unknown."""

from __future__ import annotations

from queue_runner import units
from queue_runner.reports._common import select_runs
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.report import Context, Result, Row
from queue_runner.tables import Column

NAME = "time"
HELP = "real, user and sys time of each run, as by time -p"
SQL = (
    "SELECT run, name, workload, framework, config, device, compile, dtype, outcome, real_s, user_s, sys_s, slept_s,"
    " max_rss_bytes FROM v_run WHERE {chosen} AND state = 'DONE' ORDER BY job_id, number"
)
COLUMNS = columns(
    "run label outcome real_s user_s sys_s",
    Column("slept_s", "slept", units.seconds, True),
    "max_rss_bytes",
)


def finish(rows: list[Row], context: Context) -> Result:
    """Format a block for each run, with `slept` only if the machine slept."""
    for row in rows:
        row["label"] = select_runs.label(row)
    text = "\n\n".join(_block(row) for row in rows)
    return Result(COLUMNS, rows, text=text, lines=[] if rows else [select_runs.nothing(context)])


def _block(row: Row) -> str:
    lines = [f"{row['run']} {row['label']}".rstrip()]
    lines += [f"{name} {units.seconds(row[f'{name}_s'])}" for name in ("real", "user", "sys")]
    if (row["slept_s"] or 0) >= 0.005:  # less rounds to 0.00
        lines.append(f"slept {units.seconds(row['slept_s'])}")
    return "\n".join(lines)
