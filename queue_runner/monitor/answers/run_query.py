"""The input of a report or an answer: its options, and the selected runs of an open connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.model import Selector
from queue_runner.spec import Aim
from queue_runner.store import read

Row = dict[str, Any]


class Options(Struct, frozen=True):
    """Options of a report. `since` is in Unix seconds, `iters` the first and last iteration of a window."""

    selectors: Sequence[Selector] = ()
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    since: float | None = None
    vs: Mapping[str, str] = field(default_factory=dict)
    group_by: Sequence[str] = ()
    iters: tuple[int, int] | None = None
    include_invalid: bool = False
    peak_tflops: Mapping[str, float] = field(default_factory=dict)
    aim: Aim = field(default_factory=Aim)
    """the metric that comes first and the margins, where they are not those of the submission"""
    sides: Sequence[Options] = ()
    """the two selections that mpsq compare puts side by side"""
    peak: str = "sourced"
    """the peak for MFU: sourced (or given in the configuration), or measured by matmul on the same machine"""
    newest: bool = False
    """whether only the newest comparisons are read where no runs are selected, as many as a terminal shows"""

    @property
    def chosen(self) -> bool:
        """Whether the user selected the runs."""
        return bool(self.selectors or self.where or self.since is not None)


class OfRun(Protocol):
    """A row of one run."""

    @property
    def run_id(self) -> int: ...


class Context(Struct, frozen=True):
    """Arguments of `finish` besides the rows: the options, and access to more data of the same runs."""

    options: Options
    connection: sqlite3.Connection
    chosen: str
    """condition on v_run that selects the runs"""
    values: Sequence[Any]
    n_older: int = 0
    """number of older questions whose runs are not read"""
    since_run: int = 0
    """the runs that are not read are all older than this one"""

    def read(self, sql: str, more: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a SELECT; `{chosen}` stands for the condition, whose values come before `more`."""
        return list(self.connection.execute(*self._query(sql, more)))

    def tuples(self, sql: str, more: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT, arguments as of `read`, as tuples."""
        return read.tuples(self.connection, *self._query(sql, more)).fetchall()

    def _query(self, sql: str, more: Sequence[Any]) -> tuple[str, list[Any]]:
        values = [*self.values, *more] if "{chosen}" in sql else list(more)
        return sql.replace("{chosen}", self.chosen), values

    def runs(self, sql: str) -> list[ReportedRun]:
        """Return the runs that a SELECT over v_run finds."""
        rows = self.read(sql)
        first = [ReportedRun(**row) for row in rows[:1]]
        return first + [first[0].changed(**row) for row in rows[1:]]  # of the same columns, in a fifth of the time

    def tuples_by_run(self, sql: str, runs: Iterable[OfRun], more: Sequence[Any] = ()) -> dict[int, list[Any]]:
        """Return the rows of a SELECT by their first column, the run_id, as lists of the other columns; `{runs}` stands
        for the IDs of the `runs`."""
        by_run: dict[int, list[Any]] = {}
        ids = ", ".join(str(run.run_id) for run in runs)
        for run_id, *values in self.tuples(sql.replace("{runs}", ids), more):
            by_run.setdefault(run_id, []).append(values)
        return by_run

    def by_groups(self, sql: str, runs: Iterable[ReportedRun]) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT as tuples; `{groups}` stands for the IDs of the submissions of the `runs`."""
        return self.tuples(sql.replace("{groups}", ", ".join({str(run.group_id) for run in runs})))
