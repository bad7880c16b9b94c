"""Reports, one module or package each; this folder is their registry. They only read the store.

A report has NAME, HELP, SQL (one SELECT over the views; `{chosen}` stands for the condition that selects the runs) and
COLUMNS, and optionally `finish(rows, context) -> Result` to return more than a table. `FOR` names the workload whose
default report it is: the one that mpsq run prints.
"""

from __future__ import annotations

import pkgutil
import sqlite3
from collections.abc import Iterable
from importlib import import_module
from typing import cast

from queue_runner.errors import UsageError
from queue_runner.reports._common.report import Context, Options, Report, Result

DEFAULT = "devices"


def names() -> list[str]:
    """Return the names of all reports. `time_.py` is the report `time`, so that no module shadows a standard one."""
    return sorted(_files())


def _files() -> dict[str, str]:
    """Return the modules by report name as typed: `train_vs_infer` is `train-vs-infer`."""
    modules = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    return {name.rstrip("_").replace("_", "-"): name for name in modules}


def helps() -> dict[str, str]:
    """Return a one-sentence description of each report."""
    return {name: load(name).HELP for name in names()}


def load(name: str) -> Report:
    """Return the report with that name. Raises: UsageError when there is none."""
    files = _files()
    if name not in files:
        from queue_runner.errors import did_you_mean

        raise UsageError(f'no report "{name}"', did_you_mean(name, files, f"there are {', '.join(sorted(files))}"))
    return cast(Report, import_module(f"{__name__}.{files[name]}"))


def suited(workloads: Iterable[str | None], otherwise: str) -> str:
    """Return the report whose `FOR` is the one workload of the runs, else `otherwise`."""
    own = {getattr(load(name), "FOR", ""): name for name in names()}
    found = {own.get(workload or "command", otherwise) for workload in workloads}
    return found.pop() if len(found) == 1 else otherwise


def run(name: str, connection: sqlite3.Connection, options: Options | None = None) -> Result:
    """Build a report from an open connection, as store.read.reading returns it.

    Raises: UsageError for an unknown report, column, setting or value in the options; MpsqError when reading fails.
    """
    from queue_runner.reports._common import select_runs

    options = options or Options()
    report = load(name)
    chosen, values = select_runs.condition(connection, options)
    context = Context(options, connection, chosen, values)
    rows = context.read(report.SQL)
    finish = getattr(report, "finish", None)
    if finish is None:
        lines = [] if rows else [select_runs.nothing(context, f"for the report {name}")]
        return Result(report.COLUMNS, rows, lines=lines)
    return cast(Result, finish(rows, context))
