"""The worst tenth of a run: means by time, and by simulation what load is found and what is not marked."""

from __future__ import annotations

import pytest

from queue_runner.analysis import stretches
from tests.simulate import load

pytestmark = pytest.mark.process


def test_means_are_by_time() -> None:
    samples = [{"at": 0.0, "x": 1.0}, {"at": 1.0, "x": 1.0}, {"at": 9.0, "x": 0.0}]
    assert stretches.whole(samples, "x") == pytest.approx(0.2)
    assert stretches.whole(samples, "y") is None and stretches.whole([], "x") is None
    assert stretches.whole([{"x": 0.5}], "x") == 0.5
    assert stretches.whole([{"at": 1.0, "x": 0.2}, {"at": 1.0, "x": 0.4}], "x") == pytest.approx(0.3)


def test_a_part_is_as_short_as_may_be() -> None:
    samples = [{"at": float(t), "x": float(t in (50, 51, 52)), "y": 2.0} for t in range(100)]
    samples[70].pop("x")
    found = [*stretches.parts(samples, "x", "y", "z")]
    assert max(part.means["x"] for part in found) == pytest.approx(0.3)
    assert {round(part.dur_s) for part in found} == {10} and found[0].means["y"] == 2.0 and "z" not in found[0].means
    assert [*stretches.parts(samples[:1], "x")] == [*stretches.parts([], "x")] == []


@pytest.mark.parametrize("fault", ["all processors", "half of its GPU"])
@pytest.mark.parametrize("seconds", load.LENGTHS_S)
def test_load_for_a_fifth_is_found_wherever_it_is(fault: str, seconds: int) -> None:
    assert load.caught(fault, seconds) >= 0.9


def test_quiet_runs_are_not_marked() -> None:
    assert load.false_marks() <= 0.02


def test_all_marks_together_are_seldom_wrong() -> None:
    """The 1,000 runs are in docs/simulations.md."""
    assert load.any_marks(150) <= 0.09  # more has a probability of 0.03 if 5 %
