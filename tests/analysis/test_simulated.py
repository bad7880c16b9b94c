"""The numpy copy of the method agrees with the shipped one, and a few cells of the tables of `make simulate` hold."""

from __future__ import annotations

import numpy as np
import pytest

from queue_runner.analysis.verdicts import Contrast, Decision, judge
from tests.simulate import looks as copy
from tests.simulate import machines

WORDS = {0: Decision.UNDECIDED, copy.ABOVE: Decision.ABOVE, copy.BELOW: Decision.BELOW, copy.SAME: Decision.SAME}


@pytest.mark.parametrize("noise", ["normal", "two levels 80:20", "Cauchy"])
@pytest.mark.parametrize(
    ("n_rows", "n_words", "earlier_variance", "levels", "step"),
    [(2, 1, None, False, 0.0), (2, 4, 0.5, False, 0.1), (4, 3, None, True, 0.0), (4, 30, 2.0, False, 0.0)],
)
def test_numpy_copy_is_the_shipped_method(
    noise: str, n_rows: int, n_words: int, earlier_variance: float | None, levels: bool, step: float
) -> None:
    n_rounds, n_families, margin = 12, 3, 1.5
    differences = machines.differences(machines.values(noise, n_families, n_rounds, n_rows, 3.0))
    differences[..., 0] += 2.0
    many = copy.looks(differences, n_words, margin, levels=levels, step=step, earlier_variance=earlier_variance)
    for family in range(n_families):
        for n in range(1, n_rounds + 1):
            rows = differences[family, :n].T
            contrasts = [Contrast([*map(float, row)], margin, step, levels, earlier_variance) for row in rows]
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
