"""Logs of a job: the choice of the run, and its bytes. Memory stays bounded whatever the size of the log."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from queue_runner.errors import MpsqError
from queue_runner.host.filesystem import open_regular
from queue_runner.host.run_dir import RunDir
from queue_runner.model import State
from queue_runner.monitor.log_text import LINE_BYTES, Outputs, Text
from queue_runner.monitor.run_view import RunView
from queue_runner.paths import Layout

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
    size = stream.seek(0, os.SEEK_END)
    if not lines:
        return size
    begin = stream.seek(max(size - TAIL_MOST_BYTES, 0))
    data = stream.read(size - begin)
    end = len(data) - data.endswith(b"\n")  # the newline that ends the last line begins no other
    for _ in range(lines):
        if (end := data.rfind(b"\n", 0, end)) < 0:
            return begin
    return begin + end + 1


class LogFile:
    """A reader of a growing log, from `offset` on. The file belongs to the job: anything else in its place - a link, a
    FIFO - is not read."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._stream: BinaryIO | None = None

    def read(self, end: int | None = None) -> bytes:
        """Return the next bytes, up to the offset `end`; b"" if there are none, or none yet."""
        if self._stream is None:  # opened only once: at the end of a run a large log is replaced by its head and tail
            if (stream := _open(self._path)) is None:
                return b""
            self._stream = stream
            stream.seek(self._offset)
        size = CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - self._offset)
        if size <= 0:
            return b""
        if data := self._stream.read(size):
            self._offset += len(data)
        elif os.fstat(self._stream.fileno()).st_size < self._offset:
            self._offset = self._stream.seek(0)  # the job truncated its log
        return data

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()


def _open(path: Path) -> BinaryIO | None:
    """Return the open file; None where there is none, or anything but a file."""
    try:
        return os.fdopen(open_regular(path), "rb", buffering=0)
    except OSError:
        return None


Sizes = tuple[int, ...]
"""The size in bytes of each file of a log."""


class Log:
    """One log in several files that grew in turns: from one size in `order` to the next, the first file before the
    second. With `lines`, only its last ones (None: all). `texts` are the destinations."""

    def __init__(
        self, paths: Sequence[Path], texts: Sequence[Text], lines: int | None, order: Sequence[Sizes] = ()
    ) -> None:
        offsets = _last_lines(paths, order, lines) if lines is not None else [0] * len(paths)
        self._order = order
        files = [LogFile(path, offset) for path, offset in zip(paths, offsets, strict=True)]
        self._sources = [*zip(files, texts, strict=True)]

    def copy(self, pieces: int | None = None) -> bool:
        """Copy available bytes; beyond the known order a piece of each file in turn, and at most `pieces` of each.
        Returns whether there were any."""
        anything = False
        order, self._order = self._order, ()
        for sizes in order:
            for (file, text), end in zip(self._sources, sizes, strict=True):
                while data := file.read(end):
                    text.feed(data)
                    anything = True
        while pieces is None or (pieces := pieces - 1) >= 0:
            added = [(text, data) for file, text in self._sources if (data := file.read())]
            for text, data in added:
                text.feed(data)
            if not added:
                break
            anything = True
        return anything

    def pause(self) -> None:
        """Handle that there are no more bytes for the moment."""
        for _, text in self._sources:
            text.pause()

    def end(self) -> None:
        """Flush unfinished lines and close the files."""
        for file, text in self._sources:
            text.end()
            file.close()

    def follow(self, wait: Callable[[float], None]) -> None:
        """Copy the lines that are added, until interrupted. Raises: whatever `wait` raises."""
        while True:
            self.copy()
            self.pause()
            wait(POLL_S)


def of_run(folder: RunDir, stdout: Text | None, stderr: Text | None, lines: int | None) -> Log:
    """Return the log of a run: of the streams that have a destination, both in the order in which its warden saw them
    grow."""
    if stdout is None or stderr is None:
        path, text = (folder.stdout, stdout) if stderr is None else (folder.stderr, stderr)
        return Log([path], [text] if text else [], lines)
    paths = [folder.stdout, folder.stderr]
    order = folder.output_order()
    sizes = [path.lstat().st_size if path.is_file() else 0 for path in paths]
    is_whole = all(end <= size for end, size in zip(order[-1], sizes, strict=True)) if order else True
    return Log(paths, [stdout, stderr], lines, order if is_whole else ())  # else a log was cut since


def _last_lines(paths: Sequence[Path], order: Sequence[Sizes], lines: int) -> list[int]:
    """Return the offset in each file at which the last `lines` lines of all together begin."""
    streams = [_open(path) for path in paths]
    try:
        firsts = [tail_offset(stream, lines) if stream else 0 for stream in streams]
        if len(paths) == 1:
            return firsts
        sizes = tuple(stream.seek(0, os.SEEK_END) if stream else 0 for stream in streams)
        offsets, remaining = [*sizes], lines
        for starts, ends in reversed([*pairwise([(0,) * len(paths), *order, sizes])]):
            for place, stream in reversed([*enumerate(streams)]):
                start = max(starts[place], firsts[place])
                if stream is None or start >= ends[place]:
                    continue
                stream.seek(start)
                data = stream.read(ends[place] - start)
                n_lines, skipped = data.count(b"\n") + (not data.endswith(b"\n")), 0
                for _ in range(n_lines - remaining):
                    skipped = data.index(b"\n", skipped) + 1
                offsets[place] = start + skipped
                remaining -= n_lines
                if remaining <= 0:
                    return offsets
        return offsets
    finally:
        for stream in streams:
            if stream is not None:
                stream.close()


Open = Callable[[RunDir, int | None], Log]
"""Opens the log of a run, from its last lines on (None: whole)."""


def opener(out: Outputs, stream: str | None = None, *, apart: bool = False) -> Open:
    """Return a function that opens the log of a run on our stdout: of one `stream`, or of both. `apart`: its stderr
    goes to ours."""

    def open_log(folder: RunDir, lines: int | None) -> Log:
        stdout = out.text() if stream != "stderr" else None
        return of_run(folder, stdout, out.text(to_err=apart) if stream != "stdout" else None, lines)

    return open_log
