"""Formatting of the result of a report: tables for people, or all raw values for csv and json."""

from __future__ import annotations

import textwrap

from queue_runner import tables
from queue_runner.reports._common.report import Result, Section
from queue_runner.text import plain

WIDTH = 80


def as_text(name: str, result: Result, format: str) -> str:
    """Format the `result` of the report `name`. Raises: UsageError when `format` is not in tables.formats()."""
    tables.check_format(format)
    if format == "json":
        return as_json(name, result)
    if format == "csv":
        return tables.csv(result.rows, result.columns)
    if format == "table" and result.text is not None:
        parts = [result.text]
    else:
        parts = [_section(section, format) for section in result.sections or [Section("", result.columns, result.rows)]]
    parts += ["\n".join(_sentence(line, format) for line in lines) for lines in (result.lines, result.notes)]
    return "\n\n".join(part.rstrip() for part in parts if part.strip())


def _section(section: Section, format: str) -> str:
    parts = []
    if section.title:
        parts.append(f"### {section.title}" if format == "md" else _sentence(section.title, format))
    if section.rows:
        parts.append(tables.table(section.rows, section.columns, format))
    if section.lines:
        parts.append("\n".join(_sentence(line, format) for line in section.lines))
    return "\n\n".join(parts) if format == "md" else "\n".join(parts)


def _sentence(line: str, format: str) -> str:
    """Format a sentence: a list item in Markdown, else wrapped at 80 columns."""
    if format == "md":
        return f"- {line}"
    return textwrap.fill(plain(line), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def as_json(name: str, result: Result) -> str:
    """Return the envelope mpsq.report/1 described in docs/json.md."""
    keys = [column.key for column in result.columns]
    return tables.envelope(
        "mpsq.report/1",
        report=name,
        columns=[{"key": column.key, "title": column.title} for column in result.columns],
        rows=[{key: row.get(key) for key in keys} for row in result.rows],
        observations=list(result.lines),
        notes=list(result.notes),
    )
