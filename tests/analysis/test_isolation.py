"""What rounds of runs alone and beside another lane's show, in a sentence. The times are simulated."""

from __future__ import annotations

import random

import pytest

from queue_runner.analysis import isolation
from queue_runner.analysis.pairing import Runs
from queue_runner.analysis.significance import Verdict, compare_all


def verdict(n: int, slower: float, noise: float, same_within: float | None = None) -> Verdict:
    """`n` rounds in which a run takes `slower` times as long beside its neighbour, with this relative noise."""
    generator = random.Random(15)
    alone = [0.1 * (1 + generator.gauss(0, noise)) for _ in range(n)]
    beside = [0.1 * slower * (1 + generator.gauss(0, noise)) for _ in range(n)]
    rounds = [("g1", number) for number in range(n)]
    starts = [[20.0 * number + 10.0 * (number % 2 == arm) for number in range(n)] for arm in (0, 1)]
    arms = [Runs(times, rounds, at, frozenset(rounds)) for times, at in zip((beside, alone), starts, strict=True)]
    (found,) = compare_all([(arms[0], arms[1])], same_within)
    return found


@pytest.mark.parametrize(
    ("n", "slower", "noise", "same_within", "said"),
    [
        (8, 1.0, 0.002, None, "the same within ±1 %, so that the lane is isolated to that margin"),
        (8, 1.015, 0.002, 0.02, "the same within ±2 %, so that the lane is isolated to that margin"),
        (8, 1.12, 0.01, None, "slower, so that the lane is not isolated"),
        (8, 0.9, 0.01, None, "faster, so that the lane is not isolated"),
        (8, 1.0, 0.03, None, "isolation within ±1 % is not shown, nor a difference (these runs show it within ±"),
        (3, 1.0, 0.002, None, "isolation is not shown: too few repeats (need 4 runs each)"),
    ],
)
def test_the_sentence(n: int, slower: float, noise: float, same_within: float | None, said: str) -> None:
    found = isolation.sentence("nanogpt tiny on cpu:0", verdict(n, slower, noise, same_within), same_within)
    assert f": {said}" in found
    assert found.startswith("nanogpt tiny on cpu:0 takes ")


def test_the_ratio_is_of_times_and_lies_in_its_interval() -> None:
    ratio, low, high = isolation.times(verdict(8, 1.12, 0.01))
    assert low is not None and high is not None
    assert 1.1 < low < ratio < high < 1.14
    assert isolation.sentence("A", verdict(8, 1.12, 0.01)).startswith(
        f"A takes {ratio:.3f} x ({low:.3f} to {high:.3f})"
    )


@pytest.mark.parametrize(
    ("share", "why"),
    [
        (1.0, ""),
        (0.62, "its neighbour was active for 62.0 % of its measured time only"),
        (None, "no neighbour was active while it was measured"),
    ],
)
def test_a_run_whose_neighbour_ended_early_is_left_out(share: float | None, why: str) -> None:
    assert isolation.incomplete(share) == why
