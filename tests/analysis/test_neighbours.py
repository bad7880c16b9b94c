"""Which runs of other lanes were active while a run was measured, and for what share of that."""

from __future__ import annotations

import pytest

from queue_runner.analysis.neighbour_share import Neighbour, neighbour_activity
from queue_runner.analysis.points import PhaseMark

MARKS = [
    PhaseMark(*border)
    for border in (
        (0.0, "setup", "begin"),
        (10.0, "setup", "end"),
        (10.0, "measure", "begin"),
        (20.0, "eval", "begin"),
        (30.0, "eval", "end"),
        (40.0, "measure", "end"),
    )
]
"""Measured from 10 to 20 s and from 30 to 40 s."""


def share(*active: tuple[float, float], marks: list[PhaseMark] = MARKS) -> float | None:
    """The share of a run of 50 s with neighbours that were active at these times."""
    found = neighbour_activity(
        marks, 50.0, 50.0, [Neighbour(f"{n}.1", "cpu:1", *times) for n, times in enumerate(active, 7)]
    )
    return found and found.share


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        ([(-5.0, 60.0)], 1.0),
        ([(-5.0, float("inf"))], 1.0),  # it still runs
        ([(15.0, 60.0)], 0.75),
        ([(15.0, 25.0)], 0.25),
        ([(12.0, 16.0), (14.0, 18.0)], 0.3),  # two at once are one busy time
        ([(0.0, 10.0)], None),  # during its set-up
        ([(20.0, 30.0)], None),  # during its evaluation
        ([(40.0, 60.0)], None),
        ([], None),
    ],
)
def test_the_share_is_of_the_measured_part(active: list[tuple[float, float]], expected: float | None) -> None:
    assert share(*active) == (expected and pytest.approx(expected))


def test_a_run_without_phases_is_measured_as_a_whole() -> None:
    assert share((0.0, 5.0), marks=[]) == pytest.approx(0.1)


def test_neighbours_are_named_up_to_a_number() -> None:
    found = neighbour_activity(MARKS, 50.0, 50.0, [Neighbour(f"{n}.1", "cpu:1", 10.0 + n, 11.0 + n) for n in range(5)])
    assert found is not None
    assert all(x in found.detail() for x in ("25.0 %", "0.1 on cpu:1", "2.1 on cpu:1", "and 2 more"))
