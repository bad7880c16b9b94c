"""The full-screen dashboard of the queue: the only module that imports Rich, and itself imported only when needed."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import NoReturn

from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from queue_runner import units
from queue_runner.monitor import status_text
from queue_runner.monitor.progress import RunProgress
from queue_runner.monitor.queue_status import Observation, Status

FOOTER = "Ctrl-C quits; the queue continues"
_BAR_MOST, _SPARK_MOST = 40, 60
BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.:-=+*#"
_LEAST_SPAN = 0.05
"""Smallest span of a sparkline's scale, relative to the fastest iteration: the noise of a steady run is drawn as a flat
line, not blown up to the full height."""
_FENCES = 3.0
"""Multiple of the interquartile range above the upper quartile: values beyond are far out (Tukey 1977) and cut off."""
_FEW_ENDED = 3
_HEAD = 3
"""Lines of a table before its rows: an empty one, the titles, the rule."""

Tables = tuple[list[str], list[str]]
"""The lines of the waiting and of the ended runs."""


class Dashboard:
    """A context manager that takes over the terminal screen, draws the queue on it, and restores the screen."""

    def __init__(self) -> None:
        self._console = Console(markup=False, emoji=False, highlight=False)
        self._observation: Observation | None = None
        self._size = self._console.size
        self._stop_wanted = False
        self._tables: tuple[tuple[int, int], Tables] | None = None

    def __enter__(self) -> Dashboard:
        handlers = {
            signal.SIGTSTP: self._want_stop,
            signal.SIGINT: signal.default_int_handler,  # where a script started it, SIGINT is ignored
            **dict.fromkeys((signal.SIGTERM, signal.SIGHUP), _leave),
        }
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave it half restored
        try:
            self._live.stop()
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def show(self, observation: Observation | None) -> None:
        """Draw `observation`. None means nothing new: redraw only after a resize or a suspension."""
        stopped = self._stop_wanted
        if stopped:
            self._stop()
        if observation is None and self._console.size == self._size and not stopped:
            return
        self._observation = observation or self._observation
        self._size = self._console.size
        if self._observation is not None:
            self._live.update(self._frame(self._observation), refresh=True)

    def _start(self) -> None:
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live.start()

    def _want_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_wanted = True

    def _stop(self) -> None:
        """Handle Ctrl-Z: restore the screen, stop, and take the screen over again when continued."""
        self._live.stop()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._want_stop)
        self._stop_wanted = False
        self._start()

    def _frame(self, observation: Observation) -> Layout:
        key = (observation.turn, self._size.width)
        if self._tables is None or self._tables[0] != key:
            self._tables = key, tables(observation.status)
        return frame(observation.status, observation.newest_s, self._tables[1], self._console)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """Let a signal that ends the program restore the terminal first."""
    raise SystemExit(128 + number)


def tables(status: Status) -> Tables:
    """Return the lines of the waiting and of the ended runs."""
    waiting = status_text.waiting_table(status).split("\n") if status.waiting else []
    return waiting, status_text.ended_table(status, colour=True).split("\n") if status.ended else []


def frame(status: Status, newest_s: Sequence[float], runs: Tables, console: Console) -> Layout:
    """Return the screen: what the queue does, the waiting runs and at least a few of the ended ones, as far as they fit
    above the footer."""
    waiting, ended = runs
    top = _facts(status, newest_s, console)
    room = console.height - len(console.render_lines(top, pad=False)) - 2  # an empty line and the footer
    few = _HEAD + sum(map(len, _rows(ended)[:_FEW_ENDED])) if ended else 0
    if waiting and room - few < _HEAD + 1:
        few = 0
    above = _table(waiting, room - few, status.waiting_count)
    layout = Layout()
    body = Group(top, *above, *_table(ended, room - len(above)))
    layout.split_column(Layout(body), Layout(Text(FOOTER, "dim"), size=1))
    return layout


def _facts(status: Status, newest_s: Sequence[float], console: Console) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for name, value in status_text.lane(status):
        grid.add_row(name, Text(value, "" if name == "worker" and status.queue.worker else "yellow"))
    if status.running is None:
        grid.add_row("running", "nothing")
    else:
        grid.add_row("running", Text(status_text.run_and_question(status.running.run), "bold"))
        for line in _progress(status.running.progress, newest_s, console):
            grid.add_row("", line)
        for sentence in status_text.trouble(status):
            grid.add_row("", Text(sentence, "yellow"))
    for name, value in status_text.plan(status):
        grid.add_row(name, value)
    return grid


def _progress(progress: RunProgress, newest_s: Sequence[float], console: Console) -> Iterator[RenderableType]:
    if progress.planned_iters:
        share = min(progress.iters / progress.planned_iters, 1.0)
        bar = Table.grid(padding=(0, 2, 0, 0))
        words = f"{units.count(progress.iters)} of {units.count(progress.planned_iters)}, {int(share * 100)} %"
        width = min(_BAR_MOST, console.width - len(words) - 11)
        bar.add_row(ProgressBar(1.0, share, width), Text(words, "green", no_wrap=True))
        yield bar
    yield from filter(
        None, (status_text.numbers(progress, counted=not progress.planned_iters), status_text.clock(progress))
    )
    spark = sparkline(newest_s[-min(_SPARK_MOST, max(console.width - 9, 1)) :], ascii=console.options.ascii_only)
    if spark is not None and len(spark.bars) > 1:
        words = f"the last {len(spark.bars)} iterations: {units.ms(spark.low_s)} to {units.ms(spark.high_s)} ms"
        if spark.beyond:
            words += f", {spark.beyond} slower: up to {units.ms(spark.max_s)} ms"
        yield Text(spark.bars, "cyan", no_wrap=True)
        yield Text(words, "dim")


def _table(lines: list[str], room: int, count: int | None = None) -> list[Text]:
    """Return a table's lines after an empty one; rows that do not fit are counted if `count`, their total, is given."""
    if not lines or room < _HEAD + 1:
        return []
    rows = _fitting(_rows(lines), room - _HEAD)
    rest = []
    if count is not None and count > len(rows):
        rows = _fitting(rows, room - _HEAD - 1)
        rest = [Text(f"... and {units.count(count - len(rows))} more", "dim")]
    shown = ["", *lines[:2], *itertools.chain.from_iterable(rows)]
    drawn = [Text.from_ansi(line, no_wrap=True, overflow="ellipsis") for line in shown]
    drawn[1].stylize("bold")
    drawn[2].stylize("dim")
    return [*drawn, *rest]


