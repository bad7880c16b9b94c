"""The rows of a submission after each of its rounds: a table, redrawn on a terminal, or a line for each round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from queue_runner import units
from queue_runner.analysis.comparison import Family, Pair
from queue_runner.analysis.rounds import Verdict
from queue_runner.model import Selector
from queue_runner.monitor import answers, progress
from queue_runner.paths import Layout
from queue_runner.spec import MOST_ROUNDS, OF_TIME
from queue_runner.store import read
from queue_runner.text import for_stream

BAR = 24
"""Greatest width of the bar of an interval, in columns."""
NARROWEST = 8
"""Least width of a bar: a narrower terminal has none."""
LINE_S = 45.0
"""Least time after a line until another one says how many runs have ended, before the next round has."""
REDRAW_S = 1.0
_NEWEST_WHOLE = """
SELECT max(repeat) FROM (
    SELECT r.repeat FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id = ? AND r.number > 0
    GROUP BY r.repeat HAVING min(r.state = 'DONE' AND r.outcome <> 'CANCELLED') AND max(r.outcome <> 'SKIPPED')
)
"""
_STARTED = "SELECT min(r.started_at) FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id = ?"
"""The begin of the time that --budget limits."""


class RoundTable:
    """The progress of one submission with --until, which `limit_s` ends, or with a fixed number of `rounds`: on a
    terminal redrawn in its place, if `live`. Close it."""

    def __init__(
        self,
        layout: Layout,
        group: int,
        limit_s: float,
        stream: TextIO,
        *,
        rounds: int | None = None,
        live: bool = True,
    ) -> None:
        self._layout, self._group, self._limit_s, self._stream = layout, group, limit_s, stream
        self._rounds = rounds
        console = Console(file=stream, highlight=False)
        self._live = Live(console=console, auto_refresh=False, transient=True) if live and console.is_terminal else None
        self._said_at = time.monotonic()
        self._round = 0
        self._table: list[Table] = []

    def say(self, text: str) -> None:
        """Print a message; it stands above the table."""
        if self._live is not None and self._live.is_started:
            self._live.console.print(Text(text))
        else:
            print(for_stream(text, self._stream), file=self._stream, flush=True)

    def step(self) -> str:
        """Look whether another round has ended. Redraw the table then, or return the line of the round. Else
        report once in a while how many runs have ended; "" where there is nothing to print."""
        with read.reading(self._layout.db) as connection:
            newest = read.value(connection, _NEWEST_WHOLE, self._group) or 0
            if newest <= self._round:
                return self._progress()
            self._round = newest
            families = answers.of_group(connection, self._group)
            started_at = read.value(connection, _STARTED, self._group)
        self._said_at = time.monotonic()
        title = self._title(families, time.time() - started_at if started_at else 0.0)
        if self._live is None:
            words = "; ".join(_in_words(family, pair) for family in families for pair in family.pairs)
            return f"{title}{': ' if words else ''}{words}"
        self._table = [draw(families, title, self._live.console.width)]
        self._draw()
        return ""

    def _progress(self) -> str:
        """Return how many runs have ended, about every minute; on a terminal draw it below the table, every second."""
        if time.monotonic() - self._said_at < (LINE_S if self._live is None else REDRAW_S):
            return ""
        self._said_at = time.monotonic()
        text = progress.of_submission(self._layout, Selector(f"g{self._group}", group=self._group))
        if self._live is None:
            return text
        self._draw(Text(text))
        return ""

    def _draw(self, *below: Text) -> None:
        if self._live is not None:
            if not self._live.is_started:
                self._live.start()
            self._live.update(Group(*self._table, *below), refresh=True)

    def close(self) -> None:
        """Remove the table from the terminal."""
        if self._live is not None:
            self._live.stop()

    def _title(self, families: Sequence[Family], elapsed_s: float) -> str:
        if self._rounds is not None:
            return f"round {self._round} of {self._rounds}, {units.rough(elapsed_s)}"
        rounds = of_at_most(self._round, answers.rounds_left(families))
        return f"{rounds}, {units.rough(elapsed_s)} of {units.duration(self._limit_s)} used"


def of_at_most(number: int, more: int | None) -> str:
    """Return the number of the round, and about how many `more` are needed."""
    most = max(MOST_ROUNDS, number)  # a user may add any number
    enough = (more or 0) <= most - number
    needed = f" (about {more} more needed{'' if enough else ', which is too many'})" if more else ""
    return f"round {number} of at most {most}{needed}"


def draw(families: Sequence[Family], title: str, width: int) -> Table:
    """Return the table of the rows. The bar has the room that the texts leave on `width` columns."""
    by = next((family.by for family in families), OF_TIME)
    answered = {pair.arm: family.answers(pair) for family in families for pair in family.pairs}
    others = list(dict.fromkeys(name for by_name in answered.values() for name in by_name if name != by))
    titles = ["row", by or "time", f"{'difference' if by else 'speedup'} (95 % CI)", "verdict"]
    texts = [[*titles, *(name or "time" for name in others)]]
    shown: list[tuple[Verdict | None, list[float]]] = []
    for family in families:
        judged = [by_name[by] for pair in family.pairs if by in (by_name := answered[pair.arm])]
        for arm in family.arms:
            by_name = answered.get(arm, {})
            answer = by_name.get(by)
            if answer is not None:
                words = [str(by_name[name].word) if name in by_name else units.MISSING for name in others]
                texts.append([arm.label, answer.values[0], answer.size, str(answer.word), *words])
            else:
                is_baseline = judged and arm is family.baseline
                cells = [judged[0].values[1], "", "baseline"] if is_baseline else [units.MISSING, "", ""]
                texts.append([arm.label, *cells, *("" for _ in others)])
            shown.append((answer, [end for each in judged for end in each.on_scale]))
    room = min(BAR, width - sum(2 + max(map(len, column)) for column in zip(*texts, strict=True)))
    if room >= NARROWEST:
        bars = [bar(answer, ends, room) if answer else "" for answer, ends in shown]
        texts = [[*cells[:3], drawn, *cells[3:]] for cells, drawn in zip(texts, ["", *bars], strict=True)]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in texts[0]:
        table.add_column(Text(name), overflow="fold")
    for cells in texts[1:]:
        table.add_row(*map(Text, cells))
    return table


def bar(answer: Verdict, ends: Sequence[float], width: int = BAR) -> str:
    """Draw the interval of an answer on the scale of all `ends`, with a mark where there is no difference."""
    lowest, highest = min([0.0, *ends]), max([0.0, *ends])

    def place(x: float) -> int:
        return round((x - lowest) / ((highest - lowest) or 1.0) * (width - 1))

    interval = answer.on_scale if len(answer.on_scale) == 3 else answer.on_scale[:1]
    cells = ["─" if place(min(interval)) <= at <= place(max(interval)) else " " for at in range(width)]
    cells[place(0.0)] = "│"
    cells[place(interval[0])] = "●"
    return "".join(cells)


def _in_words(family: Family, pair: Pair) -> str:
    """Return as in "s=2 vs s=1: speedup 0.50 x (0.49 to 0.51), slower; loss +0.1, undecided"; the title has the number
    of rounds."""
    parts = (
        f"{name or 'speedup'} {answer.size}, {answer.word if answer.more else answer}"
        for name, answer in family.answers(pair).items()
    )
    return f"{pair.arm.label} vs {pair.baseline.label}: {'; '.join(parts)}"
