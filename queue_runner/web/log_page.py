"""The end of a run's log as text, and the lines that are added to it. The store names the file, never an address;
escape sequences and control characters are removed as `mpsq logs` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from msgspec import Struct
from starlette.concurrency import run_in_threadpool

from queue_runner.errors import MpsqError, UsageError
from queue_runner.host.run_dir import RunDir
from queue_runner.model import State, parse_selector
from queue_runner.monitor import log_files, run_view
from queue_runner.monitor.log_text import PipeText
from queue_runner.monitor.run_view import RunView, outcome_style
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.web.live import BEAT_S, Streams, event
from queue_runner.web.views import PATIENCE_S

if TYPE_CHECKING:
    from starlette.requests import Request

STREAMS = ("output", "stdout", "stderr")
"""The logs of a run by their names in addresses; the first is both streams in order of time."""
LINES, LINES_MOST = 500, 10_000
CHARS_MOST = 1 << 20
"""Characters of a log that a page shows: those at its end."""
_ANEW_S = 2.0
"""Interval at which the store is asked whether the run has ended."""


class Tail:
    """The end of one log, and then the lines that are added to it."""

    def __init__(self, folder: RunDir, stream: str, lines: int) -> None:
        if stream not in STREAMS:
            raise UsageError(f'there is no log "{stream}"', f"a run has {', '.join(STREAMS)}")
        self._text = ""
        stdout = PipeText(self._take) if stream != "stderr" else None
        self._log = log_files.of_run(folder, stdout, PipeText(self._take) if stream != "stdout" else None, lines)
        self.cut = False
        """Whether there was more than a page shows."""

    def more(self) -> str:
        """Return the text that has been added since, at most CHARS_MOST of it."""
        self._log.copy()
        self._log.pause()
        text, self._text = self._text, ""
        return text

    def end(self) -> str:
        """Close the files, and return the rest with an unfinished last line."""
        self._log.copy()
        self._log.end()
        return self._text

    def _take(self, data: bytes) -> None:
        self._text += data.decode("utf-8", "replace")
        if len(self._text) > CHARS_MOST:
            self._text, self.cut = self._text[-CHARS_MOST:], True


def run_of(layout: Layout, text: str) -> RunView:
    """Return the run whose log is meant. Raises: UsageError (no such), MpsqError (store)."""
    with read.reading(layout.db, patience_s=PATIENCE_S) as connection:
        return log_files.choose(run_view.select(connection, [parse_selector(text)]))


class LogPage(Struct, frozen=True):
    """The values of the page of a log; `trouble` says why there is none, `cut` that more exists."""

    run: RunView
    text: str = ""
    cut: str = ""
    trouble: str = ""


def page(layout: Layout, text: str, stream: str, lines: int) -> LogPage:
    """Return the page of a log. Raises: UsageError, MpsqError (store)."""
    run = run_of(layout, text)
    try:
        tail = Tail(log_files.folder_of(layout, run), stream, lines)
    except UsageError:
        raise
    except MpsqError as error:
        return LogPage(run, trouble=error.message)
    end = tail.end()
    more = f"more than {CHARS_MOST >> 20} MiB: this is its end; mpsq logs {run.run} has all" if tail.cut else ""
    return LogPage(run, end, more)


ERROR_LINES = 15


def last_words(layout: Layout, run: RunView) -> str:
    """Return the end of the log of a run that did not succeed; "" for others, and if there is none."""
    if run.outcome is None or outcome_style(run.outcome) != "bad":
        return ""
    try:
        return Tail(log_files.folder_of(layout, run), "output", ERROR_LINES).end()
    except MpsqError:
        return ""


async def follow(
    layout: Layout, text: str, stream: str, lines: int, request: Request, streams: Streams
) -> AsyncIterator[str]:
    """Yield the end of the log, and then each addition until the run has ended. After trouble a browser asks again."""
    quiet_s = since_s = 0.0
    with streams.counted():
        try:
            run = await run_in_threadpool(run_of, layout, text)
            tail = Tail(RunDir(layout.run_dir(run.run)), stream, lines)
            yield event("begin", run.run)
            running = True
            while running:
                if since_s >= _ANEW_S or run.state != State.RUNNING:
                    since_s = 0.0
                    run = await run_in_threadpool(run_of, layout, run.run)
                    running = run.state != State.DONE  # read before the log: nothing written at its end is missed
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
            yield event("end", run.state)
        except MpsqError as error:
            yield event("trouble", error.with_remedy)
