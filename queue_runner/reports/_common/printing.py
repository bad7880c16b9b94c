"""Formatting of the result of a report: tables for people, or all raw values for csv and json."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from queue_runner import tables
from queue_runner.analysis.finding import Finding
from queue_runner.reports._common.document import Result, Section
from queue_runner.text import plain

WIDTH = 80


def as_text(name: str, result: Result, format: str, *, explain: bool = False, colour: bool = False) -> str:
    """Format the `result` of the report `name`: for people in short, whole with `explain`.

    Raises: UsageError when `format` is not in tables.formats().
    """
    tables.check_format(format)
    if format == "json":
        return as_json(name, result)
    if format == "csv":
        return tables.csv(result.items, result.columns)
    if format == "table" and result.text is not None:
        parts = [result.text]
    else:
        sections = result.sections or [Section("", result.columns, result.items)]
        parts = [_section(one, format, explain, colour) for one in sections if explain or not one.explained]
    both = [_lines(lines, explain) for lines in (result.lines, result.notes)]
    if not explain and _has_more(result):
        both[-1].append("--explain shows everything behind this: costs, losses, footnotes")
    parts += ["\n".join(_painted(line, format, colour) for line in lines) for lines in both]
    return "\n\n".join(part.rstrip() for part in parts if part.strip())


def _lines(lines: Iterable[str], explain: bool) -> list[str]:
    """Return the sentences to print: without `explain` each in brief, once."""
    if explain:
        return list(lines)
    return list(dict.fromkeys(filter(None, (line.brief if isinstance(line, Finding) else line for line in lines))))


def _has_more(result: Result) -> bool:
    lines = (*result.lines, *result.notes, *(line for section in result.sections for line in section.lines))
    return any(section.explained for section in result.sections) or any(isinstance(line, Finding) for line in lines)


def _section(section: Section, format: str, explain: bool, colour: bool) -> str:
    parts = []
    if section.title:
        parts.append(f"### {section.title}" if format == "md" else _sentence(section.title, format))
    if section.rows:
        parts.append(tables.table(section.rows, section.columns, format, colour=colour))
    if lines := _lines(section.lines, explain):
        parts.append("\n".join(_sentence(line, format) for line in lines))
    return "\n\n".join(parts) if format == "md" else "\n".join(parts)


_WARNINGS = ("!", "warning: ", "implausible: ", "caveat")
"""How sentences begin that make a number or a verdict less believable; a letter of a table may stand before it."""


def _painted(line: str, format: str, colour: bool) -> str:
    """Format a sentence as `_sentence`; a warning in a colour, if there are any."""
    shown = _sentence(line, format)
    sentence = line.partition(": ")[2] if re.match(r"[A-Z]{1,2}: ", line) else line
    if not (colour and format == "table" and sentence.startswith(_WARNINGS)):
        return shown
    return "\n".join(tables.paint(part, "doubt") for part in shown.split("\n"))


def _sentence(line: str, format: str) -> str:
    """Format a sentence: a list item in Markdown, else wrapped at 80 columns."""
    if format == "md":
        return f"- {line}"
    return textwrap.fill(plain(line), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def as_json(name: str, result: Result) -> str:
    """Return the envelope mpsq.report/1 described in docs/json.md."""
    return tables.envelope(
        "mpsq.report/1",
        report=name,
        columns=[{"key": column.key, "title": column.title} for column in result.columns],
        rows=result.rows,
        observations=list(result.lines),
        notes=list(result.notes),
    )
