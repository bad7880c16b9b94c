"""The vocabulary of a report: what it is asked, what it may read, and what it answers."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from queue_runner.model import Selector
from queue_runner.tables import Column

Row = dict[str, Any]


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
