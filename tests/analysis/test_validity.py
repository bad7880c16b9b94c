"""Every taint of docs/methodology.md that the spine can see, from what was recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from queue_runner.analysis.summary import Summary
from queue_runner.analysis.validity import Facts, find_taints
from queue_runner.model import PHASES, Outcome

ITERATION = {"i": 5, "dur_s": 0.1, "loss": 4.0, "phase": PHASES.index("measure"), "synced": 1}
CLEAN = Facts(
    outcome=Outcome.SUCCEEDED,
    expects_iterations=True,
    iterations=[ITERATION],
    summary=Summary(n_iters=1, n_measure=1, loss_first=4.2, loss_last=2.0, drift_ratio=1.01),
    notes={},
    conditions=[{"others_cpu_share": 0.02, "steal_share": 0.0, "on_battery": False, "thermal_level": 0}],
    ingests=[],
    slept_s=0.0,
)


def condition(**said: object) -> dict[str, Any]:
    return {"conditions": [said, said]}


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
        (condition(others_cpu_share=0.5), "contended", "invalid"),
        (condition(swap_out_bytes_per_s=5e6), "swapping", "invalid"),
        (condition(priority=20), "throttled_service", "invalid"),
        ({"iterations": [{**ITERATION, "synced": 0}]}, "unsynced", "caveat"),
        ({"notes": {"op_fallback": "aten::linalg_svd ran on the CPU"}}, "op_fallback", "caveat"),
        (condition(on_battery=True), "battery", "caveat"),
        (condition(low_power=True), "low_power", "caveat"),
        (condition(gpu_busy_before=0.11), "gpu_busy", "caveat"),
        (condition(thermal_level=2), "throttled", "caveat"),
        (condition(steal_share=0.1), "stolen", "caveat"),
        ({"summary": replace(CLEAN.summary, drift_ratio=1.25)}, "drift", "caveat"),
        ({"summary": replace(CLEAN.summary, bimodal=True)}, "bimodal", "caveat"),
    ],
)
def test_each_taint(change: dict[str, Any], kind: str, severity: str) -> None:
    (taint,) = find_taints(replace(CLEAN, **change))
    assert (taint.kind, taint.severity) == (kind, severity)
    assert taint.detail


def test_what_the_gpu_did_while_the_run_used_it_proves_nothing() -> None:
    assert find_taints(replace(CLEAN, **condition(gpu_busy_share=0.97, gpu_busy_before=0.1))) == []


def test_the_losses_of_an_evaluation_take_no_course() -> None:
    rises = replace(CLEAN, summary=Summary(loss_first=4.0, loss_last=9.0), learns=False)
    assert find_taints(rises) == []
    (taint,) = find_taints(replace(rises, notes={"nan_loss": "not a number"}))
    assert taint.kind == "diverged"


def test_a_failed_run_is_not_called_unobserved() -> None:
    assert find_taints(replace(CLEAN, iterations=[], outcome=Outcome.FAILED)) == []


def test_what_was_not_sampled_taints_nothing() -> None:
    assert find_taints(replace(CLEAN, conditions=[{"others_cpu_share": None}])) == []


def test_a_run_that_nobody_watched_says_so() -> None:
    """It ended before a share of the processors could be sampled; an import was never to be watched."""
    live = replace(CLEAN, ingests=[{"stream": "events"}])
    assert [t.kind for t in find_taints(replace(live, conditions=[{"load1": 0.1}]))] == ["unwatched"]
    assert find_taints(live) == find_taints(replace(CLEAN, conditions=[])) == []


def test_a_priority_that_was_lowered_for_a_while_is_no_limit() -> None:
    """macOS lowers that of a thread that computes while there are more of them than cores; no limit is exceeded."""
    for interactive in range(31, 38):
        conditions = [{"priority": interactive}, {"priority": 17}]
        assert not [taint for taint in find_taints(replace(CLEAN, conditions=conditions)) if "priority" in taint.detail]
    limited = find_taints(replace(CLEAN, conditions=[{"priority": 20}, {"priority": 4}]))
    assert [taint.kind for taint in limited if "20" in taint.detail] == ["throttled_service"]
