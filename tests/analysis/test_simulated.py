"""The numpy copy of the method agrees with the shipped one, and a few cells of the tables of `make simulate` hold."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from queue_runner.analysis.intervals import Contrast, Decision, judge
from tests.simulate import look_tables, machines
from tests.simulate import looks as copy

WORDS = {0: Decision.UNDECIDED, copy.ABOVE: Decision.ABOVE, copy.BELOW: Decision.BELOW, copy.SAME: Decision.SAME}


@pytest.mark.parametrize("noise", ["normal", "two levels 80:20", "Cauchy"])
@pytest.mark.parametrize(
    ("n_rows", "n_words", "levels", "step"),
    [(2, 1, False, 0.0), (2, 4, False, 0.1), (4, 3, True, 0.0), (4, 30, False, 0.0)],
)
@pytest.mark.parametrize("n_machines", [1, 4])
def test_numpy_copy_is_the_shipped_method(
    noise: str, n_rows: int, n_words: int, levels: bool, step: float, n_machines: int
) -> None:
    n_rounds, n_families, margin = 12, 3, 1.5
    machine = np.arange(n_rounds) * 7 % 5 % n_machines if n_machines > 1 else None
    differences = machines.differences(machines.values(noise, n_families, n_rounds, n_rows, 3.0))
    differences[..., 0] += 2.0
    many = copy.looks(differences, n_words, margin, levels=levels, step=step, machines=machine)
    for family in range(n_families):
        for n in range(1, n_rounds + 1):
            rows = differences[family, :n].T
            of_rounds = () if machine is None else tuple(map(int, machine[:n]))
            known = math.inf if levels else 0.0
            contrasts = [Contrast([*map(float, row)], margin, step, known, machines=of_rounds) for row in rows]
            for k, judgement in enumerate(judge(contrasts, n_words)):
                assert judgement.decision is WORDS[int(many.words[family, n - 1, k])]
                assert judgement.low == pytest.approx(many.lows[family, n - 1, k], abs=1e-9)
                assert judgement.high == pytest.approx(many.highs[family, n - 1, k], abs=1e-9)
                assert judgement.contradicted == many.contradicted[family, :n, k].any()


@pytest.mark.parametrize("n_rows", [2, 4, 12])
def test_equal_rows_seldom_differ_and_large_differences_show_soon(n_rows: int) -> None:
    values = machines.values("normal", 500, 24, n_rows)
    assert copy.looks(machines.differences(values)).wrong(copy.ABOVE, copy.BELOW).mean() < 0.06
    values[..., 1] += 10.0
    first = copy.looks(machines.differences(values)).first()
    assert np.mean(first <= 4) >= (0.95 if n_rows < 12 else 0.8)


@pytest.mark.parametrize("course", ["first of a round slower by 10 sd", "drift of 10 sd a run"])
def test_mirrored_pairs_withstand_the_place_in_the_round_and_drift(course: str) -> None:
    wrong = {}
    for how in ("mirrored", "random"):
        differences = machines.differences(machines.values("normal", 300, 24, 2, course=course, how=how))
        wrong[how] = copy.looks(differences).wrong(copy.ABOVE, copy.BELOW).mean()
    assert wrong["mirrored"] < 0.02 < 0.1 < wrong["random"]


PROMISED = [
    *((noise, n_rows, 1.0) for noise in (*machines.NOISES, machines.AUTOREGRESSIVE) for n_rows in (2, 4, 12)),
    *((noise, n_rows, 10.0) for noise in ("normal", "Laplace", "uniform", "lognormal(0.3)") for n_rows in (2, 4, 12)),
    *(("5 % outliers of either sign, 10 x", n_rows, 10.0) for n_rows in (2, 4, 12)),
]
"""The cells of "How often a verdict is wrong" that are not bold: noise, rows, spread."""


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "n_rows", "ratio"), PROMISED)
def test_equal_rows_differ_in_at_most_six_per_cent(noise: str, n_rows: int, ratio: float) -> None:
    """1,500 questions with a look after each round to 24."""
    values = machines.values(noise, 1500, 24, n_rows, ratio)
    assert copy.looks(machines.differences(values)).wrong(copy.ABOVE, copy.BELOW).mean() <= look_tables.LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_rows", "effect", "n_rounds", "share"), [(2, 10, 4, 0.95), (4, 10, 4, 0.95), (2, 20, 3, 0.9)]
)
def test_large_differences_are_decided_soon(n_rows: int, effect: float, n_rounds: int, share: float) -> None:
    differences = machines.differences(machines.values("normal", 2000, n_rounds, n_rows))
    differences[..., 0] += effect
    assert np.mean(copy.looks(differences).first() <= n_rounds) >= share


WAVES = "waves of 10 sd, two rounds long"
"""They look like a difference of two rows: bold in docs/simulations.md."""


@pytest.mark.slow
@pytest.mark.parametrize(("course", "n_rows"), [x for x in product(machines.COURSES, (2, 4, 12)) if x != (WAVES, 2)])
def test_what_the_machine_adds_favours_no_row(course: str, n_rows: int) -> None:
    differences = machines.differences(machines.values("normal", 1000, 24, n_rows, course=course))
    assert copy.looks(differences).wrong(copy.ABOVE, copy.BELOW).mean() <= look_tables.LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(("order", "runs"), product(look_tables.ORDERS, (8, 24, 48)))
def test_runs_without_planned_rounds_differ_in_at_most_six_per_cent(order: str, runs: int) -> None:
    assert look_tables.closed_wrong(order, "still", runs, 600).mean() <= look_tables.LIMIT


@pytest.mark.parametrize("correlation", look_tables.CORRELATIONS)
def test_machines_whose_ratios_differ_are_the_unit(correlation: float) -> None:
    """Rounds alone would be wrong far too often where the machines differ much."""
    wrong = {}
    for unit in ("round", "machine"):
        drawn = look_tables.on_machines(4, correlation, 2, 1200)
        units = ((d, machine if unit == "machine" else None) for d, machine in drawn)
        answers = [copy.looks(d, machines=machine).wrong(copy.ABOVE, copy.BELOW) for d, machine in units]
        wrong[unit] = np.concatenate(answers).mean()
    assert wrong["machine"] <= look_tables.LIMIT
    assert correlation < 0.8 or wrong["round"] > 0.2
