"""The rows of a submission after each of its rounds: a table, redrawn on a terminal, or a line for each round."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from queue_runner import units
from queue_runner.analysis.comparison import Family, Pair
from queue_runner.analysis.rounds import RoundAnswer
from queue_runner.monitor import answers
from queue_runner.paths import Layout
from queue_runner.spec import OF_TIME
from queue_runner.store import added_rounds, read

BAR = 24
"""Width of the bar of an interval, in columns."""
_NEWEST_WHOLE = """
SELECT max(repeat) FROM (
    SELECT r.repeat FROM runs r JOIN jobs j ON j.id = r.job_id WHERE j.group_id = ? AND r.number > 0
    GROUP BY r.repeat HAVING min(r.state = 'DONE' AND r.outcome <> 'CANCELLED')
)
"""


class RoundTable:
    """The progress of one submission with --until. Close it."""

    def __init__(self, layout: Layout, group: int, limit_s: float, stream: TextIO) -> None:
        self._layout, self._group, self._limit_s, self._stream = layout, group, limit_s, stream
        console = Console(file=stream, highlight=False)
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._began_at = time.monotonic()
        self._round = 0

    def say(self, text: str) -> None:
        """Print a message; it stands above the table."""
        if self._live is not None and self._live.is_started:
            self._live.console.print(Text(text))
        else:
            print(text, file=self._stream, flush=True)

    def step(self) -> str:
        """Look whether another round has ended. Redraw the table then, or return the line of the round; else ""."""
        with read.reading(self._layout.db) as connection:
            newest = next(iter(read.tuples(connection, _NEWEST_WHOLE, [self._group])))[0] or 0
            if newest <= self._round:
                return ""
            self._round = newest
            families = answers.of_group(connection, self._group)
        if self._live is None:
            words = "; ".join(_in_words(family, pair) for family in families for pair in family.pairs)
            return f"{self._title(families)}{': ' if words else ''}{words}"
        if not self._live.is_started:
            self._live.start()
        self._live.update(self._table(families), refresh=True)
        return ""

    def close(self) -> None:
        """Remove the table from the terminal."""
        if self._live is not None:
            self._live.stop()

    def _title(self, families: Sequence[Family]) -> str:
        elapsed = units.duration(time.monotonic() - self._began_at)
        more = answers.rounds_left(families)
        about = f", about {more} more" if more else ""
        title = f"round {self._round} of at most {added_rounds.MOST_ROUNDS}{about}"
        return f"{title}, {elapsed} of {units.duration(self._limit_s)}"

    def _table(self, families: Sequence[Family]) -> Table:
        by = next((family.by for family in families), OF_TIME)
        others = dict.fromkeys(
            name for family in families for pair in family.pairs for name in family.answers(pair) if name != by
        )
        table = Table(title=self._title(families), title_justify="left", box=None, pad_edge=False)
        titles = (by, "difference (95 % CI)") if by else ("time", "speedup (95 % CI)")
        for name in ("row", *titles, "", "verdict"):
            table.add_column(name, no_wrap=name != "verdict")
        for name in others:
            table.add_column(name or "time")
        for family in families:
            answers_by_pair = [family.answers(pair) for pair in family.pairs]
            ends = [end for by_name in answers_by_pair if by in by_name for end in by_name[by].on_scale]
            for arm in family.arms:
                pair = family.pair(arm)
                by_name = family.answers(pair) if pair else {}
                if (first := by_name.get(by)) is not None:
                    cells = [first.values[0], first.size, bar(first, ends), str(first)]
                    cells += [str(by_name[name]) if name in by_name else units.MISSING for name in others]
                elif arm is family.baseline and ends:
                    cells = [next(x[by].values[1] for x in answers_by_pair if by in x), "", "", "baseline"]
                else:
                    cells = [units.MISSING, "", "", ""]
                table.add_row(*map(Text, [arm.label, *cells]))
        return table


def bar(answer: RoundAnswer, ends: Sequence[float]) -> str:
    """Draw the interval of an answer on the scale of all `ends`, with a mark where there is no difference."""
    lowest, highest = min([0.0, *ends]), max([0.0, *ends])

    def place(x: float) -> int:
        return round((x - lowest) / ((highest - lowest) or 1.0) * (BAR - 1))

    interval = answer.on_scale if len(answer.on_scale) == 3 else answer.on_scale[:1]
    cells = ["─" if place(min(interval)) <= at <= place(max(interval)) else " " for at in range(BAR)]
    cells[place(0.0)] = "│"
    cells[place(interval[0])] = "●"
    return "".join(cells)


def _in_words(family: Family, pair: Pair) -> str:
    parts = (f"{name} {answer.size} {answer}".lstrip() for name, answer in family.answers(pair).items())
    return f"{pair.arm.label} {', '.join(parts)}"
