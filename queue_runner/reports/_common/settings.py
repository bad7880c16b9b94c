"""Effective settings of a run: those requested, and those from its preset and defaults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from queue_runner.reports._common.report import Context, Row

HOW_LONG = frozenset(
    {"mode", "max_iters", "warmup_iters", "eval_interval", "eval_iters", "log_interval", "checkpoint_interval"}
)
"""Settings that do not change an iteration: a CPU may get fewer iterations than a GPU. The mode is given by the
workload's name."""
FEW_ITERS = 10
"""Minimum number of measured iterations for a run's median to be considered reliable."""


def whatever_their_length(rows: Iterable[Row], context: Context) -> list[Row]:
    """Return prepared rows without the settings of HOW_LONG, except those named by --group-by or --vs, so that runs of
    different length are not distinguished."""
    dropped = HOW_LONG - {*context.options.group_by, *context.options.vs}
    return [
        {**row, **{part: {k: v for k, v in row[part].items() if k not in dropped} for part in ("settings", "factors")}}
        for row in rows
    ]


def effective(rows: Iterable[Mapping[str, Any]], context: Context) -> dict[int, dict[str, Any]]:
    """Return effective settings by run and name, from prepared rows; the requested ones if a job reported none."""
    rows = list(rows)
    ids = ", ".join(str(int(row["run_id"])) for row in rows)
    sql = (
        "SELECT run_id, json_extract(hello_json, '$.settings') AS told FROM hellos"
        f" WHERE run_id IN ({ids}) AND json_type(hello_json, '$.settings') = 'object'"
    )
    told = {row["run_id"]: json.loads(row["told"]) for row in context.read(sql)}
    found = {}
    for row in rows:
        found[row["run_id"]] = {**told.get(row["run_id"], {}), **row["settings"]}
    return found
