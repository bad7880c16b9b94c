"""Formatting of rows as tables, CSV and JSON. The only importer of tabulate.

Numbers stay numbers in CSV and JSON (SI units, named in the key); only tables use words and rounding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Any

from queue_runner.errors import UsageError
from queue_runner.model import Row
from queue_runner.text import cut, cut_head, one_line, plain, width, wrap
from queue_runner.units import MISSING, not_finite

_NAMED = ("table", "csv", "json", "md")
WIDTH = 80  # minimum width of a table; a wider terminal is used in full
_OURS = {"table": "simple", "md": "github"}


@dataclass(frozen=True)
class Column:
    """A column: the key of its value in a row, its title in tables, and how a value is formatted."""

    key: str
    title: str
    words: Callable[[Any], str] | None = None
    right: bool = False
    flexible: bool = False
    """Whether a table that is too wide for a terminal may leave out the middle of its texts."""

    def show(self, row: Row) -> str:
        """Return the cell's text on one line, safe to print on a terminal."""
        value = row.get(self.key)
        text = self.words(value) if self.words is not None else MISSING if value is None else str(value)
        return one_line(text)


def formats() -> list[str]:
    """Return all names that --format accepts: ours, then tabulate's."""
    from tabulate import tabulate_formats

    return [*_NAMED, *(name for name in tabulate_formats if name not in _NAMED)]


def check_format(name: str) -> str:
    """Return `name` if it is a format. Raises: UsageError."""
    if name in _NAMED:
        return name
    from tabulate import tabulate_formats

    if name not in tabulate_formats:
        from queue_runner.errors import did_you_mean

        otherwise = "use table, csv, json, md, or a format of tabulate: " + ", ".join(sorted(tabulate_formats))
        raise UsageError(f'unknown format "{name}"', did_you_mean(name, formats(), otherwise))
    return name


def table(rows: Sequence[Row], columns: Sequence[Column], format: str = "table") -> str:
    """Format rows as a table: table, md, csv (raw values) or any format of tabulate. Raises: UsageError."""
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
            headers=titles,
            tablefmt=_OURS.get(format, format),
            colalign=["right" if column.right else "left" for column in columns] if cells else None,
            disable_numparse=True,
        )
        return "\n".join(line.rstrip() for line in text.replace(_NOTHING, "").split("\n"))

    text = lay_out()
    excess = max(map(width, text.splitlines()), default=0) - max(WIDTH, get_terminal_size().columns)
    if format != "table" or excess <= 0 or not any(column.flexible for column in columns):
        return text
    _narrow([titles, *cells], columns, excess)
    return lay_out()


def _narrow(lines: list[list[str]], columns: Sequence[Column], excess: int) -> None:
    """Remove `excess` characters from the flexible columns, headings included, always from the widest."""
    widths = {at: max(width(line[at]) for line in lines) for at, column in enumerate(columns) if column.flexible}
    for _ in range(excess):
        widths[max(widths, key=lambda at: widths[at])] -= 1
    for line in lines:
        for at, columns_left in widths.items():
            line[at] = elide(line[at], max(columns_left, 1))


_NOTHING = "\0"
"""Filler after a double-width letter while tabulate, which counts letters, computes the layout; never in text."""


def _padded(cell: str) -> str:
    return cell if cell.isascii() else "".join(letter + _NOTHING * (width(letter) - 1) for letter in cell)


def csv(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Format rows as CSV: a header of keys, raw values, empty cells for missing ones.

    Text that a spreadsheet would run as a formula is prefixed with a quote (OWASP, "CSV Injection").
    """
    import io
    from csv import writer

    out = io.StringIO()
    lines = writer(out, lineterminator="\n")
    lines.writerow([column.key for column in columns])
    for row in rows:
        lines.writerow([_csv_cell(row.get(column.key)) for column in columns])
    return out.getvalue().rstrip("\n")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value[:1] in "=+-@\t\r" and value[:1] else value
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(finite(value), sort_keys=True)
    return value


def envelope(schema: str, /, **fields: Any) -> str:
    """Return a JSON object that names its schema, e.g. mpsq.list/1; numbers JSON cannot represent become strings."""
    return json.dumps({"schema": schema, **finite(fields)}, indent=2, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """Return `value` with nan, inf and -inf as strings, as on the wire, and mappings and sequences as JSON has them."""
    if isinstance(value, float):
        return not_finite(value) or value
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def facts(pairs: Sequence[tuple[str, str]], prose: Collection[str] = ()) -> str:
    """Format names and values in two columns, further lines of a value below its first. Values named in `prose` are
    wrapped to the terminal's width; others stay whole, for copying."""
    width = max((len(name) for name, _ in pairs), default=0) + 2
    room = max(get_terminal_size().columns - width, 30)
    lines = []
    for name, value in pairs:
        said = [plain(line) for line in value.split("\n")]
        first, *others = [part for line in said for part in wrap(line, room)] if name in prose else said
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
