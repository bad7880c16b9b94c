"""The method of analysis/intervals.py: values by hand, the interval as an inversion, and what no input may break."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import product

import pytest
from msgspec.structs import replace

from queue_runner.analysis.intervals import (
    ALPHA,
    EFFECT_SD,
    FIRST_LOOK_WITH_LEVELS,
    ClosedRound,
    Contrast,
    Decision,
    Estimate,
    Judgement,
    all_pairs,
    balanced,
    close_rounds,
    decide,
    judge,
    lopsided,
)

MARGIN = math.log1p(0.01)


def after(differences: Sequence[float | None], **options: object) -> Judgement:
    """Judge a single contrast."""
    return judge([replace(Contrast(differences), **options)])[0]


def normal(seed: object, n: int, mean: float = 0.0, sd: float = 0.01) -> list[float]:
    rng = random.Random(str(seed))
    return [rng.gauss(mean, sd) for _ in range(n)]


def test_three_rounds_by_hand() -> None:
    """g = 76; A = (20 sqrt 76)^(2/3) = 31.21; t^2 = 2 (A - 1) / (1 - A / g) = 102.5; half width 0.01 sqrt(t^2 / 3)."""
    judgement = after([0.68, 0.69, 0.70])
    assert judgement.mean == pytest.approx(0.69)
    assert (judgement.high - judgement.low) / 2 == pytest.approx(0.05846, abs=2e-5)
    assert (judgement.decision, judgement.given_after, judgement.more) == (Decision.ABOVE, 3, None)


def test_shrinks_by_one_round_towards_the_mean_of_the_variances() -> None:
    """Variances 1 and 9 after three rounds: (5 + 2 * 1) / 3 and (5 + 2 * 9) / 3, of three degrees of freedom."""
    contrasts = [Contrast([-1.0, 0.0, 1.0]), Contrast([-3.0, 0.0, 3.0])]
    for judgement, variance in zip(judge(contrasts), (7 / 3, 23 / 3), strict=True):
        assert judgement.high == pytest.approx(Estimate(3, 0.0, variance, 3.0).half_width(2))


def test_a_contrast_alone_with_its_numbers_is_not_shrunk_towards_itself() -> None:
    alone = judge([Contrast([-1.0, 0.0, 1.0])], 2)[0]
    beside_an_empty_row = judge([Contrast([-1.0, 0.0, 1.0]), Contrast([None, None, None])])
    assert (alone.low, alone.high) == (beside_an_empty_row[0].low, beside_an_empty_row[0].high)
    assert beside_an_empty_row[1].decision is Decision.UNDECIDED
    assert beside_an_empty_row[1].more == 3


def log_evidence(estimate: Estimate, mu: float) -> float:
    """Return log E_n(mu), the evidence against the true difference `mu`, as docs/methodology.md has it."""
    n, nu, g = estimate.n, estimate.freedom, 1 + estimate.n * EFFECT_SD**2
    t2 = n * (estimate.mean - mu) ** 2 / estimate.variance
    return -math.log(g) / 2 - (nu + 1) / 2 * math.log((1 + t2 / (nu * g)) / (1 + t2 / nu))


@pytest.mark.parametrize(("n", "freedom", "n_words"), [*product((3, 4, 8, 40, 200), (0.0, 1.0), (1, 3, 66))])
def test_closed_form_is_the_inversion_of_the_evidence(n: int, freedom: float, n_words: int) -> None:
    estimate = Estimate(n, 0.3, 0.02, freedom + n - 1)
    half_width, limit = estimate.half_width(n_words), math.log(n_words / ALPHA)
    if math.isinf(half_width):
        assert log_evidence(estimate, 1e9) < limit
        return
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if log_evidence(estimate, 0.3 + middle) < limit else (low, middle)
    assert half_width == pytest.approx(high, rel=1e-9)


def test_equal_differences_have_an_interval_without_width() -> None:
    assert Estimate(4, 2.0, 0.0, 3.0).half_width(1) == 0.0


@pytest.mark.parametrize(("prior", "n_words"), [(0, [3, 50]), (1, [33, 510])])
def test_how_soon_a_large_family_can_be_decided(prior: int, n_words: list[int]) -> None:
    """An interval is finite where g^((d0 + n - 1) / 2) > words / alpha: the largest family after 3 and 4 rounds."""
    for n, most in enumerate(n_words, start=3):
        estimate = Estimate(n, 0.0, 1.0, prior + n - 1.0)
        assert math.isfinite(estimate.half_width(most)) and math.isinf(estimate.half_width(most + 1))


def test_no_word_before_the_third_round() -> None:
    assert after([1.0, 1.0]).decision is Decision.UNDECIDED
    assert after([1.0, 1.0, 1.0]).decision is Decision.ABOVE
    assert [after([1.0] * n).more for n in range(3)] == [3, 2, 1]


@pytest.mark.parametrize(
    ("low", "high", "margin", "decision"),
    [
        (0.001, 0.5, 0.01, Decision.ABOVE),
        (0.001, 0.005, 0.01, Decision.ABOVE),
        (-0.5, -0.001, 0.01, Decision.BELOW),
        (-0.009, 0.009, 0.01, Decision.SAME),
        (-0.009, 0.01, 0.01, Decision.UNDECIDED),
        (-0.009, 0.009, None, Decision.UNDECIDED),
        (-math.inf, math.inf, 0.01, Decision.UNDECIDED),
    ],
)
def test_words_in_order(low: float, high: float, margin: float | None, decision: Decision) -> None:
    assert decide(low, high, margin) is decision


def test_a_small_difference_is_above_and_within_the_margin() -> None:
    judgement = after(normal(1, 12, 0.004, 0.0005), margin=MARGIN)
    assert judgement.decision is Decision.ABOVE
    assert judgement.within_margin


def test_the_same_stays_although_later_rounds_show_a_difference_within_the_margin() -> None:
    differences = [0.0015, 0.0025, 0.002, *normal(2, 60, 0.002, 0.0003)]
    early, late = after(differences[:3], margin=MARGIN), after(differences, margin=MARGIN)
    assert early.decision is late.decision is Decision.SAME
    assert early.given_after == late.given_after
    assert late.low > 0


@pytest.mark.parametrize("effect", [0.0, 0.01, 0.02, 0.1])
def test_word_and_interval_never_contradict_at_any_look(effect: float) -> None:
    for seed in range(60):
        differences = normal(seed, 24, effect)
        before: Judgement | None = None
        for n in range(3, 25):
            judgement = after(differences[:n], margin=MARGIN)
            assert judgement.low <= judgement.mean <= judgement.high
            match judgement.decision:
                case Decision.ABOVE:
                    assert judgement.low > 0
                case Decision.BELOW:
                    assert judgement.high < 0
                case Decision.SAME:
                    assert judgement.within_margin
                case Decision.UNDECIDED:
                    assert judgement.low <= 0 <= judgement.high
                    assert not judgement.within_margin
            if before is not None and not judgement.contradicted:
                assert before.low <= judgement.low <= judgement.high <= before.high
                assert before.given_after in (None, judgement.given_after)
            before = judgement


def test_rounds_that_contradict_the_first_ones_withdraw_the_word() -> None:
    """Two levels: the first three rounds fall on one of them, later ones on both."""
    differences = [0.1, 0.1001, 0.0999, -0.1, 0.1, -0.1, -0.1, 0.1, -0.1, 0.1]
    assert after(differences[:3]).decision is Decision.ABOVE
    judgement = after(differences)
    assert judgement.decision is Decision.UNDECIDED
    assert judgement.contradicted
    assert judgement.low < 0 < judgement.high


def test_known_levels_wait_for_eight_rounds() -> None:
    differences = normal(3, 12, 0.5)
    for n in range(3, 13):
        judgement = after(differences[:n], levels=math.inf)
        assert (judgement.decision is Decision.UNDECIDED) == judgement.waits_for_levels == (n < FIRST_LOOK_WITH_LEVELS)
    assert judgement.given_after == FIRST_LOOK_WITH_LEVELS
    assert after(differences[:5], levels=math.inf).more == 3
    assert after(differences, levels=0.5 * abs(differences[0])).given_after == after(differences).given_after


def test_an_obstacle_leaves_the_interval_and_no_word() -> None:
    judgement = after([0.68, 0.69, 0.70], obstacle="the seed did not change with the round")
    assert judgement.decision is Decision.UNDECIDED
    assert judgement.low > 0
    assert judgement.more is judgement.given_after is None


@pytest.mark.parametrize("step", [0.01, 0.1])
def test_no_word_about_less_than_a_rounding_step(step: float) -> None:
    """Both rows without noise, a quarter of a step apart: their roundings differ by a step in each round or in none."""
    for offset in range(20):
        true = [offset * step / 20, (offset / 20 + 0.25) * step]
        rounded = [round(value / step) * step for value in true]
        judgement = after([rounded[1] - rounded[0]] * 200, step=step, margin=2 * step)
        assert judgement.decision in (Decision.UNDECIDED, Decision.SAME)
        assert judgement.low <= 0.25 * step <= judgement.high


@pytest.mark.parametrize("effect", [0.0, 0.01, 0.05])
def test_unit_order_of_contrasts_and_direction_change_nothing(effect: float) -> None:
    for seed in range(20):
        contrasts = [Contrast(normal((seed, k), 10, effect * k, 0.01 * (k + 1)), margin=0.01) for k in range(3)]
        judgements = judge(contrasts)
        assert judge(contrasts[::-1])[::-1] == judgements
        scaled = judge([Contrast([1024 * x for x in c.differences if x is not None], margin=10.24) for c in contrasts])
        mirrored = judge([Contrast([-x for x in c.differences if x is not None], margin=0.01) for c in contrasts])
        for plain, large, opposite in zip(judgements, scaled, mirrored, strict=True):
            assert (large.decision, large.given_after, large.more) == (plain.decision, plain.given_after, plain.more)
            assert (large.low, large.high) == pytest.approx((1024 * plain.low, 1024 * plain.high))
            assert (opposite.low, opposite.high) == (-plain.high, -plain.low)
            assert opposite.given_after == plain.given_after
            assert (opposite.decision is Decision.ABOVE) == (plain.decision is Decision.BELOW)


def test_a_shift_of_all_values_of_a_round_changes_nothing() -> None:
    """Only differences enter: a round in which the machine is twice as slow says as much as any other."""
    rng = random.Random(4)
    row, baseline = ([rng.gauss(mean, 0.01) for _ in range(6)] for mean in (0.03, 0.0))
    slow = [rng.uniform(0, 2) for _ in range(6)]
    plain = after([a - b for a, b in zip(row, baseline, strict=True)])
    shifted = after([(a + s) - (b + s) for a, b, s in zip(row, baseline, slow, strict=True)])
    assert (plain.low, plain.high) == pytest.approx((shifted.low, shifted.high))


def test_missing_rounds_are_passed_over() -> None:
    differences = normal(5, 8, 0.05)
    gaps: list[float | None] = [None, *differences[:2], None, *differences[2:], None]
    assert after(gaps) == after(differences)


def test_more_words_widen_the_interval_and_more_rounds_are_suggested() -> None:
    contrast = Contrast(normal(6, 5, 0.02), margin=0.01)
    few, many = (judge([contrast], n)[0] for n in (1, 50))
    assert many.high - many.low > few.high - few.low
    assert few.more is None or (many.more or 0) >= few.more


def test_number_of_rounds_suggested_is_what_decides_if_nothing_changes() -> None:
    judgement = after([0.01, 0.05, -0.01, 0.06])
    assert judgement.more is not None
    estimate = Estimate(4, judgement.mean, 0.033**2, 3.0)
    n = next(n for n in range(5, 99) if replace(estimate, n=n, freedom=n - 1.0).half_width(1) < judgement.mean)
    assert judgement.more == pytest.approx(n - 4, abs=2)
    assert after([0.001, -0.001] * 3).more is None
    assert after([0.01, -0.01] * 3, margin=0.005).more is not None


def test_family_of_another_baseline() -> None:
    assert [all_pairs(n) for n in (2, 4, 12)] == [1, 6, 66]


@pytest.mark.parametrize(
    ("left_out", "of_baseline", "rounds", "answer"),
    [(0, 0, 4, False), (1, 0, 4, False), (2, 0, 4, True), (2, 1, 4, False), (2, 0, 40, False), (5, 1, 40, True)],
)
def test_left_out_runs_of_one_row(left_out: int, of_baseline: int, rounds: int, answer: bool) -> None:
    assert lopsided(left_out, of_baseline, rounds) is lopsided(of_baseline, left_out, rounds) is answer


def closed(order: str) -> list[ClosedRound]:
    """Close the rounds of runs of A, the row, and B in this order; A takes 10 + its place, B its place."""
    runs = [(name, (at, at + (10.0 if name == "A" else 0.0))) for at, name in enumerate(order)]
    return close_rounds([run for name, run in runs if name == "A"], [run for name, run in runs if name == "B"])


@pytest.mark.parametrize(
    ("order", "differences", "is_balanced"),
    [
        ("ABBA", [9.0, 11.0], True),
        ("ABAB", [9.0, 9.0], False),
        ("AABB", [8.5], False),
        ("AABBBA", [8.5, 11.5], True),
        ("AB", [9.0], False),
        ("AAAA", [], False),
        ("", [], False),
    ],
)
def test_a_round_closes_at_the_first_run_that_completes_both_rows(
    order: str, differences: list[float], is_balanced: bool
) -> None:
    assert [each.difference for each in closed(order)] == differences
    assert balanced(closed(order)) is is_balanced


def test_machines_are_the_unit_where_the_rounds_ran_on_several() -> None:
    means = [0.11, 0.1, 0.102]
    rounds = [mean + half for mean in means for half in (-0.01, 0.01)]
    judgement, plain = after(rounds, machines="aabbcc"), after(means)
    assert (judgement.low, judgement.high) == pytest.approx((plain.low, plain.high))
    assert (judgement.n, judgement.machines, judgement.given_after) == (6, 3, 5)
    two = after(rounds[:4] * 5, machines="aabb" * 5)
    assert two.decision is Decision.UNDECIDED and math.isinf(two.high) and (two.more, two.machines) == (1, 2)
