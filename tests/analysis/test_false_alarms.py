"""How often equal configurations are called different, on simulated machines. Nothing but arithmetic, and long."""

from __future__ import annotations

import math
import random

import pytest

from queue_runner.analysis import stats
from queue_runner.analysis.significance import Word, compare_all
from tests.compare_support import ask, row

pytestmark = pytest.mark.process


def run_median(rng: random.Random, effect: float = 1.0, n: int = 40) -> float:
    """A run as trackers.md assumes it: run offset 1 %, AR(1) drift 0.5 %, jitter 1 %, 2 % spikes."""
    offset, state, xs = rng.gauss(1, 0.01), 0.0, []
    for _ in range(n):
        state = 0.95 * state + rng.gauss(0, 0.005 * math.sqrt(1 - 0.95**2))
        x = offset + state + rng.gauss(0, 0.01)
        xs.append(effect * x * (1.5 if rng.random() < 0.02 else 1))
    return stats.median(xs)


def judged(effect: float, trials: int, seed: int) -> list[Word]:
    rng = random.Random(seed)
    return [
        compare_all([([run_median(rng, effect) for _ in range(5)], [run_median(rng) for _ in range(5)])])[0].word
        for _ in range(trials)
    ]


def test_equal_configurations_are_called_different_in_one_of_twenty_at_most() -> None:
    trials = 400
    alarms = sum(word in (Word.FASTER, Word.SLOWER) for word in judged(1.0, trials, seed=11))
    assert alarms / trials <= 0.05 + 2.33 * math.sqrt(0.05 * 0.95 / trials)  # 99 % of binomial chance


def test_three_percent_is_seen_with_five_runs_each() -> None:
    words = judged(1.03, 200, seed=12)
    assert words.count(Word.SLOWER) / len(words) >= 0.85
    assert Word.FASTER not in words


def alarms(sizes: dict[tuple[str, int], int], trials: int, faster: float = 1.0) -> int:
    """Families in which any two cells of one device were called different, though they are equal up to 1 %."""
    draw = random.Random(7)
    wrong = 0
    for _ in range(trials):
        level = {"cpu": 0.1, "mps": 0.1 * faster}
        rows = [row(d, c, level[d] * draw.gauss(1, 0.01)) for (d, c), n in sizes.items() for _ in range(n)]
        (family,) = ask(rows)
        pairs = [p for p in [*family.pairs, *family.twins] if p.arm.key["device"] == p.baseline.key["device"]]
        wrong += any(p.verdict.word in (Word.FASTER, Word.SLOWER) for p in (pairs if faster != 1 else family.pairs))
    return wrong


GRID = [("cpu", 0), ("cpu", 1), ("mps", 0), ("mps", 1)]


@pytest.mark.parametrize(
    "sizes",
    [
        {("cpu", 0): 5, ("mps", 0): 5},
        {("cpu", 0): 12, ("mps", 0): 12},
        {("cpu", 0): 250, ("mps", 0): 250},
        {("cpu", 0): 100, ("mps", 0): 4},
        {("cpu", 0): 4, ("mps", 0): 100},
    ],
)
def test_two_equal_configurations_are_rarely_called_different(
    sizes: dict[tuple[str, int], int],
) -> None:
    """A/A. With splits that are all formed, drawn, or not needed, and with arms of very different size."""
    assert alarms(sizes, 100) <= 11  # more has a probability below 0.005 if each is 5 %


@pytest.mark.parametrize("faster", [1.0, 0.1])
def test_a_grid_of_equal_cells_seldom_gets_any_false_verdict(faster: float) -> None:
    """All four equal, or equal but for the device: the chance is of the whole family, twins included."""
    assert alarms(dict.fromkeys(GRID, 5), 150, faster) <= 15  # more has a probability of 0.005 if 5 %
