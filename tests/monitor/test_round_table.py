"""The bar of an interval in the table of rounds; the table itself is in tests/cli/test_run.py."""

from __future__ import annotations

from queue_runner.analysis.rounds import Verdict, Word
from queue_runner.monitor.round_table import BAR, bar


def verdict(speedup: float, low: float | None, high: float | None) -> Verdict:
    return Verdict(
        word=Word.UNDECIDED, speedup=speedup, low=low, high=high, n=3, given_after=None, more=2, arm_s=1, baseline_s=1
    )


def test_a_bar_has_a_mark_at_no_difference_and_spans_the_interval() -> None:
    half = verdict(0.5, 0.4, 0.6)
    slower = bar(half, half.on_scale)
    assert len(slower) == BAR and slower.startswith("─") and slower.endswith("│") and "●" in slower
    wide = verdict(1.1, 0.5, 2.0)
    around = bar(wide, wide.on_scale)
    assert around[0] == around[-1] == "─" and "│" in around and "●" in around
    double = verdict(2.0, None, None)
    assert bar(double, double.on_scale).strip("│ ") == "●"
