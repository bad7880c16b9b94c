"""The worst tenth of a run: means by time, and by simulation what load is found and what is not marked."""

from __future__ import annotations

import pytest

from queue_runner.analysis import validity
from queue_runner.machine_records import SensorSample
from tests.simulate import load

pytestmark = pytest.mark.process


def test_means_are_by_time() -> None:
    samples = [SensorSample(at=at, load1=load) for at, load in ((0.0, 1.0), (1.0, 1.0), (9.0, 0.0))]
    assert validity.mean_over(samples, "load1") == pytest.approx(0.2)
    assert validity.mean_over(samples, "steal_share") is None and validity.mean_over([], "load1") is None
    assert validity.mean_over([SensorSample(load1=0.5)], "load1") == 0.5
    at_once = [SensorSample(at=1.0, load1=0.2), SensorSample(at=1.0, load1=0.4)]
    assert validity.mean_over(at_once, "load1") == pytest.approx(0.3)


def test_a_reading_between_two_samples_stands_for_its_own_time() -> None:
    """A Mac's GPU is read once a second, the rest every five: neither shortens what the other stands for."""
    samples = [SensorSample(at=5.0 * n, load1=float(n % 2)) for n in range(11)]
    readings = [SensorSample(at=n + 0.9, over_s=1.0, gpu_busy_share=float(n < 25)) for n in range(50)]
    mixed = sorted([*samples, *readings], key=lambda sample: sample.at)
    assert validity.mean_over(mixed, "load1") == validity.mean_over(samples, "load1")
    assert [*validity.stretches(mixed, "load1")] == [*validity.stretches(samples, "load1")]
    assert validity.mean_over(mixed, "gpu_busy_share") == 0.5
    assert {part.dur_s for part in validity.stretches(mixed, "gpu_busy_share")} == {5.0}


def test_a_part_is_as_short_as_may_be() -> None:
    loads = [None if t == 70 else float(t in (50, 51, 52)) for t in range(100)]
    samples = [SensorSample(at=float(t), load1=load, steal_share=2.0) for t, load in enumerate(loads)]
    parts = [*validity.stretches(samples, "load1", "steal_share", "priority")]
    assert max(part.means["load1"] for part in parts) == pytest.approx(0.3)
    assert {round(part.dur_s) for part in parts} == {10}
    assert parts[0].means["steal_share"] == 2.0 and "priority" not in parts[0].means
    assert [*validity.stretches(samples[:1], "load1")] == [*validity.stretches([], "load1")] == []


@pytest.mark.parametrize("fault", ["all processors", "half of its GPU"])
@pytest.mark.parametrize("seconds", load.LENGTHS_S)
def test_load_for_a_fifth_is_found_wherever_it_is(fault: str, seconds: int) -> None:
    assert load.caught(fault, seconds) >= 0.9


def test_quiet_runs_are_not_marked() -> None:
    assert load.false_marks() <= 0.02


def test_all_marks_together_are_seldom_wrong() -> None:
    """The 1,000 runs are in docs/simulations.md."""
    assert load.any_marks(150) <= 0.09  # more has a probability of 0.03 if 5 %
