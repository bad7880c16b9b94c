"""Formatting of rows as tables, CSV and JSON. The only importer of tabulate.

Numbers stay numbers in CSV and JSON (SI units, named in the key); only tables use words and rounding.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from shutil import get_terminal_size
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from queue_runner.errors import UsageError
from queue_runner.text import cut, cut_head, one_line, plain, width, wrap, wrap_command
from queue_runner.units import MISSING, not_finite

_NAMED = ("table", "csv", "json", "md")
WIDTH = 60  # minimum width of a table; a wider terminal is used in full
MARKS = "marks"
"""The key of the column with the letters of caveats."""
_OURS = {"table": "simple", "md": "github"}


class Column(Struct, frozen=True):
    """A column: the key of its value in a row, its title in tables, and how a value is formatted."""

    key: str
    title: str
    words: Callable[[Any], str] | None = None
    right: bool = False
    flexible: bool = False
    """Whether a table that is too wide for a terminal may continue its texts on a second line."""
    style: Callable[[Any], str] | None = None
    """the colour of a cell on a terminal, one of STYLES or "" """
    value: Callable[[Any], Any] | None = None
    """Returns its value in a row; without it, the row's attribute or item named `key` is the value."""

    def of(self, row: Any) -> Any:
        """Return the value of the column in a row."""
        if self.value is not None:
            return self.value(row)
        return row.get(self.key) if isinstance(row, Mapping) else getattr(row, self.key)

    def show(self, row: Any) -> str:
        """Return the cell's text on one line, safe to print on a terminal."""
        value = self.of(row)
        text = self.words(value) if self.words is not None else MISSING if value is None else str(value)
        return one_line(text)


def formats() -> list[str]:
    """Return all names that --format accepts: ours, then tabulate's."""
    from tabulate import tabulate_formats

    return [*_NAMED, *(name for name in tabulate_formats if name not in _NAMED)]


def check_format(name: str) -> str:
    """Return `name` if it is a format. Raises: UsageError."""
    if name not in _NAMED and name not in formats():
        from queue_runner.errors import did_you_mean

        otherwise = f"use one of {', '.join(formats())}"
        raise UsageError(f'unknown format "{name}"', did_you_mean(name, formats(), otherwise))
    return name


def table(rows: Sequence[Any], columns: Sequence[Column], format: str = "table", *, colour: bool = False) -> str:
    """Format rows as a table: table, md, csv (raw values) or any format of tabulate; only a table has colours.

    Raises: UsageError.
    """
    check_format(format)
    if format == "csv":
        return csv(rows, columns)
    import tabulate as tabulated
    from tabulate import tabulate

    tabulated.MIN_PADDING = 0  # headings need no padding beyond the two spaces between columns
    titles = [column.title for column in columns]
    cells = [[column.show(row) for column in columns] for row in rows]

    def lay_out() -> str:
        text: str = tabulate(
            [[_padded(cell) for cell in line] for line in cells],
            headers=[_padded(title) for title in titles],
            tablefmt=_OURS.get(format, format),
            colalign=["right" if column.right else "left" for column in columns] if cells else None,
            disable_numparse=True,
        )
        return "\n".join(line.rstrip() for line in text.replace(_NOTHING, "").split("\n"))

    text = lay_out()
    if format != "table":
        return text
    excess = max(map(width, text.splitlines()), default=0) - room()
    if excess > 0 and any(column.flexible for column in columns):
        _narrow([titles, *cells], columns, excess)
        text = lay_out()
    if not (colour and any(column.style for column in columns)):
        return text
    for row, line in zip(rows, cells, strict=True):
        line[:] = [
            paint(cell, column.style(row)) if column.style else cell for cell, column in zip(line, columns, strict=True)
        ]
    return lay_out()


def has_room(rows: Sequence[Any], columns: Sequence[Column]) -> bool:
    """Return whether a table of these rows may be as wide as it would be."""
    if (most := room()) == sys.maxsize:
        return True
    cells = (max(width(text) for text in (column.title, *map(column.show, rows))) for column in columns)
    return sum(cells) + 2 * (len(columns) - 1) <= most


_room: ContextVar[int | None] = ContextVar("room", default=None)


def room() -> int:
    """Return how wide a table may be: the terminal's width, at least WIDTH; in `of_any_width` sys.maxsize."""
    return _room.get() or max(WIDTH, get_terminal_size().columns)


@contextmanager
def of_any_width() -> Iterator[None]:
    """Let tables be as wide as they are, for pages: no terminal has to show them."""
    token = _room.set(sys.maxsize)
    try:
        yield
    finally:
        _room.reset(token)


STYLES = {"good": 32, "bad": 31, "doubt": 33}
"""SGR codes of a terminal's green, red and yellow (ECMA-48, 8.3.117)"""


