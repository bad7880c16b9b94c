"""Which pair of versions is measured next, and when the step is known."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from msgspec.structs import replace

from queue_runner.errors import UsageError
from queue_runner.referee import bisect_versions
from queue_runner.referee.bisect_goal import Query
from queue_runner.referee.bisection import Bisection, CannotTell, Measured, NamedStep, VersionPair
from tests.compare_support import ask
from tests.referee.test_decision import runs
from tests.simulate import bisections
from tests.simulate.bisections import HISTORIES

pytestmark = pytest.mark.fast


def search(values: dict[int, float], last: int, skipped: frozenset[int] = frozenset()) -> tuple[Bisection, object]:
    """Bisect versions with these values, 0 by default, that never vary."""
    bisection = Bisection(last, skipped=skipped)
    answer = bisection.next()
    for _ in range(100):
        if not isinstance(answer, VersionPair):
            break
        difference = values.get(answer.newer, 0.0) - values.get(answer.older, 0.0)
        measured = Measured(answer.older, answer.newer, (difference, difference))
        bisection = replace(bisection, measured=(*bisection.measured, measured))
        answer = bisection.next(answer)
    return bisection, answer


@pytest.mark.parametrize(
    ("history", "n"),
    [("a step of 5 %, spread 1 %", 100), ("a step of 5 %, spread 3 %", 40), ("no step, spread 1 %", 40)],
)
def test_the_right_step_is_named_or_none(history: str, n: int) -> None:
    """95 of 100 are right; where there is no step, none is named. make simulate has the rates of 1,000."""
    results = bisections.searches(HISTORIES[history], n)
    named = sum(result.named for result in results)
    assert all(result.right for result in results if result.named)
    assert named >= 0.95 * n if HISTORIES[history].steps else named == 0


@pytest.mark.parametrize("place", [1, 5, 8])
def test_values_that_never_vary_are_bisected(place: int) -> None:
    bisection, answer = search({version: 1.0 for version in range(place, 9)}, 8)
    assert isinstance(answer, NamedStep) and (answer.older, answer.newer) == (place - 1, place)
    assert not answer.is_part and bisection.n_rounds <= 14


def test_neighbours_are_their_own_step() -> None:
    bisection, answer = search({1: 0.5}, 1)
    assert isinstance(answer, NamedStep) and bisection.n_rounds == 4


def test_a_step_among_skipped_versions_is_between_those_around_them() -> None:
    _, answer = search({version: 1.0 for version in range(4, 9)}, 8, frozenset({3, 4, 5}))
    assert isinstance(answer, NamedStep) and (answer.older, answer.newer) == (2, 6)


def test_the_smaller_of_two_steps_is_called_a_part() -> None:
    values = {version: 1.0 if version < 5 else 3.0 for version in range(2, 9)}
    _, answer = search(values, 8)
    assert isinstance(answer, NamedStep) and answer.newer in (2, 5) and answer.is_part


def test_ends_that_are_equal_have_no_step() -> None:
    _, answer = search({}, 8)
    assert isinstance(answer, CannotTell) and "ends differ" in answer.why


def test_a_wrong_half_is_corrected_by_later_rounds() -> None:
    """The first rounds of version 4 lie: it seems like the good end, although the step is before it."""
    ends = Measured(0, 8, (1.0, 1.1, 0.9, 1.0))
    bisection = Bisection(8, (ends, Measured(0, 4, (0.0, 0.1))))
    assert bisection.like_bad(4) < 0.05
    counts: Counter[VersionPair] = Counter()
    answer = bisection.next(VersionPair(0, 4))
    while isinstance(answer, VersionPair):
        counts[answer] += 1
        slower = float(answer.newer >= 3) - float(answer.older >= 3)
        noise = 0.05 * (-1) ** counts[answer]
        measured = Measured(answer.older, answer.newer, (slower + noise, slower - noise))
        bisection = replace(bisection, measured=(*bisection.measured, measured))
        answer = bisection.next(answer)
    assert not isinstance(answer, NamedStep) or answer.newer == 3


def test_times_of_different_things_are_not_put_together() -> None:
    measured = (Measured(0, 8, (1.0, 1.1, 0.9, 1.0)), Measured(0, 4, (0.0,), unit="wall"))
    answer = Bisection(8, measured).next()
    assert isinstance(answer, CannotTell) and "cannot be compared" in answer.why


def test_the_goal_of_a_submission_is_read_as_it_was_written() -> None:
    before = Bisection(8, (Measured(0, 8, (1.0, 1.5), obstacle="x"),), frozenset({3, 2}), math.log(1.01))
    query = Query("key", "begun", 0, 4, ("a", "b"), "loss", before)
    assert Query.from_goal(query.to_goal("bisect")) == query


def test_speeds_that_alternate_within_runs_are_read_as_they_were_written() -> None:
    """How far apart they are is unknown, and JSON has no infinity."""
    rows = [
        run.changed(name=names[run.name], taints="levels")
        for names in [{"champion": "a", "candidate": "b"}]
        for name, time_s in (("champion", 1.0), ("candidate", 1.5))
        for run in runs(name, [time_s] * 4, [None] * 4)
    ]
    query = Query("key", "begun", 0, 8, ("a", "b"), "", Bisection(8))
    measured = query.measured(ask(rows, sweeps=True))
    known = Bisection(8, (measured,))
    again = Query.from_goal(replace(query, before=known).to_goal("bisect"))
    assert again.before == known and len(measured.differences) == 4
    assert again.before.judged(0, 8).waits_for_levels


def test_a_version_whose_run_was_lost_has_no_rounds_yet() -> None:
    rows = [*runs("champion", [1.0], [None]), *runs("candidate", [None], [None], outcome="LOST")]
    query = Query("key", "begun", 0, 8, ("champion", "candidate"), "", Bisection(8))
    assert query.measured(ask(rows, sweeps=True)) == Measured(0, 8)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("torch=2.9..2.11", ["torch 2.9", "torch 2.10", "torch 2.11"]),
        ("numpy=1.26.3..1.26.4", ["numpy 1.26.3", "numpy 1.26.4"]),
        ("torch=1.13,2.0,2.10.1", ["torch 1.13", "torch 2.0", "torch 2.10.1"]),
    ],
)
def test_versions_are_listed_oldest_first(text: str, names: list[str]) -> None:
    versions = bisect_versions.packages(text, "numpy<2")
    assert [version.name for version in versions] == names
    assert versions[0].identity == names[0].replace(" ", "==") + ".* numpy<2"


@pytest.mark.parametrize(
    "text", ["torch", "torch=2.9", "torch=2.x..2.13", "torch=1.13..2.1", "torch=2.13..2.9", "=1,2"]
)
def test_an_invalid_range_of_versions_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        bisect_versions.packages(text, "")
    assert refused.value.message.startswith(f"--versions {text}") and "torch=" in refused.value.hint
