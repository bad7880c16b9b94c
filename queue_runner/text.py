"""Sanitizing of text from jobs and names from users: no terminal escapes, no control characters."""

from __future__ import annotations

import re
import unicodedata
from typing import TextIO

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Return `text` without ANSI escapes and control characters; tabs and newlines stay. A byte of a name that is not
    UTF-8 becomes a question mark: the store takes none."""
    if text.isprintable():
        return text
    return _CONTROLS.sub("", _ESCAPES.sub("", text)).encode("utf-8", "replace").decode()


def one_line(text: str) -> str:
    """Return `text` sanitized and on one line, with single spaces."""
    return " ".join(plain(text).split())


def width(text: str) -> int:
    """Return the width in terminal columns: East Asian wide letters take two (Unicode annex 11), marks none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """Return the beginning of `text` that fits into `columns`."""
    if width(text) <= columns:
        return text
    taken = 0
    for place, letter in enumerate(text):
        taken += _columns(letter)
        if taken > columns:
            return text[:place]
    return text


def cut_head(text: str, columns: int) -> str:
    """Return the end of `text` that fits into `columns`."""
    return cut(text[::-1], columns)[::-1]


def wrap(text: str, columns: int) -> list[str]:
    """Wrap one line to `columns`, indenting continuation lines; a longer word stays whole, a number beside its unit and
    mpsq beside its verb."""
    if width(text) <= columns:
        return [text]
    return [line.replace(_NO_BREAK, " ") for line in _wrapped(_JOINED.sub(_NO_BREAK, text), columns)]


_NO_BREAK = "\x01"
"""Stands for a space while a line is wrapped; no text that is printed has it."""
_UNIT = r"(?:%|x|[mu]?s|min|h|d|[KMGT]i?B|[kMGT]?Hz|ms/iter|W|J)(?![\w/])"
_JOINED = re.compile(rf"(?<=\bmpsq) (?=[a-z])|(?<=\d) (?={_UNIT})")


def _wrapped(text: str, columns: int) -> list[str]:
    if not text.isascii():  # a letter may take two columns
        lines: list[str] = []
        for word in text.split():
            if lines and width(f"{lines[-1]} {word}") <= columns:
                lines[-1] += f" {word}"
            else:
                lines.append(f"  {word}" if lines else word)
        return lines
    import textwrap  # deferred: takes milliseconds, and few commands need it

    return textwrap.wrap(text, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def for_stream(text: str, stream: TextIO) -> str:
    """Return the lines of a message wrapped to the width of the terminal; a pipe gets them whole."""
    if not stream.isatty():
        return text
    from shutil import get_terminal_size

    columns = get_terminal_size().columns
    return "\n".join(part for line in text.split("\n") for part in wrap(line, columns))


def wrap_command(command: str, columns: int) -> list[str]:
    """Wrap a command line of a shell to `columns`, so that it can still be copied; a longer word stays whole."""
    import shlex  # deferred like textwrap

    try:
        words = [shlex.quote(word) for word in shlex.split(command)] if width(command) > columns else []
    except ValueError:  # shortened, with an open quotation
        words = []
    lines: list[str] = []
    for word in words:
        if lines and width(f"{lines[-1]} {word} \\") <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:] if lines else [command]


def last_line(data: bytes) -> str:
    """Return the last non-empty line of a log, sanitized, at most 300 characters long."""
    lines = [shown for line in re.split(r"[\r\n]+", data.decode("utf-8", "replace")) if (shown := plain(line).strip())]
    while len(lines) > 1 and lines[-1].startswith("hint: "):  # the remedy that our own programs print below an error
        lines.pop()
    shown = lines[-1] if lines else ""
    return shown if len(shown) <= 300 else shown[:299] + "…"
