"""The jobs and the order of mpsq bench --neighbours, and what it refuses."""

from __future__ import annotations

import os

import pytest

from queue_runner.errors import UsageError
from queue_runner.lanes import Lane
from queue_runner.model import Condition
from queue_runner.paths import Layout
from queue_runner.submit import neighbours, options, plan
from tests.process_support import needs_linux

LANES = [Lane(f"cpu:{n}", (n,)) for n in range(3)]


def planned(**said: object) -> plan.Plan:
    full = neighbours.preset({"workload": "nanogpt", "repeats": 3, "order_seed": 5, **said}, LANES)
    return neighbours.paired(plan.plan(options.request(full, "test", measures=True)), LANES)


def test_a_cell_is_run_alone_and_beside_a_neighbour_on_every_other_lane(layout: Layout) -> None:
    found = planned(set=["max_iters=20"])
    alone, beside, *others = [job.spec for job in found.jobs]
    assert [(spec.pairing, spec.lane) for spec in (alone, beside, *others)] == [
        ("alone", "cpu:0"), ("", "cpu:0"), ("neighbour", "cpu:1"), ("neighbour", "cpu:2"),
    ]  # fmt: skip
    assert alone.content_hash() == beside.content_hash() != others[0].content_hash()
    assert others[0].params["max_iters"] > 10**5 and others[0].params["eval_interval"] == 0
    waits = tuple(plan.Sibling(job, Condition.WHILE) for job in (2, 3))
    assert found.own_after == ((), waits, (), ())
    for repeat in (1, 2, 3):
        order = [job for job, of in found.order if of == repeat]
        assert "".join(map(str, order)) in ("0231", "2310")
    assert [repeat for _, repeat in found.order] == [1] * 4 + [2] * 4 + [3] * 4


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"workload": None}, "bench takes a workload"),
        ({"device": "mps"}, "--device mps: the lanes are of cpu"),
        ({"find_max": "batch_size"}, "a search has no repeats"),
        ({"until_valid": True}, "a round that is added later has no neighbour"),
        ({"gpus": 3, "set": ["grad_accum=3"]}, "does not run on the lane cpu:0"),
    ],
)
def test_what_it_refuses(layout: Layout, said: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        planned(**said)


@needs_linux
def test_one_lane_is_not_compared(layout: Layout) -> None:
    core = min(os.sched_getaffinity(0))
    layout.config.write_text(f'lanes = "cpu:{core}"\n')
    with pytest.raises(UsageError, match="this machine has 1"):
        neighbours.lanes_here(layout)
