"""What settings a run really had: those that were asked for, and those that its preset and its defaults gave."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from queue_runner.reports import Context


def effective(rows: Iterable[Mapping[str, Any]], context: Context) -> dict[int, dict[str, Any]]:
    """By run, of prepared rows: its settings by name. Those of a job that told none are what it was asked."""
    rows = list(rows)
    ids = ", ".join(str(int(row["run_id"])) for row in rows)
    sql = f"SELECT run_id, json_extract(hello_json, '$.settings') AS told FROM hellos WHERE run_id IN ({ids})"
    told = {row["run_id"]: json.loads(row["told"]) for row in context.read(sql) if row["told"]}
    found = {}
    for row in rows:
        said = told.get(row["run_id"])
        found[row["run_id"]] = {**(said if isinstance(said, dict) else {}), **row["settings"]}
    return found