def _rows(lines: Sequence[str]) -> list[list[str]]:
    """Return the lines of each row of a table: in a narrow terminal a row has several, and only the first of them has a
    text in the first column."""
    rows: list[list[str]] = []
    first_column = len(lines[1].partition(" ")[0]) if lines else 0
    for line in lines[2:]:
        if line[:first_column].strip() or not rows:
            rows.append([])
        rows[-1].append(line)
    return rows


def _fitting(rows: Sequence[list[str]], room: int) -> list[list[str]]:
    """Return the first rows that fit whole into so many lines."""
    ends = itertools.accumulate(map(len, rows))
    return [row for row, end in zip(rows, ends, strict=True) if end <= room]


class Sparkline(Struct, frozen=True):
    """A row of bars of the newest iterations' times, scaled so that one slow iteration does not flatten the others.

    `bars` has a character per iteration. The lowest bar is `low_s`, the full height `high_s`; `beyond`
    iterations are slower than that, the slowest `max_s`. Seconds."""

    bars: str
    low_s: float
    high_s: float
    beyond: int
    max_s: float


def sparkline(times_s: Sequence[float], *, ascii: bool = False) -> Sparkline | None:
    """Return the bars of `times_s`, the oldest first; None if there is nothing to draw."""
    times = [t for t in times_s if t == t and t >= 0]
    if not times:
        return None
    ordered = sorted(times)
    low = ordered[0]
    q1, q3 = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    high = max(t for t in ordered if t <= q3 + _FENCES * (q3 - q1))
    span = max(high - low, _LEAST_SPAN * low) or 1.0
    letters = ASCII_BARS if ascii else BARS
    last = len(letters) - 1
    drawn = "".join(letters[min(last, int(min((t - low) / span, 1.0) * len(letters)))] for t in times)
    return Sparkline(drawn, low, high, sum(t > high for t in times), ordered[-1])
