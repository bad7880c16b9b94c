"""Reports: each is one file of this folder, and the folder is the registry. They read the store and change nothing.

A report is a module with NAME, HELP, SQL (one SELECT over the views, `{chosen}` where the choice of runs belongs) and
COLUMNS, and may have `finish(rows, context) -> Result` to make more of the rows than a table. `FOR` names the workload
whose report it is: mpsq run ends with it.
"""

from __future__ import annotations

import pkgutil
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, cast

from queue_runner.errors import UsageError
from queue_runner.model import Selector
from queue_runner.tables import Column

Row = dict[str, Any]

DEFAULT = "devices"


@dataclass(frozen=True)
class Options:
    """What a report is asked for. `since` is Unix seconds, `iters` the first and last iteration of a window."""

    selectors: Sequence[Selector] = ()
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    since: float | None = None
    vs: Mapping[str, str] = field(default_factory=dict)
    group_by: Sequence[str] = ()
    iters: tuple[int, int] | None = None
    include_invalid: bool = False
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    peak: str = "sourced"
    """over what MFU is: sourced (or stated in the configuration), or measured by matmul on the same machine"""

    @property
    def chosen(self) -> bool:
        """Whether the user said which runs it is about."""
        return bool(self.selectors or self.where or self.since is not None)


@dataclass(frozen=True)
class Section:
    """One table of a report as it is shown; `lines` come below it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Result:
    """What a report answers.

    `columns` and `rows` hold everything, raw and in SI units, for csv and json. `sections` are the same for the eye
    (none: one table of all columns), `text` what the table format prints instead of tables. `lines` are observations in
    words, `notes` the footnotes.
    """

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    sections: Sequence[Section] = ()
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()
    text: str | None = None


@dataclass(frozen=True)
class Context:
    """What `finish` gets besides the rows: the options, and a way to read more of the same runs."""

    options: Options
    connection: sqlite3.Connection
    chosen: str
    """condition on v_run that the report's rows fulfil"""
    values: Sequence[Any]

    def read(self, sql: str, more: Sequence[Any] = ()) -> list[Row]:
        """Rows of a SELECT of ours; `{chosen}` in it stands for the condition, the values of which come first."""
        values = [*self.values, *more] if "{chosen}" in sql else list(more)
        return list(self.connection.execute(sql.replace("{chosen}", self.chosen), values))


class Report(Protocol):
    NAME: str
    HELP: str
    SQL: str
    COLUMNS: Sequence[Column]


def names() -> list[str]:
    """The reports there are. A file `time_.py` is the report `time`: no module shares a name with Python's own."""
    return sorted(_files())


def _files() -> dict[str, str]:
    """Modules by their reports' names: `train_vs_infer` is `train-vs-infer`, as it is typed."""
    modules = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    return {name.rstrip("_").replace("_", "-"): name for name in modules}


def helps() -> dict[str, str]:
    """What each report shows, in a sentence."""
    return {name: load(name).HELP for name in names()}


def load(name: str) -> Report:
    """The report of that name. Raises: UsageError when there is none."""
    files = _files()
    if name not in files:
        from queue_runner.errors import did_you_mean

        raise UsageError(f'no report "{name}"', did_you_mean(name, files, f"there are {', '.join(sorted(files))}"))
    return cast(Report, import_module(f"{__name__}.{files[name]}"))


def suited(workloads: Iterable[str | None], otherwise: str) -> str:
    """The report that was made for the runs of one workload (its module's `FOR`); `otherwise` where there is none."""
    own = {getattr(load(name), "FOR", ""): name for name in names()}
    found = {own.get(workload or "command", otherwise) for workload in workloads}
    return found.pop() if len(found) == 1 else otherwise


def run(name: str, connection: sqlite3.Connection, options: Options | None = None) -> Result:
    """Make a report from an open connection of store.read.reading.

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
        return Result(report.COLUMNS, rows)
    return cast(Result, finish(rows, context))
