"""What a job wrote: whole, its end, or followed while it runs. Memory stays bounded whatever the size of the log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from queue_runner.errors import MpsqError
from queue_runner.model import Selector, State
from queue_runner.paths import Layout
from queue_runner.rundir import RunDir
from queue_runner.store import read
from queue_runner.text import plain

CHUNK_BYTES = 1 << 16
LINE_BYTES = 1 << 20
"""A line that is longer is passed on in pieces."""
POLL_S = 0.1


def choose(layout: Layout, selector: Selector) -> Mapping[str, Any]:
    """The run whose log is meant: the running one, else the one that started last, else the first that waits.

    Raises: UsageError when nothing is named.
    """
    with read.reading(layout.db) as connection:
        rows = read.select(connection, [selector])

    def rank(row: Mapping[str, Any]) -> tuple[bool, float, int]:
        return row["state"] == State.RUNNING, row["started_at"] or row["claimed_at"] or 0.0, -row["position"]

    return max(rows, key=rank)


def folder_of(layout: Layout, row: Mapping[str, Any]) -> RunDir:
    """The folder with the run's logs. Raises: MpsqError when it has none, with the reason."""
    folder = RunDir(layout.runs / row["run"])
    if row["deleted_at"] is not None:
        raise MpsqError(f"the log of run {row['run']} was deleted with its job", f"mpsq show {row['run']} says when")
    if folder.path.is_dir() and not (row["state"] == State.DONE and not _wrote(folder)):
        return folder
    if row["state"] in (State.QUEUED, State.HELD):
        raise MpsqError(f"run {row['run']} has not started: there is no log yet", f"mpsq why {row['run']}")
    if row["kind"] == "import":
        raise MpsqError(f"run {row['run']} was imported: its log is where it came from", f"mpsq show {row['run']}")
    if row["started_at"] is not None:
        raise MpsqError(f"the log of run {row['run']} was removed", f"mpsq show {row['run']} says when")
    raise MpsqError(f"run {row['run']} left no log: it never started", f"mpsq why {row['run']}")


def _wrote(folder: RunDir) -> bool:
    return folder.stdout.exists() or folder.stderr.exists()


def wait_for_start(layout: Layout, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The run's row once it has a folder with logs, or has ended without ever starting."""
    while row["state"] in (State.QUEUED, State.HELD) or (
        row["state"] == State.RUNNING and not (layout.runs / row["run"]).is_dir()
    ):
        time.sleep(POLL_S)
        with read.reading(layout.db) as connection:
            row = read.runs(connection, "run_id = ?", [row["run_id"]])[0]
    return row


def has_ended(layout: Layout, run_id: int) -> bool:
    """Whether the run is DONE."""
    with read.reading(layout.db) as connection:
        return bool(connection.execute("SELECT 1 FROM runs WHERE id = ? AND state = 'DONE'", [run_id]).fetchone())


def tail_offset(stream: BinaryIO, lines: int) -> int:
    """Where the last `lines` lines of the file begin, found from its end."""
    at = stream.seek(0, os.SEEK_END)
    left = lines
    last = True
    while at > 0 and lines > 0:
        size = min(CHUNK_BYTES, at)
        at -= size
        stream.seek(at)
        block = stream.read(size)
        end = len(block)
        if last:
            last = False
            end -= block.endswith(b"\n")  # the newline that ends the last line begins no other
        while (found := block.rfind(b"\n", 0, end)) >= 0:
            left -= 1
            if left == 0:
                return at + found + 1
            end = found
    return 0 if lines > 0 else stream.seek(0, os.SEEK_END)


def chunks(path: Path, *, lines: int | None = None, follow: Callable[[], bool] | None = None) -> Iterator[bytes]:
    """The file's bytes from its last `lines` lines on (None: all). While `follow()` is true, new bytes as they come,
    and b"" whenever there were none for a moment; after it said no, what was written until then."""
    offset: int | None = None
    while True:
        going_on = follow() if follow is not None else False  # asked before the read, so that nothing is missed
        grew = False
        try:
            with path.open("rb") as stream:
                if offset is None:
                    offset = tail_offset(stream, lines) if lines is not None else 0
                if stream.seek(0, os.SEEK_END) < offset:
                    offset = 0  # the job began its log anew
                stream.seek(offset)
                while data := stream.read(CHUNK_BYTES):
                    grew = True
                    offset += len(data)
                    yield data
        except FileNotFoundError:
            pass
        if not going_on:
            return
        if not grew:
            yield b""
            time.sleep(POLL_S)


class Cleaner:
    """Turns a log into lines worth reading: of what carriage returns overwrite only the last is kept.

    With `terminal` the text is also made harmless: no escape sequences, no control characters.
    """

    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """What can be shown now. b"" says that the log pauses: an unfinished line is shown then, no progress bar."""
        if not data:
            return self._flush() if self._pending and b"\r" not in self._pending else b""
        *lines, rest = (self._pending + data).split(b"\n")
        kept = rest.rstrip(b"\r")
        if b"\r" in kept:  # keep the last state of a progress bar, whole with the return before it
            rest = rest[kept.rindex(b"\r") :]
        self._pending = rest
        shown = b"".join(self._show(line) + b"\n" for line in lines)
        if len(self._pending) > LINE_BYTES:
            shown += self._flush()
        return shown

    def end(self) -> bytes:
        """The last line, if it was never ended."""
        return self._flush() + b"\n" if self._pending else b""

    def _flush(self) -> bytes:
        shown, self._pending = self._show(self._pending), b""
        return shown

    def _show(self, line: bytes) -> bytes:
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
        return plain(line.decode("utf-8", "replace")).encode() if self._terminal else line


def writer(stream: TextIO) -> Callable[[bytes], None]:
    """Writes bytes to a text stream's bytes at once, or as text where the stream has none."""

    def write(data: bytes) -> None:
        if (binary := getattr(stream, "buffer", None)) is not None:
            stream.flush()
            binary.write(data)
            binary.flush()
        else:
            stream.write(data.decode("utf-8", "replace"))

    return write


Source = tuple[Iterator[bytes], Callable[[bytes], object], Cleaner | None]
"""Pieces of a log, where they go, and through which cleaner; None passes them on as they are."""


def copy(sources: Sequence[Source]) -> None:
    """Copy every source to its end, a piece of each in turn so that several can be followed at once."""
    open_ = list(sources)
    while open_:
        for source in tuple(open_):
            pieces, write, cleaner = source
            piece = next(pieces, None)
            if piece is None:
                open_.remove(source)
                shown = cleaner.end() if cleaner is not None else b""
            else:
                shown = cleaner.feed(piece) if cleaner is not None else piece
            if shown:
                write(shown)
