"""Text from jobs and names from users, made safe to show: no terminal escapes, no control characters."""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """`text` without ANSI escapes and without control characters; tabs and newlines stay."""
    return _CONTROLS.sub("", _ESCAPES.sub("", text))


def one_line(text: str) -> str:
    """`text` made safe and put on one line, with single blanks."""
    return " ".join(plain(text).split())


def width(text: str) -> int:
    """How many columns of a terminal the text takes: East Asian wide letters two (Unicode annex 11), marks none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """The head of `text` that fits into so many columns."""
    if width(text) <= columns:
        return text
    taken = 0
    for place, letter in enumerate(text):
        taken += _columns(letter)
        if taken > columns:
            return text[:place]
    return text


def cut_head(text: str, columns: int) -> str:
    """The end of `text` that fits into so many columns."""
    return cut(text[::-1], columns)[::-1]


def wrap(text: str, columns: int) -> list[str]:
    """One line as lines of at most so many columns, the further ones indented; a word longer than that stays whole."""
    if width(text) <= columns:
        return [text]
    import textwrap  # takes milliseconds, and few commands need it

    return textwrap.wrap(text, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def last_line(data: bytes, limit: int = 300) -> str:
    """The last line of a log that says something, safe to show, at most `limit` characters long."""
    lines = [shown for line in re.split(r"[\r\n]+", data.decode("utf-8", "replace")) if (shown := plain(line).strip())]
    while len(lines) > 1 and lines[-1].startswith("hint: "):  # the remedy that our own programs put under an error
        lines.pop()
    shown = lines[-1] if lines else ""
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
