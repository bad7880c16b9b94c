"""Effective settings of a run: those requested, and those from its preset and defaults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers.run_query import Context

LENGTH_SETTINGS = frozenset(
    {"mode", "max_iters", "warmup_iters", "eval_interval", "eval_iters", "log_interval", "checkpoint_interval"}
    | {"eval_at_start", "num_samples"}
)
"""Settings that change the length of a run but not its iterations, and the mode, which the workload's name includes."""
FEW_ITERS = 10
"""Minimum number of measured iterations for a reliable median of a run."""


def ignore_length(runs: Iterable[ReportedRun], context: Context) -> list[ReportedRun]:
    """Return prepared runs without LENGTH_SETTINGS, so that runs of different length are pooled; settings named by
    --group-by or --vs are kept."""
    dropped = LENGTH_SETTINGS - {*context.options.group_by, *context.options.vs}

    def rest(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in dropped}

    return [run.changed(settings=rest(run.settings), factors=rest(run.factors)) for run in runs]


def effective(rows: Sequence[ReportedRun], context: Context) -> dict[int, dict[str, Any]]:
    """Return by run the settings its job reported, overridden by the requested ones, from prepared rows."""
    sql = (
        "SELECT run_id, json_extract(hello_json, '$.settings') FROM hellos"
        " WHERE run_id IN ({runs}) AND json_type(hello_json, '$.settings') = 'object'"
    )
    reported = {run_id: json.loads(text) for run_id, ((text,),) in context.tuples_by_run(sql, rows).items()}
    return {row.run_id: {**reported.get(row.run_id, {}), **row.settings} for row in rows}
