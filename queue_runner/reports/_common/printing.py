"""Formatting of the result of a report: tables for people, or all raw values for csv and json."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from msgspec.structs import replace

from queue_runner import tables, units
from queue_runner.analysis.finding import Caveat, Finding, OtherAnswer
from queue_runner.reports import DEFAULT
from queue_runner.reports._common.document import Result, Section, command_without, whole_steps
from queue_runner.text import plain, width, wrap

WIDTH = 80
"""Maximum width of a sentence."""
MOST_LINES = 15
"""Maximum number of lines of the short report on one question, as long as its table has two rows."""
MOST_LINES_OF_A_WORD = 2
"""Lines of a word, such as a value, beyond which its middle is left out."""
BELOW_EACH = 5
"""Number of these that stand below each of several tables, together at the end."""


def as_text(
    name: str, result: Result, format: str, *, explain: bool = False, colour: bool = False, command: str = ""
) -> str:
    """Format the `result` of the report `name`: for people in short, whole with `explain`. `command` is the command
    line that prints this report, by default that of all its runs.

    Raises: UsageError when `format` is not in tables.formats().
    """
    tables.check_format(format)
    if format == "json":
        return as_json(name, result)
    if format == "csv":
        return tables.csv(result.items, result.columns)
    sections = result.sections or [Section("", result.columns, result.items)]
    visible = [section for section in sections if explain or not section.explained]
    several = len(result.families) > 1

    def is_shown(line: str) -> bool:
        return (
            explain or not isinstance(line, Finding) or (several and isinstance(line, OtherAnswer) and line.in_summary)
        )

    answers, notes = ([*filter(is_shown, lines)] for lines in (result.lines, result.notes))
    command = command or ("mpsq report" if name == DEFAULT else f"mpsq report {name}")
    steps: list[str] = []
    if format == "table" and not explain and result.text is None:
        if len(result.families) == 1:
            closing = _closing(result, sections, visible, format, command)
            n_below = sum(map(_n_lines, (answers, notes, closing))) + 1 + bool(notes)
            whole = visible
            visible, instead = _of_one_question(visible, MOST_LINES - n_below, colour)
            answers += instead
            other = command_without(command, "--by")
            steps = [f"{other} {section.option}" for section in whole[len(visible) :] if section.option]
        else:
            visible = [_shortened(section, MOST_LINES - BELOW_EACH, colour) for section in visible]
    is_text = format == "table" and result.text is not None
    parts = [result.text or ""] if is_text else [_section(section, format, explain, colour) for section in visible]
    closing = [] if explain else _closing(result, sections, visible, format, command, steps)
    groups = [answers, [*notes, *closing]] if notes else [[*answers, *closing]]
    below = ["\n".join(_painted(line, format, colour) for line in group) for group in groups]
    return "\n\n".join(part.rstrip() for part in [*parts, *below] if part.strip())


def _closing(
    result: Result,
    sections: Sequence[Section],
    visible: Sequence[Section],
    format: str,
    command: str,
    hidden: Sequence[str] = (),
) -> list[str]:
    """Return the last lines of the short report: one of caveats, one with what to do next, such as the commands that
    print `hidden` tables. A caveat with a letter that no `visible` table has is not named, and one that a table has is
    never left out."""
    lines = [*result.notes, *result.lines, *(line for section in sections for line in section.lines)]
    letters = {"", *(letter for section in visible for letter in _letters(section))}
    caveats = [line for line in lines if isinstance(line, Caveat) and line.letter in letters]
    marks = [line.sentence for line in caveats if line.letter or line.sentence.startswith(_FIRST)]
    others = [line.sentence for line in sorted(caveats, key=lambda caveat: caveat.minor)]
    sentences = dict.fromkeys([*sorted(marks, key=lambda text: not text.startswith(_FIRST)), *others])
    explained = any(section.explained for section in sections) or any(isinstance(line, Finding) for line in lines)
    explained = explained and result.text != ""  # else no run has ended
    room = min(WIDTH, tables.room()) if format == "table" else sys.maxsize
    closing = [_on_one_line("caveats", [*sentences], [], room, least=len({*marks}))]
    explain = [f"{command} --explain shows more", f"{command} --explain", "--explain shows more"] if explained else []
    steps = [*whole_steps(result.next_steps, command), *hidden]
    closing.append(_on_one_line("next", steps, [*explain, ""] if len(steps) > 1 else explain, room))
    return [line for line in closing if line]


def _letters(section: Section) -> set[str]:
    """Return the letters of caveats in a table."""
    return {
        mark
        for column in section.columns
        if column.key == tables.MARKS
        for row in section.rows
        for mark in column.of(row)
    }


def _on_one_line(title: str, parts: Sequence[str], endings: Sequence[str], room: int, least: int = 1) -> str:
    """Join as many parts as fit. The first of the endings that fits stands after them, without endings the number of
    parts left out. If not even the `least` number fits, these stand whole, on several lines. "" without any."""
    if not parts and not endings:
        return ""
    for n in range(len(parts), min(len(parts), max(least, 1)) - 1, -1):
        for ending in endings or [f"+{units.counted(len(parts) - n, 'caveat')}" if n < len(parts) else ""]:
            text = plain(f"{title}: {'; '.join(filter(None, [*parts[:n], ending]))}")
            if width(text) <= room:
                return text
    return text


def _of_one_question(sections: Sequence[Section], n_lines: int, colour: bool) -> tuple[list[Section], list[str]]:
    """Return the tables of one question that fit on `n_lines`. In place of the last ones, where they do not fit, stands
    the sentence of each, or its name, below the answer."""
    texts = [_section(section, "table", False, colour) for section in sections]
    for n in range(len(texts), 1, -1):
        instead = _in_place_of(sections[n:])
        if sum(text.count("\n") + 2 for text in texts[:n]) + _n_lines(instead) - 1 <= n_lines:
            return list(sections[:n]), instead
    instead = _in_place_of(sections[1:])
    return [_shortened(sections[0], n_lines - _n_lines(instead), colour)] if sections else [], instead


def _in_place_of(sections: Sequence[Section]) -> list[str]:
    """Return the sentences in place of these tables."""
    sentences = [section.instead for section in sections if section.instead]
    if unnamed := [section.columns[1].title for section in sections if not section.instead]:
        sentences.append(f"... more tables: {', '.join(unnamed)} (--explain)")
    return sentences


def _n_lines(sentences: Sequence[str]) -> int:
    """Return how many lines of a terminal these sentences take."""
    return sum(_sentence(line, "table").count("\n") + 1 for line in sentences)


def _shortened(section: Section, n_lines: int, colour: bool) -> Section:
    """Return a table of at most `n_lines`, or of two rows: the least important rows go."""
    shown = section
    for row in reversed(section.in_order):
        if len(shown.rows) <= 2 or len(_section(shown, "table", False, colour).split("\n")) <= n_lines:
            break
        rows = [other for other in shown.rows if other is not row]
        more = f"... {units.counted(len(section.rows) - len(rows), 'more row')} (--explain)"
        shown = replace(section, rows=rows, lines=[*section.lines, more])
    return shown


def _section(section: Section, format: str, explain: bool, colour: bool) -> str:
    parts = []
    if section.title:
        parts.append(f"### {section.title}" if format == "md" else _sentence(section.title, format))
    if section.rows:
        parts.append(tables.table(section.rows, section.columns, format, colour=colour))
    if lines := [line for line in section.lines if explain or not isinstance(line, Finding)]:
        parts.append("\n".join(_sentence(line, format) for line in lines))
    return "\n\n".join(parts) if format == "md" else "\n".join(parts)


_FIRST = "! "
"""Before the caveat that the short report names first: runs that do not count."""
_WARNINGS = ("!", "warning: ", "implausible: ", "caveats: ")
"""How sentences begin that make a number or a verdict less believable; a letter of a table may stand before it."""


def _painted(line: str, format: str, colour: bool) -> str:
    """Format a sentence as `_sentence`; a warning in a colour, if there are any."""
    shown = _sentence(line, format)
    sentence = line.partition(": ")[2] if re.match(r"[A-Z]{1,2}: ", line) else line
    if not (colour and format == "table" and sentence.startswith(_WARNINGS)):
        return shown
    return "\n".join(tables.paint(part, "doubt") for part in shown.split("\n"))


def _sentence(line: str, format: str) -> str:
    """Format a sentence: a list item in Markdown, else wrapped at the terminal's width, at most WIDTH."""
    if format == "md":
        return f"- {line}"
    room = min(WIDTH, tables.room())
    text = plain(line)
    if not text.startswith("next: "):  # a command is copied
        text = re.sub(rf"\S{{{MOST_LINES_OF_A_WORD * room},}}", lambda word: tables.elide(word[0], room - 2), text)
    return "\n".join(wrap(text, room))


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
