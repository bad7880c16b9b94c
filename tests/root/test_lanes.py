"""Names of lanes, and what runs on them."""

from __future__ import annotations

import pytest

from queue_runner import lanes
from queue_runner.errors import UsageError
from queue_runner.lanes import Lane
from queue_runner.spec import JobSpec

A, B = "GPU-5c1a7b9e-0000-1111-2222-333344445555", "MIG-9f021c00-0000-1111-2222-333344445555"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("serial", ()),
        ("1", ()),
        ("auto", ("auto",)),
        (f"{A}, {B}", (A, B)),
        ("cpu:0-3,cpu:4+6-8", ("cpu:0-3", "cpu:4+6-8")),
    ],
)
def test_the_setting_names_lanes(text: str, names: tuple[str, ...]) -> None:
    assert lanes.parse(text) == names


@pytest.mark.parametrize(
    "text", ["2", "GPU-1", "cpu:", "cpu:3-1", "auto,cpu:0", f"{A},{A}", "cpu:0-3,cpu:3-6", "cpu:0,cpu:1-2", "cpu:99999"]
)
def test_no_lane_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UsageError) as told:
        lanes.parse(text)
    assert told.value.hint


def test_a_lane_of_another_machine_is_told_from_ours() -> None:
    assert lanes.is_remote("slurm-g12-a1b2c3")
    assert not any(map(lanes.is_remote, ("machine", A, B, "cpu:0-3+8", f"{A},{B}")))


def test_what_runs_on_a_lane() -> None:
    job = JobSpec("workload", "x", device="cuda")
    assert lanes.fits(job, A) and not lanes.fits(job, "cpu:0") and not lanes.fits(job, f"{A},{B}")
    on_cpu = JobSpec("workload", "x", device="cpu")
    assert lanes.fits(on_cpu, "cpu:0-3") and not lanes.fits(on_cpu, A), "alone, unless it is given processors"
    chosen = JobSpec("workload", "x", device="cuda", env={"CUDA_VISIBLE_DEVICES": "1"})
    assert not any(
        lanes.fits(one, A) for one in (chosen, JobSpec("command", "x"), JobSpec("workload", "x", device="mps"))
    )


def test_the_number_of_processors_is_part_of_the_question_and_which_they_are_is_not() -> None:
    job = JobSpec("workload", "x", device="cpu")
    first, second = (lanes.placed(job, Lane(name, lanes.cores(name))) for name in ("cpu:0-3", "cpu:4-7"))
    assert (first.cores, first.threads, first.affinity, second.affinity) == (4, 4, "0-3", "4-7")
    assert first.content_hash() == second.content_hash() != job.content_hash()
    own = lanes.placed(
        JobSpec("workload", "x", device="cpu", env={"OMP_NUM_THREADS": "2"}), Lane("cpu:0-3", (0, 1, 2, 3))
    )
    assert (own.threads, own.content_hash() != first.content_hash()) == (2, True)
    wide = lanes.placed(JobSpec("workload", "x", device="cpu", gpus=2), Lane("cpu:0-3,cpu:4-7", tuple(range(8))))
    assert (wide.cores, wide.threads) == (8, 4)
