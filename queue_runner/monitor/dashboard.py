"""The full-screen dashboard of the queue: the only module that imports Rich, and itself imported only when needed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from queue_runner import units
from queue_runner.monitor import status_text
from queue_runner.monitor.progress import RunProgress
from queue_runner.monitor.status import Observation, Status
from queue_runner.text import plain

FOOTER = "Ctrl-C quits; the queue continues"
_INDENT = 9
"""Columns before a value: the width of the longest name and two spaces."""
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

Line = tuple[str, str]
"""A line of the screen and its style."""
Tables = tuple[list[str], list[str]]


class Dashboard:
    """A context manager that takes over the terminal screen, draws the queue on it, and restores the screen."""

    def __init__(self) -> None:
        self._console = Console(markup=False, emoji=False, highlight=False)
        self._ascii = not _can_say("▁━…", self._console.encoding)
        self._observation: Observation | None = None
        self._size = self._console.size
        self._stop_wanted = False
        self._tables: tuple[tuple[int, int], Tables] | None = None

    def __enter__(self) -> Dashboard:
        self._start()
        self._on_stop = signal.signal(signal.SIGTSTP, self._want_stop)
        # Where a script started it, SIGINT is ignored.
        self._on_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave it half restored
        try:
            self._live.stop()
        finally:
            signal.signal(signal.SIGINT, self._on_interrupt)
            signal.signal(signal.SIGTSTP, self._on_stop)

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

    def _frame(self, observation: Observation) -> Text:
        width, height = self._size
        if self._tables is None or self._tables[0] != (observation.turn, width):
            self._tables = (observation.turn, width), tables(observation.status)
        return frame(
            observation.status, observation.newest_s, self._tables[1], width=width, height=height, ascii=self._ascii
        )


def _can_say(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def tables(status: Status) -> Tables:
    """Return the lines of the waiting and of the ended runs."""
    waiting = status_text.waiting_table(status).split("\n") if status.waiting else []
    return waiting, status_text.ended_table(status, colour=True).split("\n") if status.ended else []


def frame(status: Status, newest_s: Sequence[float], runs: Tables, *, width: int, height: int, ascii: bool) -> Text:
    """Return the screen: at most `height` lines of at most `width` columns."""
    top = _facts(status, newest_s, width, ascii)
    room = height - len(top) - 2  # the last line, and an empty one before it
    body = _body(*runs, status.waiting_count, room)
    lines = [*top, *body][: height - 1]
    lines += [("", "")] * (height - 1 - len(lines))
    screen = Text(no_wrap=True, overflow="crop", end="")
    for line, style in [*lines, (FOOTER, "dim")]:
        text = Text.from_ansi(line, style=style)  # the colours of a table: names are without escapes in all lines
        text.truncate(width, overflow="ellipsis")
        if ascii:
            text.plain = text.plain.replace("…", "~").encode("ascii", "replace").decode()
        screen.append_text(text).append("\n")
    screen.right_crop()
    return screen


def _facts(status: Status, newest_s: Sequence[float], width: int, ascii: bool) -> list[Line]:
    columns = width - _INDENT
    lines: list[Line] = []
    for name, value in status_text.lane(status, columns):
        lines += _fact(name, value, "" if name == "worker" and status.queue.worker else "yellow")
    if status.running is None:
        lines += _fact("running", "nothing")
    else:
        lines += _fact("running", status_text.run_and_question(status.running), "bold")
        if status.progress is not None:
            lines += _progress(status.progress, newest_s, columns, ascii)
        lines += [line for sentence in status_text.trouble(status) for line in _fact("", sentence, "yellow")]
    lines += _fact("waiting", status_text.waiting_count(status))
    for name, value in status_text.plan(status, columns):
        lines += _fact(name, value)
    return [*lines, *_fact("disk", status_text.disk(status.disk))]


def _fact(name: str, value: str, style: str = "") -> list[Line]:
    parts = enumerate(map(plain, value.split("\n")))
    return [(f"{name if not n else '':<{_INDENT}}{part}", style) for n, part in parts]


def _progress(progress: RunProgress, newest_s: Sequence[float], width: int, ascii: bool) -> list[Line]:
    lines: list[Line] = []
    if progress.planned_iters:
        share = min(progress.iters / progress.planned_iters, 1.0)
        words = f"{units.count(progress.iters)} of {units.count(progress.planned_iters)}, {int(share * 100)} %"
        lines.append((f"{bar(share, min(_BAR_MOST, width - len(words) - 2), ascii=ascii)}  {words}", "green"))
        numbers = status_text.numbers(progress, counted=False)
    else:
        numbers = status_text.numbers(progress)
    lines += [(line, "") for line in (numbers, status_text.clock(progress)) if line]
    spark = sparkline(newest_s[-min(_SPARK_MOST, width) :], ascii=ascii)
    if spark is not None and len(spark.bars) > 1:
        words = f"the last {len(spark.bars)} iterations: {units.ms(spark.low_s)} to {units.ms(spark.high_s)} ms"
        if spark.beyond:
            words += f", {spark.beyond} slower: up to {units.ms(spark.max_s)} ms"
        lines += [(spark.bars, "cyan"), (words, "dim")]
    return [fact for line, style in lines for fact in _fact("", line, style)]


def bar(share: float, columns: int, *, ascii: bool) -> str:
    """Return a bar of `columns` columns, filled to `share` (0 to 1) and full only at 1."""
    columns = max(columns, 1)
    full = min(int(share * columns), columns)
    done, left = ("#", "-") if ascii else ("━", "─")
    return done * full + left * (columns - full)


@dataclass(frozen=True)
class Sparkline:
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


def _body(waiting: list[str], ended: list[str], count: int, room: int) -> list[Line]:
    """Return both tables in `room` lines: the waiting runs first, and at least a few rows of the ended ones."""
    few = min(len(ended), _HEAD - 1 + _FEW_ENDED) + 1 if ended else 0
    if waiting and room - few < _HEAD + 1:
        few = 0
    above = _table(waiting, room - few, count)
    below = _table(ended, room - len(above))
    return [*above, *below]


def _table(lines: list[str], room: int, count: int | None = None) -> list[Line]:
    """Return a table's lines after an empty one; rows that do not fit are counted if `count`, their total, is given."""
    if not lines or room < _HEAD + 1:
        return []
    rows = lines[2:]
    fit = room - _HEAD
    rest: list[Line] = []
    if count is not None and count > min(fit, len(rows)):
        fit = min(fit - 1, len(rows))
        rest = [(f"... and {units.count(count - fit)} more", "dim")]
    return [("", ""), (lines[0], "bold"), (lines[1], "dim"), *((row, "") for row in rows[:fit]), *rest]
