"""Times of each run as a table: `real`, `user` and `sys` seconds, a dash where unknown, and the most memory."""

from __future__ import annotations

from queue_runner import units
from queue_runner.analysis.reported_run import ReportedRun
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
_SLEPT = Column("slept_s", "slept", units.seconds, True)
_PREPARED = Column("prepared_s", "prepared", units.seconds, True)
COLUMNS = columns(
    "run label outcome real_s user_s sys_s",
    _SLEPT,
    "max_rss_bytes peak_reserved_bytes",
    Column("invalid", "invalid", flexible=True),
    Column("cpu_s_by_phase", "CPU by phase", str),
    _PREPARED,
    Column("prepared_cpu_s", "its user + sys", units.seconds, True),
)
_ALWAYS = columns("run", Column("label", "", flexible=True))
_TIMES = columns("real_s user_s sys_s")
_IF_ANY = columns("outcome", select_runs.MARK), columns(_SLEPT, "max_rss_bytes peak_reserved_bytes", _PREPARED)


def finish(runs: list[ReportedRun], context: Context) -> Result:
    """Build one table of all runs: outcome, sleep and memory of the GPU only where there is any."""
    if not runs:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context)])
    used = dict.fromkeys((run.run_id for run in runs), cpu_phases.Used({}, {})) | cpu_phases.read(runs, context)
    rows = [_row(run, used[run.run_id]) for run in runs]

    def filled(column: Column) -> bool:
        values = {row[column.key] for row in rows} - {None, "", "SUCCEEDED"}
        return any(not isinstance(value, float) or value >= 0.005 for value in values)  # less rounds to 0.00

    before, after = (filter(filled, some) for some in _IF_ANY)
    phases = [f"{run.run}: user + sys by phase: {words}" for run in runs if (words := used[run.run_id].phases())]
    notes = [*select_runs.not_valid(runs), *select_runs.listed(phases)]
    if any(row["prepared_s"] is not None for row in rows):
        notes.append("prepared: seconds before the run, in no time beside it")
    section = Section("", [*_ALWAYS, *before, *_TIMES, *after], rows, ["real, user, sys: seconds"])
    return Result(COLUMNS, rows, [section], notes)


def _row(run: ReportedRun, used: cpu_phases.Used) -> Row:
    names = (
        "run",
        "outcome",
        "real_s",
        "user_s",
        "sys_s",
        "slept_s",
        "max_rss_bytes",
        "peak_reserved_bytes",
        "invalid",
    )
    return {
        **{name: getattr(run, name) for name in names},
        "label": select_runs.label(run),
        "cpu_s_by_phase": dict(used.seconds),
        "prepared_s": used.prepared.get("real_s"),
        "prepared_cpu_s": sum(used.prepared.get(name, 0.0) for name in ("user_s", "sys_s")) if used.prepared else None,
        "mark": MARK if run.invalid else "",
    }
