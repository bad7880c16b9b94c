"""Logs as readable lines: sanitized, without escape sequences and control characters, wherever they go.

The output of a job is not trusted, and text in a pipe or a file may end on a terminal. Of text that carriage returns
overwrite only the last is kept. On a terminal a progress bar overwrites itself.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import TextIO

from queue_runner.text import for_stream, plain

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


class PipeText(Text):
    """Sanitized lines for a pipe or a file; of an unfinished line it keeps only what has not been overwritten yet. When
    a log pauses, that is passed on as far as it goes; a progress bar, or a line that ends within an escape sequence, is
    not."""

    def __init__(self, write: Write) -> None:
        super().__init__(lambda lines: write(_harmless(lines).encode()))
        self.pending = b""

    def feed(self, data: bytes) -> None:
        shown = self._finished(self.pending + data)
        if len(self.pending) > LINE_BYTES:
            shown += self._take()
        if shown:
            self._write(shown)

    def pause(self) -> None:
        if self.pending and b"\r" not in self.pending and not _CUT.search(self.pending):
            self._write(self._take())

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


class Screen:
    """A scrolling terminal that several logs and messages share: none of them continues the line of another."""

    def __init__(self, stream: TextIO) -> None:
        self._write = writer(stream)
        self._encoding = stream.encoding or "utf-8"
        self._writer: object = None

    def put(self, writer: object, text: str) -> None:
        """Print text of this writer; an unfinished line of another one ends first."""
        if text:
            begin = "" if self._writer in (None, writer) else "\n"
            self._write(f"{begin}{text}".encode(self._encoding, "replace"))
            self._writer = None if text.endswith("\n") else writer

    def end_line(self, writer: object) -> None:
        """End the line that this writer has left unfinished."""
        if self._writer is writer:
            self.put(writer, "\n")


class ScreenText(Text):
    """Sanitized text for a terminal, on which a progress bar overwrites itself."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._rest = b""

    def feed(self, data: bytes) -> None:
        lines, newline, last = (self._rest + data).rpartition(b"\n")
        cut = _CUT.search(last) if len(last) < LINE_BYTES else None
        whole = last[: cut.start() if cut else None].rstrip(b"\r")  # a return belongs to what overwrites the line
        self._rest = last[len(whole) :]
        shown = lines + newline + whole
        if b"\r" in shown:
            shown = b"\n".join(b"\r" * (b"\r" in line.rstrip(b"\r")) + _last(line) for line in shown.split(b"\n"))
        self._screen.put(self, "\r".join(map(_harmless, shown.split(b"\r"))))

    def end(self) -> None:
        self._screen.end_line(self)


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
    """The destinations of logs and of messages (`err`): on a shared terminal none writes into a line of another."""

    def __init__(self, out: TextIO, err: TextIO, *, raw: bool) -> None:
        self._out, self._err, self._raw = out, err, raw
        self._screens: dict[TextIO, Screen] = {}
        for stream in (out, err):
            if stream.isatty() and not raw:
                self._screens[stream] = Screen(stream)
        if out in self._screens and err in self._screens:
            with contextlib.suppress(OSError, ValueError):
                if os.fstat(out.fileno()).st_rdev == os.fstat(err.fileno()).st_rdev:
                    self._screens[err] = self._screens[out]

    def text(self, *, to_err: bool = False) -> Text:
        """Return a destination for one log: `out`, or `err`."""
        stream = self._err if to_err else self._out
        if self._raw:
            return Text(writer(stream))
        return ScreenText(self._screens[stream]) if stream in self._screens else PipeText(writer(stream))

    def say(self, text: str) -> None:
        """Write a message to stderr."""
        message = f"{for_stream(plain(text), self._err)}\n"
        if self._err in self._screens:
            self._screens[self._err].put(self, message)
        else:
            self._err.write(message)
            self._err.flush()
