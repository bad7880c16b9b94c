"""The rows of a submission after each of its rounds: a table, redrawn on a terminal, or a line for each round."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from queue_runner import units
from queue_runner.analysis.comparison import Family, Pair
from queue_runner.monitor import answers
from queue_runner.paths import Layout
from queue_runner.spec import Until
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

    def __init__(self, layout: Layout, group: int, until: Until, stream: TextIO) -> None:
        self._layout, self._group, self._until, self._stream = layout, group, until, stream
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
            families = answers.of_group(connection, self._group, self._until.same_within)
        if self._live is None:
            words = "; ".join(_in_words(pair) for family in families for pair in family.pairs)
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
        return f"{title}, {elapsed} of {units.duration(self._until.limit_s)}"

    def _table(self, families: Sequence[Family]) -> Table:
        table = Table(title=self._title(families), title_justify="left", box=None, pad_edge=False)
        for name in ("row", "time", "speedup (95 % CI)", "", "verdict"):
            table.add_column(name, no_wrap=name != "verdict")
        for family in families:
            ratios = [ratio for pair in family.pairs for ratio in _ends(pair)]
            for arm in family.arms:
                pair = family.pair(arm)
                if pair is not None:
                    ratio, interval = units.ratio(pair.ratio), units.interval(pair.verdict.low, pair.verdict.high)
                    speedup = f"{ratio} ({interval})" if interval else ratio
                    cells = [units.duration(pair.verdict.arm_s), speedup, bar(pair, ratios), str(pair.verdict)]
                elif arm is family.baseline and family.pairs:
                    cells = [units.duration(family.pairs[0].verdict.baseline_s), "1", "", "baseline"]
                else:
                    cells = [units.MISSING, "", "", ""]
                table.add_row(*map(Text, [arm.label, *cells]))
        return table


def bar(pair: Pair, ratios: Sequence[float]) -> str:
    """Draw the interval of a speedup on the logarithmic scale of all `ratios`, with a mark at 1."""
    lowest, highest = math.log(min([1.0, *ratios])), math.log(max([1.0, *ratios]))

    def place(ratio: float) -> int:
        return round((math.log(ratio) - lowest) / ((highest - lowest) or 1.0) * (BAR - 1))

    ends = _ends(pair)
    low, high = ends[0], ends[-1]
    cells = ["─" if place(low) <= at <= place(high) else " " for at in range(BAR)]
    cells[place(1.0)] = "│"
    cells[place(pair.ratio)] = "●"
    return "".join(cells)


def _ends(pair: Pair) -> list[float]:
    """Return the ratio and, where there is one, its interval, from the smallest to the largest."""
    ends = [end for end in (pair.verdict.low, pair.verdict.high) if end is not None]
    return sorted([pair.ratio, *(ends if len(ends) == 2 else ())])


def _in_words(pair: Pair) -> str:
    interval = units.interval(pair.verdict.low, pair.verdict.high)
    return f"{pair.arm.label} {units.ratio(pair.ratio)} {f'({interval}) ' if interval else ''}{pair.verdict}"
