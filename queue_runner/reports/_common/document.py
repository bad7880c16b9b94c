"""Types of reports: a section and a result; letters that tell the tables of several comparisons apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from string import ascii_uppercase
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from queue_runner.analysis.comparison import Family
from queue_runner.analysis.finding import Finding, NextStep, Undecided
from queue_runner.tables import Column


class Section(Struct, frozen=True):
    """A table of a report for people; `lines` are printed below it. With `explained` only --explain prints it.

    Where the short report has no room, the last rows go, of `in_order` if that is not empty, or the sentence `instead`
    takes the place of the table; with the `option` the same report prints it."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    lines: Sequence[str] = ()
    explained: bool = False
    in_order: Sequence[Any] = ()
    instead: str = ""
    option: str = ""


class HistoryPoint(Struct, frozen=True):
    """A point of a row's history: when (Unix seconds), its value, the submission, and what changed just before it."""

    at: float
    value: float
    name: str
    n_runs: int
    changes: Sequence[str] = ()


class RowHistory(Struct, frozen=True):
    """The history of a row, for pages: `steps` are the names of the points at which its value changed for good."""

    label: str
    about: str
    points: Sequence[HistoryPoint]
    steps: Sequence[str]
    show: Callable[[float], str]


class Result(Struct, frozen=True, dict=True):
    """The result of a report.

    `columns` of `items` are all values, raw and in SI units, for csv and json. `sections` are tables for people (none:
    one table of all columns); `text` replaces the tables in the table format. `lines` are findings in words, `notes`
    are footnotes. `families` are the compared arms that the sections show, for pages with charts of their runs;
    `newest_runs` is the newest run of each comparison that they show. `histories` are rows over time. mpsq report ends
    with `exit_code`.
    """

    columns: Sequence[Column]
    items: Sequence[Any]
    sections: Sequence[Section] = ()
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()
    text: str | None = None
    families: Sequence[Family] = ()
    newest_runs: Sequence[int] = ()
    histories: Sequence[RowHistory] = ()
    exit_code: int = 0

    @cached_property
    def next_steps(self) -> list[str]:
        """The commands of the next steps, each once."""
        lines = [*self.notes, *self.lines, *(line for section in self.sections for line in section.lines)]
        return list(dict.fromkeys(line.command for line in lines if isinstance(line, NextStep)))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The values by the keys of the columns, as json has them."""
        return [{column.key: column.of(item) for column in self.columns} for item in self.items]


def whole_steps(steps: Iterable[str], command: str) -> list[str]:
    """Return next steps with the `command` line of the report in those that only add an option to it."""
    other = command_without(command, "--same-within")
    return [f"{other} {step.removeprefix('add ')}" if step.startswith("add --") else step for step in steps]


def command_without(command: str, option: str) -> str:
    """Return a command line without an option and its value: two would contradict each other."""
    return re.sub(rf" {option}[ =]('[^']*'|\S+)", "", command)


class Report(Protocol):
    NAME: str
    HELP: str
    SQL: str
    COLUMNS: Sequence[Column]


Block = tuple[Sequence[Section], Sequence[str]]
"""The tables of one comparison, and its sentences."""


def together(blocks: Sequence[Block]) -> tuple[list[Section], list[str]]:
    """Return all tables and all sentences. Where several blocks have tables, each has a letter, which stands before its
    title and its sentences."""
    shown = [block for block in blocks if block[0]]
    letters = [_letters(n) for n in range(len(shown))] if len(shown) > 1 else [""] * len(shown)
    sections: list[Section] = []
    lines: list[str] = [line for tables, sentences in blocks if not tables for line in sentences]
    for letter, ((first, *others), sentences) in zip(letters, shown, strict=True):
        title = f"{letter}: {first.title}" if letter and first.title else first.title
        sections += [replace(first, title=title), *others]
        for line in sentences:  # an indented one continues another
            prefix = f"{letter}: " if letter and not line.startswith(" ") else ""
            lines.append(line.after(prefix) if isinstance(line, Finding | Undecided) else f"{prefix}{line}")
    return sections, lines


def _letters(n: int) -> str:
    """Return A to Z, then AA, AB, ..."""
    rest, at = divmod(n, len(ascii_uppercase))
    return (_letters(rest - 1) if rest else "") + ascii_uppercase[at]
