"""Effective settings of a run: those requested, and those from its preset and defaults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from queue_runner.reports._common.document import Context, Row

LENGTH_SETTINGS = frozenset(
    {"mode", "max_iters", "warmup_iters", "eval_interval", "eval_iters", "log_interval", "checkpoint_interval"}
    | {"eval_at_start", "num_samples"}
)
"""Settings that change the length of a run but not its iterations, and the mode, which the workload's name includes."""
FEW_ITERS = 10
"""Minimum number of measured iterations for a reliable median of a run."""


def ignore_length(rows: Iterable[Row], context: Context) -> list[Row]:
    """Return prepared rows without LENGTH_SETTINGS, so that runs of different length are pooled; settings named by
    --group-by or --vs are kept."""
    dropped = LENGTH_SETTINGS - {*context.options.group_by, *context.options.vs}
    return [
        {**row, **{part: {k: v for k, v in row[part].items() if k not in dropped} for part in ("settings", "factors")}}
        for row in rows
    ]


def effective(rows: Sequence[Mapping[str, Any]], context: Context) -> dict[int, dict[str, Any]]:
    """Return by run the settings its job reported, overridden by the requested ones, from prepared rows."""
    sql = (
        "SELECT run_id, json_extract(hello_json, '$.settings') AS settings FROM hellos"
        " WHERE run_id IN ({runs}) AND json_type(hello_json, '$.settings') = 'object'"
    )
    reported = {run_id: json.loads(found[0]["settings"]) for run_id, found in context.by_run(sql, rows).items()}
    return {row["run_id"]: {**reported.get(row["run_id"], {}), **row["settings"]} for row in rows}
