"""Times of each run as a table: `real`, `user` and `sys` seconds, a dash where unknown, and the most memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from queue_runner import units
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import cpu_phases
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Result, Section
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
_LABEL = Column("label", "", flexible=True, value=select_runs.label)
_SLEPT = Column("slept_s", "slept", units.seconds, True)
_PREPARED = Column("prepared_s", "prepared", units.seconds, True, value=lambda row: row.cpu.prepared.get("real_s"))
COLUMNS = columns(
    "run",
    replace(_LABEL, title="label"),
    "outcome real_s user_s sys_s",
    _SLEPT,
    "max_rss_bytes peak_reserved_bytes",
    Column("invalid", "invalid", flexible=True),
    Column("cpu_s_by_phase", "CPU by phase", str, value=lambda row: dict(row.cpu.seconds)),
    _PREPARED,
    Column("prepared_cpu_s", "its user + sys", units.seconds, True, value=lambda row: row.cpu.prepared_cpu_s),
)
_IF_ANY = columns("outcome", select_runs.MARK), columns(_SLEPT, "max_rss_bytes peak_reserved_bytes", _PREPARED)


@dataclass(frozen=True, kw_only=True)
class TimedRun(ReportedRun):
    """A run with its CPU time."""

    cpu: cpu_phases.CpuUse


def finish(runs: list[ReportedRun], context: Context) -> Result:
    """Build one table of all runs: outcome, sleep and memory of the GPU only where there is any."""
    if not runs:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context)])
    known = cpu_phases.read(runs, context)
    rows = [TimedRun(**vars(run), cpu=known.get(run.run_id, cpu_phases.CpuUse({}, {}))) for run in runs]

    def filled(column: Column) -> bool:
        values = {column.of(row) for row in rows} - {None, "", "SUCCEEDED"}
        return any(not isinstance(value, float) or value >= 0.005 for value in values)  # less rounds to 0.00

    before, after = (filter(filled, some) for some in _IF_ANY)
    phases = [f"{row.run}: user + sys by phase: {words}" for row in rows if (words := row.cpu.phases())]
    notes = [*select_runs.not_valid(runs), *select_runs.listed(phases)]
    if any(_PREPARED.of(row) is not None for row in rows):
        notes.append("prepared: seconds before the run, in no time beside it")
    shown = columns("run", _LABEL, *before, "real_s user_s sys_s", *after)
    return Result(COLUMNS, rows, [Section("", shown, rows, ["real, user, sys: seconds"])], notes)
