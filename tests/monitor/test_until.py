"""When the rounds of --until end: their goal is reached, or no further round can reach it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from queue_runner.analysis.comparison import Family
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.monitor.answers import obstacle, reached, rounds_left
from queue_runner.spec import DECIDED, Aim
from tests.compare_support import ask, row

pytestmark = pytest.mark.fast
STEADY = (1.0, 1.001, 0.999, 1.0005)
NOISY = (1.00137, 1.40271, 0.80393)


def planned(device: str, times: Sequence[float | None], job: int, **more: Any) -> list[ReportedRun]:
    """Return a row's runs, one a round; None: it failed."""
    return [
        row(
            device,
            median_s=time,
            group_id=1,
            job_id=job,
            repeat=repeat,
            started_at=100.0 * repeat + job,
            outcome="SUCCEEDED" if time else "FAILED",
            **more,
        )
        for repeat, time in enumerate(times, 1)
    ]


def test_words_and_narrow_intervals_are_goals() -> None:
    families = ask([*planned("cpu", STEADY, 1), *planned("mps", [0.5 * x for x in STEADY[::-1]], 2)])
    assert reached(families, DECIDED) == DECIDED and not reached(families, "0.1%")
    assert "at most 10% wide" in reached(families, "10%")
    alone = ask(planned("cpu", STEADY, 1))
    assert reached(alone, "10%") and not reached(alone, DECIDED)


def test_a_row_without_the_metric_is_named() -> None:
    """The sentence ended with a colon."""
    values: dict[str, Sequence[float]] = {"cpu": (1.0, 1.001, 0.999, 1.0005), "mps": (2.0005, 2.0, 2.001, 1.9991)}
    rows = [
        replace(run, metrics={"acc": values.get(device, [math.nan] * 4)[k]}, log_metrics_json='{"acc": "x"}')
        for job, device in enumerate(("cpu", "mps", "cuda"), 1)
        for k, run in enumerate(planned(device, [job * x for x in STEADY], job, seed_by_round=1))
    ]
    why = obstacle(ask(rows), DECIDED)
    assert all(x in why for x in ("verdict on acc", "of cuda eager", "mpsq show "))


@pytest.mark.parametrize(
    ("mps", "more", "why"),
    [
        ([None] * 3, {}, "no run of job 2"),
        (STEADY[:3], {"valid": False}, "no run of job 2"),
        ([1.0, None, None], {}, "in 2 of 3 rounds the run of mps eager is missing or retried"),
        (STEADY[:3], {"config": "other"}, "no two rows can be compared: mpsq report"),
    ],
)
def test_no_round_follows_where_none_can_give_a_word(mps: Sequence[float | None], more: Any, why: str) -> None:
    families = ask([*planned("cpu", STEADY[:3], 1), *planned("mps", mps, 2, **more)])
    assert not reached(families, DECIDED)
    assert why in (reason := obstacle(families, DECIDED)) and ": mpsq " in reason


@pytest.mark.parametrize("goal", [DECIDED, "1%"])
def test_rows_that_may_still_be_decided_get_rounds_beside_one_that_always_fails(goal: str) -> None:
    rows = [*planned("cpu", NOISY, 1), *planned("mps", NOISY[::-1], 2), *planned("cuda", [None] * 3, 3)]
    assert not reached(ask(rows), goal) and not obstacle(ask(rows), goal)
    decided = [*planned("cpu", STEADY, 1), *planned("mps", [0.5 * x for x in STEADY], 2), *rows[6:]]
    assert not reached(ask(decided), DECIDED) and "of job 3 " in obstacle(ask(decided), DECIDED)


def test_times_that_are_rounded_too_much_are_not_measured_again() -> None:
    families = ask([*planned("cpu", [0.02, 0.021, 0.02], 1), *planned("mps", [0.021, 0.02, 0.02], 2)])
    assert "rounded" in obstacle(families, DECIDED)


def test_the_metrics_of_the_command_line_need_words_too() -> None:
    """The loss is far apart, the accuracy undecided after three rounds, and only it keeps the question open."""

    def families(*names: str, seeds: Sequence[int] = (1, 2, 3), **more: Any) -> list[Family]:
        rows = []
        for job, (device, base) in enumerate({"cpu": 0.2, "mps": 0.1}.items(), 1):
            for k, run in enumerate(planned(device, [base * x for x in STEADY[:3]], job)):
                values = {"loss": 10 * base + STEADY[k - job] / 7, "accuracy": NOISY[k - job]}
                patterns = json.dumps(dict.fromkeys(names, ""))
                rows.append(replace(run, metrics=values, seed=seeds[k], log_metrics_json=patterns))
        return ask(rows, **more)

    assert reached(families(), DECIDED) and reached(families("loss"), DECIDED)
    open_question = families("loss", "accuracy")
    assert not reached(open_question, DECIDED) and not obstacle(open_question, DECIDED)
    assert rounds_left(open_question) != 0
    by_accuracy = families(aim=Aim("accuracy"))
    assert by_accuracy[0].by == "accuracy" and not reached(by_accuracy, DECIDED)
    assert [*by_accuracy[0].answers(by_accuracy[0].pairs[0])] == ["accuracy", ""]
    assert reached(families(aim=Aim(margins={"accuracy": 10.0})), DECIDED)
    nowhere = families(aim=Aim("precision"))
    assert not reached(nowhere, DECIDED) and "no run has" in obstacle(nowhere, DECIDED)
    one_seed = families("loss", seeds=(1, 1, 1))
    assert not reached(one_seed, DECIDED) and "seed" in obstacle(one_seed, DECIDED)


def test_levels_and_one_failure_may_be_cured() -> None:
    levels = planned("mps", STEADY[:3], 2, taints="levels")
    for mps in (levels, planned("mps", [1.0, None, 1.001], 2)):
        families = ask([*planned("cpu", STEADY[:3], 1), *mps])
        assert not reached(families, DECIDED) and not obstacle(families, DECIDED)
