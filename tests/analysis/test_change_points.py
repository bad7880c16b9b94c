"""Steps in a history: seldom where there is none, near where there is one, the same at each later look."""

from __future__ import annotations

import math

import pytest

from queue_runner.analysis.change_points import FIRST_LOOK, find_steps
from tests.simulate import trends

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("noise", trends.NOISES)
def test_an_even_history_seldom_has_a_step(noise: str) -> None:
    """At most 2 %, and 6 % where half of a night's noise is that of the night before (docs/simulations.md)."""
    assert trends.false_share(noise, 200) <= (0.06 if noise == "AR(1) 0.5" else 0.025)


def test_a_step_of_five_per_cent_is_found_near_its_place() -> None:
    steps = trends.found("normal", 0.01, 100)
    assert len(steps) >= 95
    assert sum(step.stated <= trends.AT + trends.NEAR for step in steps) >= 80
    assert sum(step.first <= trends.AT <= step.last for step in steps) >= 95
    assert sum(step.low <= trends.STEP <= step.high for step in steps) >= 85


def test_what_a_look_has_stated_stays() -> None:
    row = [0.01 * x for x in trends.histories("normal", 1)[0].tolist()]
    values = [x + (0.05 if 12 <= k < 20 else 0.0) for k, x in enumerate(row)]
    looks = [find_steps(values[:n]) for n in range(len(values) + 1)]
    counts = [len(look) for look in looks]
    assert counts == sorted(counts) and counts[-1] == 2
    assert [step.at for step in looks[-1]] == [12, 20]
    assert all(look[0].stated == looks[-1][0].stated for look in looks if look)


def test_histories_read_together_share_the_risk() -> None:
    values = [*[0.0, 0.01, -0.01] * 6, *[0.1, 0.11, 0.09]]
    assert find_steps(values) and not find_steps(values, n_histories=10**15)


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 40, [0.0] * 20 + [1.0], [1.0, 2.0] * 20])
def test_histories_without_a_step(values: list[float]) -> None:
    """Without any noise, with one odd night, and where each night answers the one before."""
    assert find_steps(values) == []


def test_without_noise_a_step_is_exact() -> None:
    (step,) = find_steps([1.0] * FIRST_LOOK + [2.0] * 3)
    assert (step.at, step.first, step.last, step.change, step.stated) == (8, 8, 8, 1.0, 11)
    assert math.isclose(step.low, 1.0) and math.isclose(step.high, 1.0)
