"""What the end of a preflight says about the runs of its job, and memory that others hold."""

from __future__ import annotations

import pytest

from queue_runner.model import Ending, Outcome
from queue_runner.spec import JobSpec
from queue_runner.worker import preflight_end
from queue_runner.worker.preflight_end import is_hopeless

JOB = JobSpec(kind="workload", name="x").for_preflight(900.0)


@pytest.mark.parametrize(
    ("ending", "hopeless"),
    [
        (Ending(Outcome.SUCCEEDED, 0), False),
        (Ending(Outcome.FAILED, 1, reason="no data"), True),
        (Ending(Outcome.SPAWN_FAILED, reason="no python"), True),
        (Ending(Outcome.DEVICE_UNAVAILABLE, 69, reason="no cuda here"), True),
        (Ending(Outcome.DEVICE_UNAVAILABLE, 69, reason="CUDA-capable device(s) is/are busy or unavailable"), False),
        (Ending(Outcome.OUT_OF_MEMORY, 71), True),
        (Ending(Outcome.STALLED), True),
        (Ending(Outcome.KILLED, signal=11, reason="SIGSEGV: it crashed"), True),
        (Ending(Outcome.KILLED, signal=9, reason="SIGKILL: sent from outside mpsq"), False),
        (Ending(Outcome.TIMED_OUT), False),  # of preflights, not of the job
        (Ending(Outcome.LOST, reason="reboot: the machine went down while it ran"), False),
        (Ending(Outcome.LOST, reason="warden_died: ..."), False),
        (Ending(Outcome.CANCELLED), False),
        (Ending(Outcome.DISK_FULL), False),
    ],
)
def test_only_what_the_runs_would_share_skips_them(ending: Ending, hopeless: bool) -> None:
    assert is_hopeless(JOB, ending, busy=False) is hopeless


def test_memory_that_others_hold_skips_nothing() -> None:
    assert not is_hopeless(JOB, Ending(Outcome.OUT_OF_MEMORY, 71), busy=True)
    assert is_hopeless(JOB, Ending(Outcome.FAILED, 1), busy=True)


def test_the_limit_of_the_job_counts_where_it_is_shorter() -> None:
    short = JobSpec(kind="workload", name="x", timeout_s=5.0).for_preflight(900.0)
    assert short.timeout_s == 5.0 and JOB.timeout_s == 900.0
    assert is_hopeless(short, Ending(Outcome.TIMED_OUT), busy=False)


def test_a_preflight_differs_from_its_job_in_its_settings_only() -> None:
    job = JobSpec(
        kind="workload", name="x", params={"lr": 0.1, "max_iters": 50}, preflight={"max_iters": 1}, resume=True
    )
    tried = job.for_preflight(900.0)
    assert tried.params == {"lr": 0.1, "max_iters": 1} and not tried.resume
    assert job.content_hash() == JobSpec(kind="workload", name="x", params=job.params).content_hash()


def test_memory_of_others_is_read_from_the_accelerator_of_the_job() -> None:
    two = "81000, 81559\n3, 81559\n"
    assert (
        preflight_end.parse_memory_use(two) == pytest.approx([0.993, 0.0], abs=1e-3)
        and preflight_end.parse_memory_use(None) == preflight_end.parse_memory_use("9" * 400 + ", 1") == []
    )
    assert preflight_end.is_taken("cuda:0", ask=lambda *_, **__: two)
    assert not preflight_end.is_taken("cuda:1", ask=lambda *_, **__: two)
    assert preflight_end.is_taken("cuda", ask=lambda *_, **__: two)
    assert preflight_end.is_taken("cpu", host_share=0.7) and not preflight_end.is_taken("mps", host_share=0.3)
    assert not preflight_end.is_taken("cuda", ask=lambda *_, **__: None, host_share=0.3)  # no tool: main memory's
