"""Stored runs as files of other tools, one module for each target; this folder is their registry.

A target has NAME, HELP and `write(selected, folder)`, which writes the selected runs (`_common.selected.Selected`) into
an empty folder. This module gives the folder its name when everything is in it.
"""

from __future__ import annotations

import json
import pkgutil
import sqlite3
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from queue_runner import __version__
from queue_runner.errors import UsageError, did_you_mean
from queue_runner.export._common import place
from queue_runner.export._common.selected import TABLES, Selected, select
from queue_runner.monitor.answers.run_query import Options


class ExportTarget(Protocol):
    NAME: str
    HELP: str

    def write(self, selected: Selected, folder: Path) -> None:
        """Write into the empty `folder`. Raises: UsageError where the target's library is not installed; OSError."""


@dataclass(frozen=True)
class Exported:
    """The result of an export: rows by table, and how many of the runs did not succeed or are invalid."""

    target: str
    path: Path
    rows: dict[str, int]
    n_not_valid: int


def names() -> list[str]:
    """Return the names of all targets. `csv_.py` is the target `csv`."""
    return sorted(_files())


def _files() -> dict[str, str]:
    modules = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    return {name.rstrip("_"): name for name in modules}


def load(name: str) -> ExportTarget:
    """Return the target with that name. Raises: UsageError when there is none."""
    files = _files()
    if name not in files:
        raise UsageError(
            f'cannot export to "{name}"', did_you_mean(name, files, f"there are {', '.join(sorted(files))}")
        )
    return cast(ExportTarget, import_module(f"{__name__}.{files[name]}"))


def write(name: str, connection: sqlite3.Connection, options: Options, out: Path, *, force: bool = False) -> Exported:
    """Write the selected runs into the new folder `out`, all of one moment; after an error there is no such folder.

    `force` replaces an earlier export, and nothing else.

    Raises: UsageError for an unknown target, selection or missing library, and where `out` exists; OSError.
    """
    target = load(name)
    selected = select(connection, options)
    with place.new_folder(out, force=force) as folder:
        target.write(selected, folder)
        units = {table.name: {f.name: f.unit for f in table.fields if f.unit} for table in TABLES}
        tables = {table: {"rows": n, "units": units[table]} for table, n in selected.counts.items()}
        manifest = {"schema": "mpsq.export/1", "target": name, "mpsq": __version__, "tables": tables}
        (folder / place.MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return Exported(name, out, selected.counts, selected.n_not_valid)
