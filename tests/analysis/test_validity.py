"""Every taint of docs/methodology.md that the spine can see, from what was recorded."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from queue_runner.analysis import steadiness
from queue_runner.analysis.points import IterationPoint
from queue_runner.analysis.summary import Summary
from queue_runner.analysis.validity import Facts, find_taints
from queue_runner.machine_records import SensorSample
from queue_runner.model import PHASES, Outcome

ITERATION = IterationPoint(5, 0.1, 4.0, PHASES.index("measure"), synced=1)
CLEAN = Facts(
    outcome=Outcome.SUCCEEDED,
    expects_iterations=True,
    iterations=[ITERATION],
    summary=Summary(n_iters=1, n_measure=1, loss_first=4.2, loss_last=2.0, drift_ratio=1.01),
    notes={},
    conditions=[SensorSample(others_cpu_share=0.02, steal_share=0.0, on_battery=False, thermal_level=0)],
    watched=False,
    slept_s=0.0,
)


def course(times: list[float]) -> dict[str, Any]:
    return {"summary": dataclasses.replace(CLEAN.summary, course=steadiness.course(range(len(times)), times))}


def condition(**values: Any) -> dict[str, Any]:
    return {"conditions": [SensorSample(**values)] * 2}


def test_a_clean_run_has_no_taint() -> None:
    assert find_taints(CLEAN) == []


@pytest.mark.parametrize(
    ("change", "kind", "severity"),
    [
        ({"slept_s": 2.0}, "slept", "invalid"),
        ({"paused_s": 0.004}, "suspended", "invalid"),
        ({"resumed_from": "12.1"}, "resumed", "caveat"),
        ({"notes": {"wrong_loss": "cpu 4.17, mps 9.31"}}, "wrong_loss", "invalid"),
        ({"notes": {"wrong_result": "n1000: relative error 1e-2"}}, "wrong_result", "invalid"),
        ({"notes": {"nan_loss": "not a number from iteration 7 on"}}, "diverged", "invalid"),
        ({"summary": Summary(loss_first=4.0, loss_last=9.0)}, "diverged", "invalid"),
        ({"summary": Summary(loss_first=4.0, loss_last=float("inf"))}, "diverged", "invalid"),
        ({"notes": {"log_rewritten": "events.jsonl: changed"}}, "log_rewritten", "invalid"),
        ({"iterations": []}, "unobserved", "invalid"),
        (condition(others_cpu_share=0.5), "contended", "caveat"),
        (condition(swap_out_bytes_per_s=5e6), "swapping", "invalid"),
        (condition(priority=20), "throttled_service", "caveat"),
        ({"iterations": [ITERATION._replace(synced=0)]}, "unsynced", "caveat"),
        ({"notes": {"op_fallback": "aten::linalg_svd ran on the CPU"}}, "op_fallback", "caveat"),
        (condition(on_battery=True), "battery", "caveat"),
        (condition(low_power=True), "low_power", "caveat"),
        (condition(gpu_busy_before=0.11), "gpu_busy", "caveat"),
        (condition(thermal_level=2), "throttled", "caveat"),
        (condition(gpu_others_busy_share=0.3), "gpu_contended", "caveat"),
        (condition(gpu_busy_after=0.96), "gpu_contended", "caveat"),
        (condition(gpu_others=1, gpu_others_bytes=8 << 30), "gpu_busy", "caveat"),
        (condition(gpu_busy_share=0.9, gpu_slowed_by=["thermal slowdown by software"]), "throttled", "caveat"),
        (condition(gpu_busy_share=0.9, gpu_temperature_c=92.0), "throttled", "caveat"),
        (condition(gpu_busy_share=0.9, gpu_temperature_c=88.0, gpu_thermal_margin_c=-1.0), "throttled", "caveat"),
        (condition(gpu_busy_share=0.9, gpu_clock_share=0.45), "throttled", "caveat"),
        (condition(steal_share=0.1), "stolen", "caveat"),
        (course([0.1] * 50 + [0.104] * 50), "drift", "caveat"),
        (course([0.1, 0.115, 0.13, 0.101] * 25), "levels", "caveat"),
        (course(([0.1] * 9 + [0.2]) * 20), "stragglers", "caveat"),
    ],
)
def test_each_taint(change: dict[str, Any], kind: str, severity: str) -> None:
    (taint,) = find_taints(replace(CLEAN, **change))
    assert (taint.kind, taint.severity) == (kind, severity)
    assert taint.detail


def test_what_the_gpu_did_while_the_run_used_it_proves_nothing() -> None:
    assert find_taints(replace(CLEAN, **condition(gpu_busy_share=0.97, gpu_busy_before=0.1))) == []


@pytest.mark.parametrize(
    "quiet",
    [
        {"gpu_others_busy_share": 0.04, "gpu_others": 2, "gpu_others_bytes": 1 << 30},  # a desktop
        {"gpu_busy_share": 0.99, "gpu_slowed_by": ["power cap"], "gpu_clock_share": 0.71},  # the board's own limit
        {"gpu_busy_share": 0.0, "gpu_slowed_by": ["hardware slowdown"], "gpu_clock_share": 0.1},  # it does not work
        {"gpu_busy_share": 0.99, "gpu_temperature_c": 92.0, "gpu_thermal_margin_c": 3.0},
    ],
)
def test_what_a_gpu_may_do(quiet: dict[str, Any]) -> None:
    assert find_taints(replace(CLEAN, **condition(**quiet))) == []


def series(name: str, *values: float, every_s: float = 5.0, **also: Any) -> dict[str, Any]:
    samples = [SensorSample(at=1e9 + n * every_s, **{name: value}, **also) for n, value in enumerate(values)]
    return {"conditions": samples}


def test_load_for_a_fifth_of_a_run_is_not_hidden_by_the_mean() -> None:
    busy = [0.01] * 16 + [1.0] * 4
    (taint,) = find_taints(replace(CLEAN, **series("others_cpu_share", *busy)))
    assert (taint.kind, taint.severity) == ("contended", "caveat")
    assert "100% of" in taint.detail and "10.0 s" in taint.detail
    (taint,) = find_taints(replace(CLEAN, **series("gpu_others_busy_share", *(0.3 * share for share in busy))))
    assert taint.kind == "gpu_contended" and "30% busy" in taint.detail and "10.0 s" in taint.detail


def test_a_hiccup_is_no_load() -> None:
    """A second of it in a minute, or in a run of ten seconds."""
    for seconds in (10, 60):
        shares = [0.02] * (seconds - 1) + [0.9]
        assert find_taints(replace(CLEAN, **series("others_cpu_share", *shares, every_s=1.0))) == []


@pytest.mark.parametrize(
    ("processors", "job", "others", "is_contended"),
    [
        (8, 1 / 8, 1 / 8, True),  # a hog beside a job that uses one of eight processors
        (64, 1 / 64, 1 / 64, True),
        (8, 1 / 8, 0.4 / 8, False),
        (8, 0.0, 1 / 8, True),  # a job that waits, as for a GPU, needs a processor now and then
        (8, 0.0, 0.4 / 8, False),
        (8, 0.5, 0.2, False),  # the rest is idle
        (8, 0.5, 0.3, True),
        (2, 0.5, 0.48, True),  # no processor is idle
        (2, 0.5, 0.2, False),
        (8, 0.85, 0.08, False),
        (8, 0.85, 0.12, True),
    ],
)
def test_load_is_judged_against_what_the_job_uses(
    processors: int, job: float, others: float, is_contended: bool
) -> None:
    loaded = condition(processors=processors, job_cpu_share=job, others_cpu_share=others)
    assert [taint.kind for taint in find_taints(replace(CLEAN, **loaded))] == ["contended"] * is_contended


def test_samples_count_by_the_time_that_they_stand_for() -> None:
    """The first ten seconds of a run have a sample a second: a start that compiles is no tenth of an hour."""
    first = [SensorSample(at=1e9 + n, others_cpu_share=0.9) for n in range(10)]
    rest = [SensorSample(at=1e9 + 10 + 5 * n, others_cpu_share=0.0) for n in range(1, 40)]
    assert find_taints(replace(CLEAN, conditions=first + rest)) == []


def test_the_losses_of_an_evaluation_take_no_course() -> None:
    rises = replace(CLEAN, summary=Summary(loss_first=4.0, loss_last=9.0), learns=False)
    assert find_taints(rises) == []
    (taint,) = find_taints(replace(rises, notes={"nan_loss": "not a number"}))
    assert taint.kind == "diverged"


def test_a_failed_run_is_not_called_unobserved() -> None:
    assert find_taints(replace(CLEAN, iterations=[], outcome=Outcome.FAILED)) == []


def test_what_was_not_sampled_taints_nothing() -> None:
    assert find_taints(replace(CLEAN, conditions=[SensorSample(others_cpu_share=None)])) == []


def test_a_run_that_nobody_watched_says_so() -> None:
    """It ended before a share of the processors could be sampled; an import was never to be watched."""
    live = replace(CLEAN, watched=True)
    assert [t.kind for t in find_taints(replace(live, conditions=[SensorSample(load1=0.1)]))] == ["unwatched"]
    assert find_taints(live) == find_taints(replace(CLEAN, conditions=[])) == []


def test_a_run_that_is_mostly_its_start_says_so() -> None:
    command = replace(CLEAN, iterations=[], expects_iterations=False, real_s=0.005)
    (taint,) = find_taints(replace(command, start_s=0.001))
    assert (taint.kind, taint.severity) == ("short_run", "caveat")
    assert "1.0 ms" in taint.detail and "5.0 ms" in taint.detail
    assert find_taints(replace(command, start_s=0.0004)) == []
    assert find_taints(replace(CLEAN, real_s=0.005, start_s=0.001)) == [], "its iterations are compared"


def test_a_priority_that_was_lowered_for_a_while_is_no_limit() -> None:
    """macOS lowers that of a thread that computes while there are more of them than cores; no limit is exceeded."""
    for interactive in range(31, 38):
        conditions = [SensorSample(priority=interactive), SensorSample(priority=17)]
        assert not [taint for taint in find_taints(replace(CLEAN, conditions=conditions)) if "priority" in taint.detail]
    limited = find_taints(replace(CLEAN, conditions=[SensorSample(priority=20), SensorSample(priority=4)]))
    assert [taint.kind for taint in limited if "20" in taint.detail] == ["throttled_service"]
