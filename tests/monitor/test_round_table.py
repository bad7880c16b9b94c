"""The bar of an interval in the table of rounds; the table itself is in tests/cli/test_run.py."""

from __future__ import annotations

from queue_runner.analysis.comparison import Pair
from queue_runner.analysis.grouping import Arm
from queue_runner.analysis.rounds import Verdict, Word
from queue_runner.monitor.round_table import BAR, bar


def pair(speedup: float, low: float | None, high: float | None) -> Pair:
    verdict = Verdict(
        word=Word.UNDECIDED, speedup=speedup, low=low, high=high, n=3, given_after=None, more=2, arm_s=1, baseline_s=1
    )
    return Pair(Arm({}, [], []), Arm({}, [], []), verdict)


def test_a_bar_has_a_mark_at_one_and_spans_the_interval() -> None:
    slower = bar(pair(0.5, 0.4, 0.6), [0.4, 0.5, 0.6])
    assert len(slower) == BAR and slower.startswith("─") and slower.endswith("│") and "●" in slower
    around = bar(pair(1.1, 0.5, 2.0), [0.5, 1.1, 2.0])
    assert around[0] == around[-1] == "─" and "│" in around and "●" in around
    assert bar(pair(2.0, None, None), [2.0]).strip("│ ") == "●"
