"""CSV: a file for each table, a header of keys, empty cells for unknown values."""

from __future__ import annotations

import csv
from pathlib import Path

from queue_runner.export.selected import TABLES, Selected
from queue_runner.tables import csv_cell

NAME = "csv"
HELP = "a folder of CSV files: runs, iterations, evals, metrics"


def write(selected: Selected, folder: Path) -> None:
    """Write the four files; text that a spreadsheet would run as a formula is prefixed with a quote, as in reports."""
    for table in TABLES:
        with (folder / f"{table.name}.csv").open("w", encoding="utf-8", newline="") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(field.name for field in table.fields)
            lines.writerows(map(csv_cell, row) for row in selected.rows(table))
