"""Logs of a job: the choice of the run, and its bytes. Memory stays bounded whatever the size of the log."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from queue_runner.errors import MpsqError
from queue_runner.model import State
from queue_runner.monitor.log_text import LINE_BYTES, Outputs, Text
from queue_runner.monitor.run_view import RunView
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir

CHUNK_BYTES = 1 << 16
POLL_S = 0.2
TAIL_MOST_BYTES = 16 * LINE_BYTES
"""Bytes at the end of a log that are searched for its last lines: a log may be one line of a gigabyte."""


def choose(runs: Sequence[RunView]) -> RunView:
    """Return the run whose log is meant: the running one, else the one that started last, else the first that waits."""

    def rank(run: RunView) -> tuple[bool, float, float]:
        return run.state == State.RUNNING, run.started_at or run.claimed_at or 0.0, -run.position

    return max(runs, key=rank)


def folder_of(layout: Layout, run: RunView) -> RunDir:
    """Return the folder with the run's logs. Raises: MpsqError, with the reason, when there is none."""
    folder = RunDir(layout.runs / run.run)
    if run.deleted_at is not None:
        raise MpsqError(f"the log of run {run.run} was deleted with its job", f"mpsq show {run.run} says when")
    wrote = folder.stdout.exists() or folder.stderr.exists()
    if folder.path.is_dir() and (wrote or run.state != State.DONE):
        return folder
    if run.state in (State.QUEUED, State.HELD):
        raise MpsqError(f"run {run.run} has not started: there is no log yet", f"mpsq why {run.run}")
    if run.kind == "import":
        if run.machine_hash is not None:  # a log does not name the machine
            raise MpsqError(
                f"the log of run {run.run} is on the machine where it ran: bundles contain no logs", "look there"
            )
        raise MpsqError(f"run {run.run} was imported: its log is the imported file", f"mpsq show {run.run}")
    if run.started_at is not None:
        raise MpsqError(f"the log of run {run.run} was removed", f"mpsq show {run.run} says when")
    raise MpsqError(f"run {run.run} left no log: it never started", f"mpsq why {run.run}")


def tail_offset(stream: BinaryIO, lines: int) -> int:
    """Find where the last `lines` lines of the file begin, searching from its end."""
    size = at = stream.seek(0, os.SEEK_END)
    remaining = lines
    last = True
    while at > 0 and lines > 0:
        if size - at >= TAIL_MOST_BYTES:
            return at
        block_size = min(CHUNK_BYTES, at)
        at -= block_size
        stream.seek(at)
        block = stream.read(block_size)
        end = len(block)
        if last:
            last = False
            end -= block.endswith(b"\n")  # the newline that ends the last line begins no other
        while (newline := block.rfind(b"\n", 0, end)) >= 0:
            remaining -= 1
            if remaining == 0:
                return at + newline + 1
            end = newline
    return 0 if lines > 0 else size


class LogFile:
    """A reader of a growing log, from its last `lines` lines on (None: all). The file belongs to the job: anything else
    in its place - a link, a FIFO - is not read."""

    def __init__(self, path: Path, lines: int | None = None) -> None:
        self._path = path
        self._lines = lines
        self._stream: BinaryIO | None = None
        self._offset = 0

    def read(self) -> bytes:
        """Return the next bytes; b"" if there are none, or none yet."""
        if self._stream is None and not self._open():
            return b""
        assert self._stream is not None
        if data := self._stream.read(CHUNK_BYTES):
            self._offset += len(data)
        elif os.fstat(self._stream.fileno()).st_size < self._offset:
            self._offset = self._stream.seek(0)  # the job truncated its log
        return data

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()

    def _open(self) -> bool:
        """Open the file only once: at the end of a run a large log is replaced by its head and tail."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return False
        stream = os.fdopen(descriptor, "rb", buffering=0)
        self._offset = tail_offset(stream, self._lines) if self._lines is not None else 0
        stream.seek(self._offset)
        self._stream = stream
        return True


Source = tuple[LogFile, Text]
Open = Callable[[RunDir, int | None], Sequence[Source]]
"""Opens the requested logs of a run, from their last lines on (None: whole)."""


def opener(out: Outputs, *, stdout: bool = True, stderr: bool = True) -> Open:
    """Return a function that opens the logs of a run. If both are requested, its stderr goes to our stderr."""

    def open_logs(folder: RunDir, lines: int | None) -> Sequence[Source]:
        sources = [(LogFile(folder.stdout, lines), out.text())] if stdout else []
        return [*sources, (LogFile(folder.stderr, lines), out.text(to_stderr=stdout))] if stderr else sources

    return open_logs


def copy(sources: Sequence[Source], pieces: int | None = None) -> bool:
    """Copy available bytes, a piece of each source in turn and at most `pieces` of each. Returns whether there were
    any."""
    anything = False
    while pieces is None or (pieces := pieces - 1) >= 0:
        if not any([_copy_piece(file, text) for file, text in sources]):
            break
        anything = True
    return anything


def follow(source: Source, wait: Callable[[float], None]) -> None:
    """Copy the lines that are added to a log, until interrupted. Raises: whatever `wait` raises."""
    while True:
        copy([source])
        source[1].pause()
        wait(POLL_S)


def _copy_piece(file: LogFile, text: Text) -> bool:
    if data := file.read():
        text.feed(data)
    return bool(data)


def end(sources: Sequence[Source]) -> None:
    """Flush unfinished lines and close the files."""
    for file, text in sources:
        text.end()
        file.close()