def paint(text: str, style: str) -> str:
    """Return the text in the colour of one of STYLES; unchanged for ""."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and text else text


def in_colour() -> bool:
    """Return whether stdout shows colours: a terminal that is not dumb, and no NO_COLOR (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def _narrow(lines: list[list[str]], columns: Sequence[Column], excess: int) -> None:
    """Narrow the flexible columns by `excess` in all, headings included, always the widest: their texts continue on
    further lines, and only a word that is too long for its column loses its middle. Words of at most MOST_WHOLE stay
    whole while another column has room."""
    widths = {at: max(width(line[at]) for line in lines) for at, column in enumerate(columns) if column.flexible}
    words = {at: max((width(word) for line in lines for word in line[at].split()), default=0) for at in widths}
    least = {at: longest if longest <= MOST_WHOLE else LEAST_BROKEN for at, longest in words.items()}
    for _ in range(excess):
        able = [at for at in widths if widths[at] > least[at]] or [*widths]
        widths[max(able, key=lambda at: widths[at])] -= 1
    for line in lines:
        for at, columns_left in widths.items():
            room = max(columns_left, 1)
            line[at] = "\n".join(piece for part in wrap(line[at], room) for piece in _pieces(part, room))


MOST_WHOLE = 20
"""Columns of a word that is not broken as long as another column can be narrowed: the longest outcome."""
LEAST_BROKEN = 12
"""Columns below which a column of longer words is not narrowed while another one can be."""
MOST_PIECES = 3
MOST_INDENTED = 8
"""Columns of a cell that is too narrow for an indent."""


def _pieces(line: str, columns: int) -> list[str]:
    """Return a line that is one word in pieces that fit, broken at its marks where it has some; of a very long one the
    middle is left out."""
    if width(line) > MOST_PIECES * columns:
        return [elide(line, columns)]
    indent = "  " if columns > MOST_INDENTED else ""
    pieces = []
    while width(line) > columns:
        piece = cut(line, columns)
        at_mark = max(map(piece.rfind, "=-_/.,:")) + 1
        piece = piece[:at_mark] if at_mark > columns // 2 else piece
        pieces.append(piece)
        line = indent + line[len(piece) :]
    return [*pieces, line]


_NOTHING = "\0"
"""Filler for double-width letters while tabulate, which counts letters, computes the layout; never in text."""


def _padded(cell: str) -> str:
    if cell.isascii():
        return cell
    return "\n".join(line + _NOTHING * (width(line) - len(line)) for line in cell.split("\n"))


def csv(rows: Sequence[Any], columns: Sequence[Column]) -> str:
    """Format rows as CSV: a header of keys, raw values, empty cells for missing ones.

    Text that a spreadsheet would run as a formula is prefixed with a quote (OWASP, "CSV Injection").
    """
    import io
    from csv import writer

    out = io.StringIO()
    lines = writer(out, lineterminator="\n")
    lines.writerow([column.key for column in columns])
    for row in rows:
        lines.writerow([csv_cell(column.of(row)) for column in columns])
    return out.getvalue().rstrip("\n")


def csv_cell(value: Any) -> Any:
    """Return a value as a cell of CSV: mappings and lists as JSON, formulas of spreadsheets as text."""
    if isinstance(value, str):
        return f"'{value}" if value[:1] in "=+-@\t\r" and value[:1] else value
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(json_value(value), sort_keys=True)
    return value


def envelope(schema: str, /, **fields: Any) -> str:
    """Return a JSON object that names its schema, e.g. mpsq.list/1."""
    return json.dumps({"schema": schema, **json_value(fields)}, indent=2, ensure_ascii=False, allow_nan=False)


def json_value(value: Any) -> Any:
    """Return `value` as JSON has it: a record by its `as_json`, else by its fields; nan, inf and -inf as strings, as on
    the wire."""
    if isinstance(value, float):
        return not_finite(value) or value
    if isinstance(value, Struct):
        value = value.as_json() if hasattr(value, "as_json") else asdict(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return value


def facts(
    pairs: Sequence[tuple[str, str]],
    prose: Collection[str] = (),
    style: Callable[[str, str], str] = lambda *_: "",
    commands: Collection[str] = (),
) -> str:
    """Format names and values in two columns, further lines of a value below its first. Values named in `prose` and
    `commands` are wrapped to the terminal's width; others stay whole, for copying. `style` gives the colour of a name's
    value, one of STYLES or ""."""
    width = max((len(name) for name, _ in pairs), default=0) + 2
    room = max(get_terminal_size().columns - width, 30)
    lines = []
    for name, value in pairs:
        parts = [plain(line) for line in value.split("\n")]
        wrapping = wrap if name in prose else wrap_command if name in commands else None
        wrapped = [part for line in parts for part in wrapping(line, room)] if wrapping else parts
        first, *others = [paint(part, style(name, value)) for part in wrapped]
        lines.append(f"{name:<{width}}{first}".rstrip())
        lines += [f"{'':<{width}}{line}".rstrip() for line in others]
    return "\n".join(lines)


def elide(text: str, columns: int) -> str:
    """Cut the middle of `text` to fit `columns`: what distinguishes the runs of a sweep is at the end."""
    if width(text) <= columns:
        return text
    head = cut(text, (columns - 1) // 2)
    return f"{head}…{cut_head(text, columns - 1 - width(head))}"


def shorten(text: str, columns: int) -> str:
    """Return `text` on one line of at most `columns`."""
    text = one_line(text)
    return text if width(text) <= columns else cut(text, max(columns - 1, 0)) + "…"
