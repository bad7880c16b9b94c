"""A report's result as text in any format: tables and words for people, raw SI values in csv and json."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from queue_runner import render
from queue_runner.reports import Result, Section

WIDTH = 80


def show(name: str, result: Result, format: str = "table", width: int = WIDTH) -> str:
    """`result` of the report `name`. csv is the rows alone; json has the observations and footnotes besides.

    Raises: UsageError for a format that there is not.
    """
    if format == "json":
        rows = [{column.key: row.get(column.key) for column in result.columns} for row in result.rows]
        return render.envelope(
            f"mpsq.report.{name}/1", report=name, rows=rows, observations=list(result.lines), notes=list(result.notes)
        )
    if format == "csv":
        return render.csv(result.rows, result.columns)
    render.check_format(format)
    if result.text is not None and format == "table":
        parts = [result.text]
    else:
        sections = result.sections or ([Section("", result.columns, result.rows)] if result.rows else [])
        parts = [_section(section, format, width) for section in sections]
    parts += ["\n".join(wrapped(lines, width)) for lines in (result.lines, result.notes) if lines]
    return "\n\n".join(part for part in parts if part)


def _section(section: Section, format: str, width: int) -> str:
    title = [*textwrap.wrap(section.title, width), ""] if section.title else []
    below = ["", *wrapped(section.lines, width)] if section.lines else []
    return "\n".join([*title, render.table(section.rows, section.columns, format), *below])


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    """Sentences as a list: each begins with a dash, further lines of it are indented."""
    return [
        part
        for line in lines
        for part in textwrap.wrap(render.plain(line), width, initial_indent="- ", subsequent_indent="  ", break_long_words=False)
    ]
