"""The formulas against values worked out by hand, the verdict against simulated machines (reference: trackers.md)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_runner.analysis import significance, stats
from queue_runner.analysis.confidence_interval import unpaired
from queue_runner.analysis.significance import Verdict, Word, compare_all

times = st.floats(1e-3, 1e3)


def compare(arm: Sequence[float], baseline: Sequence[float]) -> Verdict:
    return compare_all([(arm, baseline)])[0]


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


@pytest.mark.parametrize("n", [20, 5000])
def test_theil_sen_finds_a_slope_through_spikes(n: int) -> None:
    xs = [1 + 0.001 * i + (50 if i % 10 == 3 else 0) for i in range(n)]
    assert stats.theil_sen(range(n), xs) == pytest.approx(0.001, rel=0.05)
    assert stats.theil_sen([1], [1]) == 0


def test_the_fewest_repeats_that_can_show_anything() -> None:
    assert [significance.needed_repeats(pairs) for pairs in (1, 2, 6, 7, 23)] == [4, 5, 5, 6, 6]


@pytest.mark.parametrize(("n", "p"), [(4, 2 / 70), (5, 2 / 252)])
def test_the_smallest_p_value_is_of_disjoint_arms(n: int, p: float) -> None:
    found = compare([2.0 + i / 100 for i in range(n)], [1.0 + i / 100 for i in range(n)])
    assert found.p == pytest.approx(p) and found.word is Word.SLOWER


@pytest.mark.parametrize("n", [1, 2, 3])
def test_too_few_repeats_never_give_a_verdict(n: int) -> None:
    found = compare([1.0] * n, [9.0] * 9)
    assert found.word is Word.TOO_FEW and found.low is None and found.p is None
    assert found.speedup == pytest.approx(9)
    assert str(found) == "too few repeats (need 4 runs each)"
    assert found.p_corrected is None


def test_words() -> None:
    near = [1.0, 1.001, 0.999, 1.0005, 0.9995]
    assert compare(near, [x * 1.001 for x in near]).word is Word.SAME
    assert compare(near, [x * 1.5 for x in near]).word is Word.FASTER
    assert compare([x * 1.5 for x in near], near).word is Word.SLOWER
    far = [1.0, 1.3, 0.8, 1.1, 0.9]
    assert str(compare(far, [x * 1.01 for x in far])) == "no difference shown"
    with pytest.raises(ValueError):
        compare([1.0, 0.0], [1.0])


@given(st.lists(times, min_size=4, max_size=5), st.lists(times, min_size=4, max_size=5))
@settings(max_examples=30, deadline=None)
def test_the_interval_is_the_test_inverted(arm: list[float], baseline: list[float]) -> None:
    """A speedup inside the interval is not rejected by the test of the arm times it, one outside is; swapping the
    arms mirrors everything."""
    found, mirrored = compare(arm, baseline), compare(baseline, arm)
    assert found.low is not None and found.high is not None and mirrored.low is not None
    assert found.low <= found.speedup * (1 + 1e-9) and found.speedup <= found.high * (1 + 1e-9)
    assert mirrored.low == pytest.approx(1 / found.high) and mirrored.p == pytest.approx(found.p or 0)
    for end, away in ((found.low, 0.999), (found.high, 1.001)):
        if math.isfinite(end) and end > 0:
            inside = compare([x * end / away for x in arm], baseline).p
            outside = compare([x * end * away for x in arm], baseline).p
            assert outside is not None and outside <= 0.05
            if found.low < end / away < found.high:
                assert inside is not None and inside > 0.05


def test_the_permutation_p_value_against_its_definition() -> None:
    a, b = [1.0, 1.1, 1.2, 1.35], [1.05, 1.3, 1.4, 1.5, 1.6]
    logs = [math.log(x) for x in a + b]
    mean = lambda xs: sum(xs) / len(xs)  # noqa: E731
    d = [
        abs(mean([logs[k] for k in chosen]) - mean([logs[k] for k in range(9) if k not in chosen]))
        for chosen in combinations(range(9), 4)
    ]
    found = unpaired(logs[:4], logs[4:])
    assert found.p_equal == pytest.approx(sum(x >= d[0] - 1e-12 for x in d) / len(d)) and found.p >= found.p_equal


def test_where_the_splits_are_too_many_the_same_ones_are_drawn_again() -> None:
    rng = random.Random(3)
    a, b = [[rng.gauss(m, 0.02) for _ in range(n)] for m, n in ((1.0, 6), (1.05, 30))]
    found = compare(a, b)
    assert found.word is Word.FASTER and found == compare(a, b) and found.p is not None and found.p < 0.01


def test_holm_worked_by_hand() -> None:
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.5, 0.9]) == [1.0, 1.0] and significance.holm([]) == []


def test_many_pairs_are_judged_together() -> None:
    base = [1.0, 1.01, 0.99, 1.02, 0.98]
    slow = [x * 1.2 for x in base]
    alike = [1.0, 1.05, 0.96, 1.01, 0.99]
    found = compare_all([(slow, base), (alike, base), (base[:2], base)])
    assert [v.word for v in found] == [Word.SLOWER, Word.NO_DIFFERENCE, Word.TOO_FEW]
    assert found[0].p == pytest.approx(2 / 252) and found[0].p_corrected == pytest.approx(4 / 252)
    assert found[2].need == 5
    four = compare_all([(slow[:4], base[:4])] * 2)  # 2/70 twice cannot reach 0.05 after correction
    assert all(v.word is Word.TOO_FEW and v.need == 5 for v in four)
