"""Stored runs as files of other tools, one module for each target; this folder is their registry.

A target has NAME, HELP and `write(selected, folder)`, which writes the selected runs (`export.selected.Selected`)
into an empty folder. This module gives the folder its name when everything is in it.
"""

from __future__ import annotations

import json
import pkgutil
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from msgspec import Struct

from queue_runner import __version__
from queue_runner.atomic_file import flush
from queue_runner.errors import UsageError, did_you_mean
from queue_runner.export.selected import TABLES, Selected, select
from queue_runner.monitor.answers.run_query import Options

MANIFEST = "mpsq-export.json"
"""The file with the units and the numbers of rows."""


class ExportTarget(Protocol):
    NAME: str
    HELP: str

    def write(self, selected: Selected, folder: Path) -> None:
        """Write into the empty `folder`. Raises: UsageError where the target's library is not installed; OSError."""


class Exported(Struct, frozen=True):
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


def need(module: str) -> Any:
    """Return the imported module, whose package has its name. Raises: UsageError where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise UsageError(f"{name} is not installed here ({error})", f"pip install {name}") from error


def write(name: str, connection: sqlite3.Connection, options: Options, out: Path) -> Exported:
    """Write the selected runs into the new folder `out`, all of one moment; after an error there is no such folder.

    Raises: UsageError for an unknown target, selection or missing library, and where `out` exists; OSError.
    """
    target = load(name)
    selected = select(connection, options)
    with _new_folder(out) as folder:
        target.write(selected, folder)
        units = {table.name: {f.name: f.unit for f in table.fields if f.unit} for table in TABLES}
        tables = {table: {"rows": n, "units": units[table]} for table, n in selected.counts.items()}
        manifest = {"schema": "mpsq.export/1", "target": name, "mpsq": __version__, "tables": tables}
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return Exported(name, out, selected.counts, selected.n_not_valid)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder beside `out`, which takes its name when the block ends; after an error `out` is as it was.

    Raises: UsageError where `out` exists, unless it is an empty folder; OSError.
    """
    if not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist", "create it, or name another place")
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(f"{out} already exists", "name a new folder")
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=out.parent))
    try:
        yield partial
        for path in partial.rglob("*"):
            flush(path)
        flush(partial)
        partial.rename(out)  # fails where something has come to lie there since
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    flush(out.parent)
