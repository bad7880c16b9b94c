"""The rounds of a question on a real Slurm of four nodes: at once, with the words that one node gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from queue_runner.model import Outcome
from queue_runner.monitor import answers
from queue_runner.store import read
from queue_runner.submit import plan
from tests.patience import patience
from tests.queue_support import Queue
from tests.remote.slurm_support import Slurm, front_of, running
from tests.submit_support import requested

pytestmark = [pytest.mark.process, pytest.mark.needs_program("slurmctld", "munged")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    yield from running(4)


@pytest.fixture
def front(queue: Queue, cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    yield from front_of(queue, cluster, monkeypatch)


def submit(front: Queue, **options: Any) -> int:
    """Queue three rows that sleep, for the cluster; return their submission."""
    given = {"argv": ("/bin/sleep", "{s}"), "cwd": str(front.folder), "sets": ("s=0.1,0.6,1.1",), "on": "slurm"}
    return plan.store(front.layout, plan.plan(requested(**{**given, "snapshot": "off", **options}))).group


def words(front: Queue, group: int) -> tuple[dict[str, str], set[int]]:
    """Return the words on the rows, and the numbers of machines that the rows ran on."""
    with read.reading(front.layout.db) as connection:
        (family,) = answers.of_group(connection, group)
    return {pair.arm.label: str(pair.verdict.word) for pair in family.pairs}, {arm.n_machines for arm in family.arms}


@pytest.mark.campaign
def test_two_hundred_short_jobs_end_once_each(front: Queue) -> None:
    """One block in five of 200 short runs stayed for ever: its records came in another order than its claims."""
    values = ",".join(f"{1 + k / 1e4:.4f}" for k in range(200))
    submit(front, sets=(f"s={values}",), until=None)
    submit(front, sets=("s=1",), repeats=200)
    assert front.worker("", "--until-idle").wait(patience(600)) == 0, front.log()
    rows = front.rows()
    assert [row["outcome"] for row in rows] == [Outcome.SUCCEEDED] * 400 and len({row["run"] for row in rows}) == 400


def test_rounds_on_several_nodes_decide_what_one_node_decides(front: Queue) -> None:
    many = submit(front, until="decided", whole_node=True)
    single = submit(front, until="decided", nodes_at_once=1)
    assert front.worker("", "--until-idle").wait(patience(120)) == 0, front.log()
    assert {row["outcome"] for row in front.rows()} == {Outcome.SUCCEEDED}, front.log()
    (of_many, (machines,)), (of_single, (machine,)) = words(front, many), words(front, single)
    assert of_many == of_single == {"s=0.6": "slower", "s=1.1": "slower"} and machine == 1
    with read.reading(front.layout.db) as connection:
        ((why,),) = read.tuples(connection, "SELECT closed_why FROM groups WHERE id = ?", [many])
    assert why == "decided" and machines >= 3, front.log()
