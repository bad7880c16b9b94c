"""Logs as readable lines: sanitized, without escape sequences and control characters, wherever they go.

The output of a job is not trusted, and text in a pipe or a file may end on a terminal. Of text that carriage returns
overwrite only the last is kept. On a terminal an unfinished line, such as a progress bar, is updated in place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TextIO

from queue_runner.host.low_priority import descriptor
from queue_runner.text import cut, plain, width

LINE_BYTES = 1 << 20
"""Longest line; a longer one is passed on in pieces."""
_CUT = re.compile(
    rb"(?:\x1b(?:\][^\x07\x1b]*|[^A-Za-z]*)|[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)
"""The beginning of an escape sequence or of a letter whose end has not been written yet."""

Write = Callable[[bytes], None]


class Text:
    """The destination of the bytes of one log; this one passes them on unchanged."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def feed(self, data: bytes) -> None:
        """Process the next bytes."""
        self._write(data)

    def pause(self) -> None:
        """Handle that there are no more bytes for the moment."""

    def end(self) -> None:
        """Handle the end of the log."""


class _LogLines(Text):
    """A destination for finished lines; of an unfinished line it keeps only what has not been overwritten yet."""

    _AFTER_PIECE = b""
    """Bytes written after a piece of a line that is too long."""

    def __init__(self, write: Write) -> None:
        super().__init__(write)
        self.pending = b""

    def feed(self, data: bytes) -> None:
        shown = self._finished(self.pending + data)
        if len(self.pending) > LINE_BYTES:
            shown += self._take() + self._AFTER_PIECE
        if shown:
            self._write(shown)

    def end(self) -> None:
        if self.pending:
            self._write(self._take() + b"\n")

    def _finished(self, data: bytes) -> bytes:
        """Return the lines that are finished now, each with its newline."""
        if b"\r" not in data:  # most logs: no need to split their lines
            finished, newline, self.pending = data.rpartition(b"\n")
            return finished + newline
        *lines, rest = data.split(b"\n")
        visible = rest.rstrip(b"\r")
        # keep the last state of a progress bar whole, with the return before it
        self.pending = rest[visible.rindex(b"\r") :] if b"\r" in visible else rest
        return b"".join(_last(line) + b"\n" for line in lines)

    def _take(self) -> bytes:
        pending, self.pending = self.pending, b""
        return _last(pending)


def _last(line: bytes) -> bytes:
    """Return the part of a line that remains visible."""
    return line.rstrip(b"\r").rpartition(b"\r")[2] if b"\r" in line else line


class PipeText(_LogLines):
    """Sanitized lines for a pipe or a file. When a log pauses, an unfinished line is passed on as far as it goes; a
    progress bar, or a line that ends within an escape sequence, is not."""

    def __init__(self, write: Write) -> None:
        super().__init__(lambda lines: write(_harmless(lines).encode()))

    def pause(self) -> None:
        if self.pending and b"\r" not in self.pending and not _CUT.search(self.pending):
            self._write(self._take())


class Screen:
    """A scrolling terminal with one unfinished line at the bottom that can be removed again. Without escape sequences,
    so that it works on any terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._write = writer(stream)
        self._fd = descriptor(stream)
        self._encoding = stream.encoding or "utf-8"
        self._foot = ""

    def print(self, lines: list[str]) -> None:
        """Print finished lines in place of the unfinished one, which is removed."""
        self._put(self._erased() + "".join(f"{line}\n" for line in lines))

    def foot(self, text: str) -> None:
        """Show an unfinished line, as far as it fits."""
        text = cut(text.expandtabs(), self._columns() - 1)
        if text != self._foot:
            self._put(self._erased() + text)
            self._foot = text

    def _erased(self) -> str:
        blank = f"\r{' ' * width(self._foot)}\r" if self._foot else ""
        self._foot = ""
        return blank

    def _put(self, text: str) -> None:
        if text:
            self._write(text.encode(self._encoding, "replace"))

    def _columns(self) -> int:
        try:
            return max(os.get_terminal_size(self._fd if self._fd is not None else 1).columns, 2)
        except OSError:
            return 80


class ScreenText(_LogLines):
    """Sanitized lines for a terminal. Two logs may share one screen."""

    _AFTER_PIECE = b"\n"

    def __init__(self, screen: Screen) -> None:
        super().__init__(lambda lines: screen.print(_harmless(lines[:-1]).split("\n")))
        self._screen = screen

    def pause(self) -> None:
        if self.pending:
            self._screen.foot(_harmless(_CUT.sub(b"", _last(self.pending))))


def _harmless(data: bytes) -> str:
    """Sanitize each line separately: an escape sequence that never ends must not swallow the next line."""
    text = data.decode("utf-8", "replace")
    return "\n".join(map(plain, text.split("\n"))) if "\x1b" in text else plain(text)


def writer(stream: TextIO) -> Write:
    """Return a function that writes bytes to the stream's buffer immediately, or as text if it has none."""

    def write(data: bytes) -> None:
        if (binary := getattr(stream, "buffer", None)) is not None:
            stream.flush()
            binary.write(data)
            binary.flush()
        else:
            stream.write(data.decode("utf-8", "replace"))

    return write


class Outputs:
    """The destinations of logs (`out`) and of messages (`err`): on a shared terminal none writes into a line of
    another."""

    def __init__(self, out: TextIO, err: TextIO, *, raw: bool) -> None:
        self._out, self._err, self._raw = out, err, raw
        self._screens: dict[TextIO, Screen] = {}
        for stream in (out, err):
            if stream.isatty() and not raw:
                self._screens[stream] = Screen(stream)
        if out in self._screens and err in self._screens and _same_terminal(out, err):
            self._screens[err] = self._screens[out]

    def text(self) -> Text:
        """Return a destination for one log."""
        if self._raw:
            return Text(writer(self._out))
        return ScreenText(self._screens[self._out]) if self._out in self._screens else PipeText(writer(self._out))

    def say(self, text: str) -> None:
        """Write a message to stderr."""
        if self._err in self._screens:
            self._screens[self._err].print(plain(text).split("\n"))
        else:
            self._err.write(f"{plain(text)}\n")
            self._err.flush()


def _same_terminal(a: TextIO, b: TextIO) -> bool:
    try:
        return os.fstat(a.fileno()).st_rdev == os.fstat(b.fileno()).st_rdev
    except (OSError, ValueError):
        return False
