"""Letters of tables: where a report has several comparisons, A, B and C stand before their titles and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_uppercase

from msgspec.structs import replace

from queue_runner.analysis.finding import Finding
from queue_runner.reports._common.document import Section

Block = tuple[Sequence[Section], Sequence[str]]
"""The tables of one comparison, and its sentences."""


def together(blocks: Sequence[Block]) -> tuple[list[Section], list[str]]:
    """Return all tables and all sentences. Where several blocks have tables, each of these has a letter."""
    shown = [block for block in blocks if block[0]]
    letters = [_letters(n) for n in range(len(shown))] if len(shown) > 1 else [""] * len(shown)
    sections: list[Section] = []
    lines: list[str] = [line for tables, sentences in blocks if not tables for line in sentences]
    for letter, ((first, *others), sentences) in zip(letters, shown, strict=True):
        title = f"{letter}: {first.title}" if letter and first.title else first.title
        sections += [replace(first, title=title), *others]
        for line in sentences:  # an indented one continues another
            prefix = f"{letter}: " if letter and not line.startswith(" ") else ""
            lines.append(line.after(prefix) if isinstance(line, Finding) else f"{prefix}{line}")
    return sections, lines


def _letters(n: int) -> str:
    """Return A to Z, then AA, AB, ..."""
    rest, at = divmod(n, len(ascii_uppercase))
    return (_letters(rest - 1) if rest else "") + ascii_uppercase[at]
