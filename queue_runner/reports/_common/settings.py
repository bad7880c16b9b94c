"""What settings a run really had: those that were asked for, and those that its preset and its defaults gave."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from queue_runner.reports._common.report import Context, Row

HOW_LONG = frozenset(
    {"mode", "max_iters", "warmup_iters", "eval_interval", "eval_iters", "log_interval", "checkpoint_interval"}
)
"""Settings that do not change what an iteration is: a CPU may be given fewer of them than a GPU. The mode is told by
the workload's name."""
FEW_ITERS = 10
"""Measured iterations of a run, below which its median is called into question."""


def whatever_their_length(rows: Iterable[Row], context: Context) -> list[Row]:
    """Prepared rows without the settings of HOW_LONG, but those that --group-by or --vs name: then runs that were only
    longer or shorter are not told apart."""
    dropped = HOW_LONG - {*context.options.group_by, *context.options.vs}
    return [
        {**row, **{part: {k: v for k, v in row[part].items() if k not in dropped} for part in ("settings", "factors")}}
        for row in rows
    ]


def effective(rows: Iterable[Mapping[str, Any]], context: Context) -> dict[int, dict[str, Any]]:
    """By run, of prepared rows: its settings by name. Those of a job that told none are what it was asked."""
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
