"""The end of a run's log as text, and what is added to it. Which file it is follows from the store, never from an
address; escape sequences and control characters are removed as `mpsq logs` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from queue_runner.errors import MpsqError, UsageError
from queue_runner.model import Row, State, parse_selector
from queue_runner.monitor import logs
from queue_runner.monitor.log_text import PipeText
from queue_runner.paths import Layout
from queue_runner.run_dir import RunDir
from queue_runner.store import read
from queue_runner.web.live import BEAT_S, Streams, event
from queue_runner.web.views import PATIENCE_S

if TYPE_CHECKING:
    from starlette.requests import Request

STREAMS = ("stdout", "stderr")
LINES, LINES_MOST = 500, 10_000
CHARS_MOST = 1 << 20
"""Characters of a log that a page shows: those at its end."""
_ANEW_S = 2.0
"""Interval at which the store is asked whether the run has ended."""


class Tail:
    """The end of one log, and then what is added to it."""

    def __init__(self, folder: RunDir, stream: str, lines: int) -> None:
        if stream not in STREAMS:
            raise UsageError(f'there is no log "{stream}"', "a run has stdout and stderr")
        self._file = logs.LogFile(getattr(folder, stream), lines)
        self._pieces: list[str] = []
        self._text = PipeText(lambda data: self._pieces.append(data.decode("utf-8", "replace")))
        self.cut = False
        """Whether there was more than a page shows."""

    def more(self) -> str:
        """Return what has been added since, at most CHARS_MOST of it."""
        kept = ""
        while data := self._file.read():
            self._text.feed(data)
            kept += "".join(self._pieces)
            self._pieces.clear()
            if len(kept) > CHARS_MOST:
                kept, self.cut = kept[-CHARS_MOST:], True
        self._text.pause()
        kept += "".join(self._pieces)
        self._pieces.clear()
        return kept

    def end(self) -> str:
        """Close the file, and return an unfinished last line."""
        rest = self.more()
        self._text.end()
        self._file.close()
        return rest + "".join(self._pieces)


def row_of(layout: Layout, text: str) -> Row:
    """Return the run whose log is meant. Raises: UsageError (no such), MpsqError (store)."""
    with read.reading(layout.db, patience_s=PATIENCE_S) as connection:
        return logs.choose(read.select(connection, [parse_selector(text)]))


def page(layout: Layout, text: str, stream: str, lines: int) -> dict[str, Any]:
    """Return the values of the page of a log. Raises: UsageError, MpsqError (store)."""
    row = row_of(layout, text)
    found: dict[str, Any] = {"row": row, "text": "", "cut": "", "trouble": "", "running": row["state"] == State.RUNNING}
    try:
        tail = Tail(logs.folder_of(layout, row), stream, min(max(lines, 1), LINES_MOST))
    except UsageError:
        raise
    except MpsqError as error:  # it has no log, and this says why
        found["trouble"] = error.message
        return found
    found["text"] = tail.end()
    if tail.cut:
        found["cut"] = f"more than {CHARS_MOST >> 20} MiB: this is its end; mpsq logs {row['run']} has all"
    return found


async def follow(
    layout: Layout, text: str, stream: str, lines: int, request: Request, streams: Streams
) -> AsyncIterator[str]:
    """Yield the end of the log, and then what is added to it until the run has ended."""
    quiet_s = since_s = 0.0
    with streams.one():
        try:
            row = await run_in_threadpool(row_of, layout, text)
            tail = Tail(RunDir(layout.run_dir(row["run"])), stream, lines)
            yield event("begin", row["run"])
            running = True
            while running:
                if since_s >= _ANEW_S or row["state"] != State.RUNNING:
                    since_s = 0.0
                    row = await run_in_threadpool(row_of, layout, row["run"])
                    running = row["state"] != State.DONE  # read before the log: nothing written at its end is missed
                more = await run_in_threadpool(tail.more if running else tail.end)
                if more:
                    quiet_s = 0.0
                    yield event("text", more)
                elif quiet_s >= BEAT_S:
                    quiet_s = 0.0
                    yield ":\n\n"
                if running and await streams.last(request):
                    await run_in_threadpool(tail.end)
                    return
                quiet_s, since_s = quiet_s + 0.25, since_s + 0.25
            yield event("end", row["state"])
        except MpsqError as error:
            yield event("trouble", error.message)
            yield event("end", None)
