"""The table of rounds, as wide as the terminal. tests/cli/test_run.py follows rounds with it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from queue_runner.analysis.rounds import Verdict, Word
from queue_runner.monitor.round_table import BAR, bar, draw, of_at_most
from queue_runner.spec import Aim
from tests.compare_support import ask, row

pytestmark = pytest.mark.fast


def verdict(speedup: float, low: float | None, high: float | None) -> Verdict:
    return Verdict(
        of_time=True,
        word=Word.UNDECIDED,
        change=speedup,
        low=low,
        high=high,
        value=1,
        baseline=1,
        n=3,
        given_after=None,
        more=2,
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


@pytest.mark.parametrize("by", ["", "loss"])
@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_words_stay_whole_and_the_bar_has_the_room_that_is_left(by: str, width: int) -> None:
    rows = [
        replace(row(device, median_s=scale * time), metrics={"loss": scale + time}, seed=k, n_iters=None)
        for device, scale in {"cpu": 0.2, "mps": 0.4}.items()
        for k, time in enumerate((1.0, 1.00137, 0.99811))
    ]
    families = ask(rows, aim=Aim(by, {"loss": 1e-9}))
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(draw(families, "round 3", width))
    text = console.export_text()
    assert all(len(line) <= width for line in text.splitlines()) and "…" not in text
    assert "slower" in text and "higher" in text and "baseline" in text
    assert "●" in text or width < 120


def test_a_metric_may_have_brackets() -> None:
    rows = [
        replace(row(device), metrics={"acc[top]": scale + k}, seed=k, n_iters=None)
        for device, scale in {"cpu": 0.2, "mps": 0.4}.items()
        for k in range(3)
    ]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(draw(ask(rows, aim=Aim("acc[top]")), "round 3", 120))
    assert "acc[top]" in console.export_text()


def test_rounds_that_are_needed_and_not_allowed_are_called_too_few() -> None:
    assert "about 17 more" in of_at_most(3, 17) and "too many" not in of_at_most(3, 17)
    assert "too many" in of_at_most(3, 18) and "more" not in of_at_most(3, None)
    assert "at most 25" in of_at_most(25, 1) and "too many" in of_at_most(25, 1)
