"""The formulas against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from queue_runner.analysis import stats


def test_centre_and_spread() -> None:
    assert stats.median([3, 1, 2]) == 2
    assert stats.median([4, 1, 2, 3]) == 2.5
    assert stats.mad([1, 1, 2, 2, 4, 6, 9]) == 1  # the textbook example
    assert stats.quartiles([1, 2, 3, 4]) == (1.75, 3.25)  # type 7, as R's quantile()
    assert stats.quartiles([5]) == (5, 5)
    with pytest.raises(ValueError):
        stats.median([])


def test_mad_to_sd_is_the_constant_of_the_normal_distribution() -> None:
    """Half of a normal distribution lies within 1 / MAD_TO_SD standard deviations."""
    assert math.erf(1 / stats.MAD_TO_SD / math.sqrt(2)) == pytest.approx(0.5, abs=1e-12)


def test_drift_is_of_the_span_not_of_the_count() -> None:
    """The post's log shows iterations 10 to 50 and 4990: 25 % slower at the end, whatever lies between."""
    shown = [10, 20, 30, 40, 50, 4990]
    found = stats.thirds(shown, [220.50, 221.44, 221.30, 220.74, 220.24, 276.23])
    assert found is not None
    assert found == pytest.approx((220.74, 276.23))
    assert stats.thirds(shown[:4], [1, 1, 1, 1]) is None
    assert stats.thirds([7] * 9, [1.0] * 9) is None
