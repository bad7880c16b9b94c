"""The variables of a run's lane in its environment."""

from __future__ import annotations

import pytest

from queue_runner import lanes
from queue_runner.lanes import Lane
from queue_runner.spec import JobSpec
from queue_runner.worker import launch

GPU = "GPU-5c1a7b9e-0000-1111-2222-333344445555"
SLICE = "MIG-9f021b9e-0000-1111-2222-333344445555"


@pytest.mark.parametrize("name", [GPU, SLICE, f"{GPU},{SLICE}"])
def test_a_run_sees_the_gpus_or_slices_of_its_lane_by_uuid_and_starts_a_thread_for_each_processor(name: str) -> None:
    gpus = len(lanes.parts(name))
    spec = lanes.placed(JobSpec("workload", "x", device="cuda", gpus=gpus), Lane(name, (2, 3, 8, 9)))
    env = launch.of_lane(spec)
    assert env["CUDA_VISIBLE_DEVICES"] == name
    assert {env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]} == {str(4 // gpus)}


def test_a_run_that_has_the_machine_alone_has_nothing_of_a_lane() -> None:
    assert launch.of_lane(lanes.placed(JobSpec("workload", "x", device="cpu"), Lane(GPU, (2, 3)))) == {}
