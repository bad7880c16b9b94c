"""A log as lines worth reading: of what carriage returns overwrite only the last is kept.

In a pipe or a file the rest of the bytes stay as the job wrote them, colours and all. On a terminal they are made
harmless: no escape sequences, no control characters; and what has not ended yet, a progress bar say, is shown in place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Protocol, TextIO

from queue_runner.host.low_priority import descriptor
from queue_runner.text import cut, plain, width

LINE_BYTES = 1 << 20
"""A line that is longer is passed on in pieces."""
_CUT_ESCAPE = re.compile(r"\x1b[^A-Za-z]*\Z")
"""The beginning of an escape sequence whose end has not been written yet."""

Write = Callable[[bytes], None]


class Text(Protocol):
    """Where the bytes of one log go."""

    def feed(self, data: bytes) -> None:
        """The next bytes."""

    def pause(self) -> None:
        """There are no more for the moment."""

    def end(self) -> None:
        """There are no more at all."""


class Raw:
    """Passes everything on as it is."""

    def __init__(self, write: Write) -> None:
        self.feed = write

    def pause(self) -> None:
        """Nothing is kept back."""

    def end(self) -> None:
        """Nothing is kept back."""


class _Lines:
    """Splits bytes into lines; of an unfinished one only what nothing has overwritten yet is kept."""

    def __init__(self) -> None:
        self.pending = b""

    def feed(self, data: bytes) -> bytes:
        """The lines that are finished now, each with its newline."""
        data = self.pending + data
        if b"\r" not in data:  # most logs: their lines need not be told apart
            finished, newline, self.pending = data.rpartition(b"\n")
            return finished + newline
        *lines, rest = data.split(b"\n")
        kept = rest.rstrip(b"\r")
        # the last state of a progress bar is kept whole, with the return before it
        self.pending = rest[kept.rindex(b"\r") :] if b"\r" in kept else rest
        return b"".join(_last(line) + b"\n" for line in lines)

    def take(self) -> bytes:
        pending, self.pending = self.pending, b""
        return _last(pending)


def _last(line: bytes) -> bytes:
    """What is seen of a line in the end."""
    return line.rstrip(b"\r").rpartition(b"\r")[2] if b"\r" in line else line


class PipeText:
    """Lines for a pipe or a file. A line that pauses is passed on as far as it is, a progress bar is not."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._lines = _Lines()

    def feed(self, data: bytes) -> None:
        shown = self._lines.feed(data)
        if len(self._lines.pending) > LINE_BYTES:
            shown += self._lines.take()
        if shown:
            self._write(shown)

    def pause(self) -> None:
        if self._lines.pending and b"\r" not in self._lines.pending:
            self._write(self._lines.take())

    def end(self) -> None:
        if self._lines.pending:
            self._write(self._lines.take() + b"\n")


class Screen:
    """A terminal that lines scroll over, with one unfinished line at its foot that can be taken away again. Without
    escape sequences, so that any terminal will do."""

    def __init__(self, stream: TextIO) -> None:
        self._write = writer(stream)
        self._fd = descriptor(stream)
        self._encoding = stream.encoding or "utf-8"
        self._foot = ""

    def print(self, lines: list[str]) -> None:
        """Print finished lines above the foot, which is gone then."""
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


class ScreenText:
    """Lines for a terminal, made harmless. Two logs may share one screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._lines = _Lines()

    def feed(self, data: bytes) -> None:
        shown = self._lines.feed(data)
        if len(self._lines.pending) > LINE_BYTES:
            shown += self._lines.take() + b"\n"
        if shown:
            self._screen.print(_harmless(shown[:-1]))

    def pause(self) -> None:
        if self._lines.pending:
            unfinished = _last(self._lines.pending).decode("utf-8", "ignore")
            self._screen.foot(plain(_CUT_ESCAPE.sub("", unfinished)))

    def end(self) -> None:
        if self._lines.pending:
            self._screen.print(_harmless(self._lines.take()))


def _harmless(lines: bytes) -> list[str]:
    """Line by line: an escape sequence that never ends must not take the next line with it."""
    return [plain(line) for line in lines.decode("utf-8", "replace").split("\n")]


def writer(stream: TextIO) -> Write:
    """Writes bytes to a text stream's bytes at once, or as text where the stream has none."""

    def write(data: bytes) -> None:
        if (binary := getattr(stream, "buffer", None)) is not None:
            stream.flush()
            binary.write(data)
            binary.flush()
        else:
            stream.write(data.decode("utf-8", "replace"))

    return write


class Outputs:
    """Where a job's stdout and stderr go, and what we say: on one terminal none writes into the line of another."""

    def __init__(self, out: TextIO, err: TextIO, *, raw: bool) -> None:
        self._out, self._err, self._raw = out, err, raw
        self._screens: dict[TextIO, Screen] = {}
        for stream in (out, err):
            if stream.isatty() and not raw:
                self._screens[stream] = Screen(stream)
        if out in self._screens and err in self._screens and _same_terminal(out, err):
            self._screens[err] = self._screens[out]

    def text(self, *, to_stderr: bool = False) -> Text:
        """A way for the bytes of one log, to our stderr or to our stdout."""
        stream = self._err if to_stderr else self._out
        if self._raw:
            return Raw(writer(stream))
        return ScreenText(self._screens[stream]) if stream in self._screens else PipeText(writer(stream))

    def say(self, text: str) -> None:
        """Talk, to stderr."""
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
