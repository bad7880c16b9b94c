"""The levels of the proposals of a night, and what a few simulated nights keep."""

from __future__ import annotations

import math
from statistics import fmean, median

import pytest

from queue_runner.referee import contest
from tests.simulate import contests

pytestmark = pytest.mark.fast


def test_the_plan_shares_the_error_rate_and_each_kept_change_makes_room() -> None:
    levels = [contest.level(50, 0, number) for number in range(1, 60)]
    assert math.fsum(levels) == pytest.approx(contest.FALSE_SHARE) and not any(levels[50:])
    assert contest.level(50, 3, 9) == pytest.approx(4 * contest.level(50, 0, 9))


def test_intervals_are_corrected_to_the_level() -> None:
    assert [contest.n_words(50, n_kept, 1) for n_kept in (0, 1, 4)] == [25, 13, 5]
    assert contest.n_words(2, 1, 2) == 1


@pytest.mark.parametrize("measured", [False, True])
def test_nights_keep_the_gains_and_little_else(measured: bool) -> None:
    nights = contests.nights(0.8, 12, measured=measured)
    assert fmean(night.false_share for night in nights) <= contest.FALSE_SHARE
    assert sum(night.gains_kept for night in nights) >= 0.9 * sum(night.gains for night in nights) > 0
    assert median(rounds for night in nights for rounds in night.rounds_kept) <= 10


def test_nights_without_a_gain_keep_nothing() -> None:
    assert fmean(night.nulls_kept > 0 for night in contests.nights(1.0, 60)) <= 0.05
