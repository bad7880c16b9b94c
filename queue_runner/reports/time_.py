"""Times of each run as a table: `real`, `user` and `sys` seconds, a dash where unknown, and the most memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from queue_runner import units
from queue_runner.monitor.run_view import MARK
from queue_runner.reports._common import cpu_phases, select_runs
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "time"
HELP = "real, user and sys time of each run, as by time -p"
SQL = (
    f"SELECT {select_runs.ASKED}, run_id, run, name,"
    " workload, framework, config, device, compile, dtype, outcome, real_s, user_s, sys_s,"
    f" slept_s, max_rss_bytes, {select_runs.GPU_MEMORY},"
    " json_extract(spec_json, '$.compile_mode') AS compile_mode,"
    f" {select_runs.INVALID}"
    " FROM v_run WHERE {chosen} AND state = 'DONE' ORDER BY job_id, number"
)
_PREPARED = Column("prepared_s", "prepared", units.seconds, True)
COLUMNS = columns(
    "run label outcome real_s user_s sys_s",
    Column("slept_s", "slept", units.seconds, True),
    "max_rss_bytes peak_reserved_bytes",
    Column("invalid", "invalid", flexible=True),
    Column("cpu_s_by_phase", "CPU by phase", str),
    _PREPARED,
    Column("prepared_cpu_s", "its user + sys", units.seconds, True),
)
_SHOWN = columns(
    "run", Column("label", "", flexible=True), "outcome", select_runs.MARK, "real_s user_s sys_s",
    Column("slept_s", "slept", units.seconds, True), "max_rss_bytes peak_reserved_bytes", _PREPARED,
)  # fmt: skip
_ALWAYS = frozenset({"run", "label", "real_s", "user_s", "sys_s"})


def finish(rows: list[Row], context: Context) -> Result:
    """Build one table of all runs: outcome, sleep and memory of the GPU only where there is any to tell."""
    known = cpu_phases.read(rows, context) if rows else {}
    for row in rows:
        row["label"] = select_runs.label(row)
        del row["compile_mode"]
        used = known.get(row.pop("run_id"), cpu_phases.Used({}, {}))
        row["cpu_s_by_phase"], row["phases"] = dict(used.seconds), used.phases()
        row["prepared_s"] = used.prepared.get("real_s")
        row["prepared_cpu_s"] = (
            used.prepared.get("user_s", 0.0) + used.prepared.get("sys_s", 0.0) if used.prepared else None
        )
        row["mark"] = MARK if row["invalid"] else ""
    if not rows:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context)])
    shown = [column for column in _SHOWN if column.key in _ALWAYS or any(_is_shown(row[column.key]) for row in rows)]
    return Result(COLUMNS, rows, [Section("", shown, rows, ["real, user, sys: seconds"])], [*_said(rows)])


def _is_shown(value: object) -> bool:
    """Return whether a value is worth a column: less than 5 ms asleep rounds to 0.00."""
    return value not in (None, "", "SUCCEEDED") and (not isinstance(value, float) or value >= 0.005)


def _said(rows: Sequence[Row]) -> Iterator[str]:
    """Say which runs are invalid and why, and what the phases of each used of the CPU."""
    yield from select_runs.not_valid(rows)
    yield from select_runs.listed(
        [f"{row['run']}: user + sys by phase: {row['phases']}" for row in rows if row["phases"]]
    )
    if any(row["prepared_s"] is not None for row in rows):
        yield "prepared: seconds before the run, in no time beside it"
