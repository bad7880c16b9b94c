"""The worst tenth of a run: means by time, and by simulation what load is found and what is not marked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from queue_runner.analysis import stretches
from queue_runner.analysis.validity import Facts, find_taints
from tests.analysis.test_validity import CLEAN

pytestmark = pytest.mark.process
TRIES = 200


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


def run_of(rng: random.Random, seconds: int, planted: Sequence[tuple[int, float]] = ()) -> list[dict[str, Any]]:
    """A run's samples: a second apart for ten, then five. Others use a few percent, and much for a second at times."""
    course = [
        min(1.0, rng.betavariate(1.2, 25) + (rng.random() < 0.01) * rng.uniform(0.3, 0.9)) for _ in range(seconds)
    ]
    for second, share in planted:
        course[second] = min(1.0, course[second] + share)
    times = [*range(1, min(10, seconds) + 1), *range(15, seconds + 1, 5)]
    before = [0, *times[:-1]]
    return [
        {"at": 1e9 + now, "others_cpu_share": sum(course[then:now]) / (now - then)}
        for then, now in zip(before, times, strict=True)
    ]


def marked(samples: list[dict[str, Any]]) -> bool:
    facts = Facts(**{**vars(CLEAN), "conditions": samples})
    return any(taint.kind == "contended" for taint in find_taints(facts))


@pytest.mark.parametrize("seconds", [10, 30, 120, 600])
def test_load_for_a_fifth_is_found_wherever_it_is(seconds: int) -> None:
    rng = random.Random(seconds)
    found = 0
    for _ in range(TRIES):
        long = max(2, seconds // 5)
        first = rng.randrange(seconds - long + 1)
        found += marked(run_of(rng, seconds, [(second, 1.0) for second in range(first, first + long)]))
    assert found >= 0.9 * TRIES, found


def test_quiet_runs_are_not_marked() -> None:
    """Of 1,000, with a second of load now and then."""
    rng = random.Random(13)
    wrong = sum(marked(run_of(rng, rng.choice((5, 10, 30, 120, 600)))) for _ in range(1000))
    assert wrong <= 20, wrong
