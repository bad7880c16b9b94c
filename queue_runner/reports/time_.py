"""Times of each run as a table: `real`, `user` and `sys` seconds, a dash where unknown, and the most memory."""

from __future__ import annotations

from operator import attrgetter

from msgspec.structs import replace

from queue_runner import units
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Result, Section
from queue_runner.tables import Column

NAME = "time"
HELP = "real, user and sys time of each run, as by time -p"
SQL = (
    f"SELECT {select_runs.ASKED}, run_id, run, name,"
    " workload, framework, config, device, compile, dtype, outcome, real_s, user_s, sys_s,"
    f" slept_s, max_rss_bytes, {select_runs.GPU_MEMORY},"
    " json_extract(spec_json, '$.compile_mode') AS compile_mode, json_extract(spec_json, '$.params') AS params_json,"
    " (SELECT json_extract(exit_json, '$.prepared.real_s') FROM exits WHERE run_id = v_run.run_id) AS prepared_s,"
    f" {select_runs.INVALID}"
    " FROM v_run WHERE {chosen} AND state = 'DONE' ORDER BY job_id, number"
)
_LABEL = Column("label", "", flexible=True, value=attrgetter("subject"))
_SLEPT = Column("slept_s", "slept", units.seconds, True)
_PREPARED = Column("prepared_s", "prepared", units.seconds, True)
COLUMNS = columns(
    "run",
    replace(_LABEL, title="label"),
    "outcome real_s user_s sys_s",
    _SLEPT,
    "max_rss_bytes peak_reserved_bytes",
    Column("invalid", "invalid", flexible=True),
    _PREPARED,
)
_IF_ANY = columns("outcome", select_runs.MARK), columns(_SLEPT, "max_rss_bytes peak_reserved_bytes", _PREPARED)


def finish(runs: list[ReportedRun], context: Context) -> Result:
    """Build one table of all runs: outcome, sleep and memory of the GPU only where there is any."""
    if not runs:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context)])

    labels = select_runs.labels(runs)
    runs = [run.changed(subject=labels[run.run_id]) for run in runs]

    def filled(column: Column) -> bool:
        values = {column.of(run) for run in runs} - {None, "", "SUCCEEDED"}
        return any(not isinstance(value, float) or value >= 0.005 for value in values)  # less rounds to 0.00

    before, after = (filter(filled, some) for some in _IF_ANY)
    lines = select_runs.not_valid(runs)
    if any(run.prepared_s is not None for run in runs):
        lines.append("prepared: seconds before the run, not part of the other times")
    shown = columns("run", _LABEL, *before, "real_s user_s sys_s", *after)
    seconds = ", ".join(column.title for column in shown if column.key.endswith("_s") and column is not _PREPARED)
    return Result(COLUMNS, runs, [Section("", shown, runs, [f"{seconds}: seconds"])], lines)
