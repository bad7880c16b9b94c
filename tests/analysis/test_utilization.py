"""Samples by phase, dips, and energy over phases: interpolated counters against a course that is known."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from queue_runner.analysis import gpu_use
from queue_runner.analysis.phases import Span, phase_seconds, spans
from queue_runner.analysis.points import PhaseMark
from queue_runner.machine_records import SensorSample, read_samples

pytestmark = pytest.mark.fast
STARTED = 1e9


NESTED = [
    PhaseMark(*border)
    for border in (
        (0, "setup", "begin"),
        (60, "setup", "end"),
        (60, "measure", "begin"),
        (100, "eval", "begin"),
        (110, "eval", "end"),
        (150, "measure", "end"),
    )
]


def samples(*values: tuple[float, dict[str, Any]]) -> list[SensorSample]:
    return read_samples((STARTED + t_s, json.dumps(data)) for t_s, data in values)


def test_spans_are_exclusive_and_sum_to_the_phases() -> None:
    found = spans(NESTED, 152.0)
    assert found == [
        Span("setup", 0.0, 60),
        Span("measure", 60, 100),
        Span("eval", 100, 110),
        Span("measure", 110, 150),
    ]
    assert phase_seconds(NESTED, 152.0) == {"setup": 60, "measure": 80, "eval": 10}


def test_a_sample_belongs_to_the_phase_at_its_time() -> None:
    busy = [(t, {"gpu_busy_share": 0.0 if t < 60 or 100 < t < 110 else 0.98}) for t in range(0, 152, 3)]
    busy[25] = (75, {"gpu_busy_share": 0.7, "gpu_temperature_c": 71.0})
    use = gpu_use.measured(samples(*busy), NESTED, STARTED, 152.0)
    assert use is not None and use.busy_share == 0.98 and use.temperature_c == 71.0
    assert use.n_samples == 27 and use.dips_share == pytest.approx(1 / 27)


def test_without_a_sample_in_the_measured_phase_nothing_is_said_of_it() -> None:
    assert gpu_use.measured(samples((30, {"gpu_busy_share": 0.0})), NESTED, STARTED, 152.0) is None


def test_a_run_without_phases_is_one() -> None:
    use = gpu_use.measured(samples((1, {"gpu_busy_share": 0.5}), (9, {"gpu_busy_share": 1.0})), [], STARTED, 10.0)
    assert use is not None and (use.phase, use.busy_share) == (gpu_use.WHOLE, 0.75)


def test_the_boards_of_others_are_left_out() -> None:
    said = [
        (t, {"energy_j": {"gpu0": 70.0 * t, "gpu1": 700.0 * t}, "power_w": {"gpu0": 70.0, "gpu1": 700.0}})
        for t in range(0, 155, 5)
    ]
    several = gpu_use.measured(samples(*said), NESTED, STARTED, 152.0)
    assert several is None, "which board was the run's is not known"
    said[20][1]["gpus_used"] = [1]
    use = gpu_use.measured(samples(*said), NESTED, STARTED, 152.0)
    assert use is not None and set(use.joules) == set(use.power_w) == {"gpu1"}
    assert use.joules["gpu1"].joules == pytest.approx(80 * 700.0)


def test_a_counter_has_its_own_time() -> None:
    """NVML's reading may be of the sample before, where the driver took its time."""
    said = [(t, {"energy_j": {"gpu0": 100.0 * (t - 4)}, "energy_at": STARTED + t - 4}) for t in range(4, 160, 5)]
    use = gpu_use.measured(samples(*said), NESTED, STARTED, 152.0)
    assert use is not None and use.joules["gpu0"].joules == pytest.approx(8000.0)


def test_interpolation_is_off_by_no_more_than_it_says() -> None:
    """Courses of power that change all the time, read every five seconds: the error is a bound, and mostly far off."""
    rng = random.Random(7)
    for _ in range(200):
        watts = [rng.uniform(80, 700) for _ in range(2000)]  # by tenths of a second
        sums = [0.0]
        for power in watts:
            sums.append(sums[-1] + power / 10)
        begin, end = sorted(rng.sample(range(60, 1900), 2))
        points = [(k / 10, sums[k]) for k in range(0, 2001, 50)]
        found = gpu_use.counted(points, [Span("measure", begin / 10, end / 10)])
        true = sums[end] - sums[begin]
        assert found is not None and found.error_j is not None
        assert abs(found.joules - true) <= found.error_j + 1e-6


def test_a_steady_load_is_counted_over_all_spans() -> None:
    points = [(float(t), 300.0 * t) for t in range(0, 65, 5)]
    spans_ = [Span("measure", 2.5, 30.0), Span("measure", 32.0, 60.0)]
    counted = gpu_use.counted(points, spans_)
    assert counted is not None and counted.joules == pytest.approx(300.0 * 55.5)
    assert counted.error_j == pytest.approx(750 + 0 + 900 + 0)


@pytest.mark.parametrize(
    "points",
    [[], [(0.0, 5.0)], [(0.0, 5.0), (50.0, 10.0)], [(0.0, 5.0), (50.0, 10.0), (90.0, 2.0)], [(5.0, 0.0), (90.0, 2.0)]],
)
def test_an_energy_that_is_not_covered_is_unknown(points: list[tuple[float, float]]) -> None:
    """Also after a reset of the counter, as when the driver is loaded again."""
    assert gpu_use.counted(points, [Span("measure", 2.0, 80.0)]) is None
    assert gpu_use.counted([(0.0, 1.0), (90.0, 2.0)], []) is None


def test_a_value_of_another_type_is_unknown_and_the_rest_of_its_sample_counts() -> None:
    rows = [(2.0, '{"load1": 0.5, "new_in_a_later_version": []}'), (1.0, '{"load1": "high", "steal_share": 0.9}')]
    samples = read_samples(rows)
    assert [(sample.at, sample.load1, sample.steal_share) for sample in samples] == [(1.0, None, 0.9), (2.0, 0.5, None)]
