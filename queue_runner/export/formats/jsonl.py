"""JSON lines: a file for each table, an object on each line."""

from __future__ import annotations

import json
from pathlib import Path

from queue_runner.export.selected import TABLES, Selected
from queue_runner.tables import json_value

NAME = "jsonl"
HELP = "a folder of files with a JSON object on each line: runs, iterations, evals, metrics"


def write(selected: Selected, folder: Path) -> None:
    """Write the four files; numbers that JSON has no word for are texts, "nan", "inf" or "-inf", as in docs/json.md."""
    for table in TABLES:
        names = [field.name for field in table.fields]
        with (folder / f"{table.name}.jsonl").open("w", encoding="utf-8") as file:
            for row in selected.rows(table):
                values = json_value(dict(zip(names, row, strict=True)))
                file.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
