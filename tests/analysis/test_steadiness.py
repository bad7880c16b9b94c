"""One speed or several: simulated runs in short (`make simulate` has all of them), and the sentences."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction

import pytest

from queue_runner.analysis import steadiness
from queue_runner.analysis.steadiness import course, marks
from tests.simulate import __main__ as simulate
from tests.simulate import runs

pytestmark = pytest.mark.process


def said(times: list[float]) -> dict[str, str]:
    return dict(marks(course(range(len(times)), times)))


def test_clean_runs_are_rarely_marked() -> None:
    found = sum(runs.false_marks(120).values(), Counter[str]())
    assert found["runs"] == 120 and found["any"] <= 10  # more has a probability of 0.04 if 5 %


@pytest.mark.parametrize("fault", runs.FAULTS)
def test_planted_faults_are_marked(fault: str) -> None:
    assert runs.caught(fault, 200, 0.01, tries=20) >= 0.9


def test_a_step_is_told_with_where_and_how_much() -> None:
    rng = random.Random(4)
    times = [rng.gauss(0.1, 0.0005) * (1.04 if i >= 120 else 1) for i in range(300)]
    assert said(times)["drift"].startswith("iterations took 4")
    assert "longer from number 120 " in said(times)["drift"] and "no steady state" not in said(times)["drift"]
    late = [rng.gauss(0.1, 0.0005) * (1.04 if i >= 260 else 1) for i in range(300)]
    assert "no steady state" in said(late)["drift"]
    twice = said([0.1] * 30 + [0.2] * 30 + [0.1] * 60)["drift"]
    assert "changed 2 times" in twice and "between 100.0 and" in twice


def test_speeds_that_take_turns_are_levels_and_one_slow_iteration_is_nothing() -> None:
    rng = random.Random(5)
    turns = [rng.gauss(1, 0.005) * (0.1, 0.115, 0.13)[i % 3] for i in range(300)]
    assert all(x in said(turns)["levels"] for x in ("3 speeds", "33 % near 99.98 ms", "33 % near 115.1 ms"))
    one = [rng.gauss(0.1, 0.001) for _ in range(300)]
    assert said(one) == {}
    one[40] = 3.0
    assert said(one) == {}


def test_stragglers_are_told_with_what_the_median_hides() -> None:
    rng = random.Random(6)
    times = [rng.gauss(0.1, 0.001) * (2 if i % 12 == 3 else 1) for i in range(240)]
    slow = "8.3 % of the iterations took more than 150.4 ms: the mean is 8.1 % above the median, which hides them"
    assert said(times) == {"stragglers": slow}


@pytest.mark.parametrize("times", [[0.1] * 9, [0.1] * 200, [0.0] * 50, [], [0.1, 0.1001] * 100])
def test_what_is_too_short_constant_or_rounded_has_no_mark(times: list[float]) -> None:
    assert said(times) == {}


def test_times_rounded_by_a_log_are_not_levels() -> None:
    rng = random.Random(8)
    assert said([round(rng.gauss(0.1, 0.003), 3) for _ in range(500)]) == {}


def test_a_long_run_is_reduced_first() -> None:
    rng = random.Random(9)
    found = course(range(100_000), [rng.gauss(0.1, 0.002) for _ in range(100_000)])
    assert len(found.segments) == 1 and found.n == 100_000
    assert steadiness.MOST_BLOCKS < 1000 and steadiness.MOST_SORTED < 10_000


def test_a_table_replaces_what_is_between_its_markers() -> None:
    page = "a\n<!-- simulate:runs -->\nold\n<!-- simulate:end -->\nb <!-- simulate:end -->"
    assert simulate.replaced(page, "runs", "new\n") == page.replace("old", "new")
    with pytest.raises(ValueError):
        simulate.replaced(page, "other", "new\n")


def test_a_long_run_with_some_stragglers_is_assessed() -> None:
    """The number of ways to choose 136 of 10,000 is no float: the run was invalid."""
    rng = random.Random(6)
    times = [rng.gauss(0.1, 0.001) * (2 if i % 60 == 3 else 1) for i in range(10_000)]
    assert said(times)["stragglers"].startswith("1.7 % of the iterations")


@pytest.mark.parametrize(("k", "n"), [(2, 10), (3, 30), (9, 500), (60, 500), (500, 500)])
def test_the_tail_of_a_binomial_distribution_is_the_sum(k: int, n: int) -> None:
    exact = float(sum(math.comb(n, j) * Fraction(1, 100) ** j * Fraction(99, 100) ** (n - j) for j in range(k, n + 1)))
    assert steadiness._binomial_tail(k, n, 0.01) == pytest.approx(exact, rel=1e-9)
