"""Runs beside runs of another lane, under a real worker. The lanes are of processors, a stand-in for GPUs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import pytest

from queue_runner import lanes
from queue_runner.lanes import Lane
from queue_runner.model import Condition, parse_selector
from queue_runner.monitor import why
from queue_runner.paths import jobs_dir
from queue_runner.reports._common import printing
from queue_runner.spec import ALONE, NEIGHBOUR, JobSpec, NewJob
from queue_runner.store import read
from queue_runner.submit import plan
from queue_runner.submit.neighbours import _rounds
from tests.cli_support import Cli
from tests.process_support import needs_linux
from tests.queue_support import Queue, until

pytestmark = [pytest.mark.process, needs_linux]

HERE = Lane("cpu:0", (0,)), Lane("cpu:1", (1,))
TRAINER = """
import os, sys, time
sys.path.insert(0, {jobs!r})
import mpsq_report
report = mpsq_report.Reporter()
report.hello(workload="stand-in", framework="torch", device="cpu", dtype="fp32", planned_iters=8)
open({journal!r}, "a").write(os.environ["MPSQ_RUN"] + "\\n")
time.sleep(1.5 if {n} > 1000 else 0)  # by then the worker has looked, and found nothing to start
with report.phase("measure"):
    for i in range({n}):
        time.sleep(0.02)
        report.iter(i, 0.02, 1.0, synced=True)
"""
"""A program without a framework, that sleeps in place of training."""


@pytest.fixture
def queue(queue: Queue) -> Queue:
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs the processors 0 and 1")
    with queue.layout.config.open("a") as file:
        file.write('lanes = "cpu:0,cpu:1"\n')
    return queue


def spec(queue: Queue, n: int, lane: Lane, pairing: str = "") -> JobSpec:
    program = TRAINER.format(jobs=str(jobs_dir()), journal=str(queue.journal), n=n)
    argv = (sys.executable, "-c", program)
    made = JobSpec(
        kind="command", name="stand-in", argv=argv, device="cpu", cwd=str(queue.folder), python=sys.executable
    )
    return replace(lanes.placed(replace(made, env=dict(os.environ), allow_changed=True), lane), pairing=pairing)


def bench(queue: Queue, repeats: int, neighbour_n: int = 10**6) -> None:
    """What mpsq bench --neighbours submits, of a program that needs no framework."""
    alone, beside = spec(queue, 8, HERE[0], ALONE), spec(queue, 8, HERE[0])
    neighbour = spec(queue, neighbour_n, HERE[1], NEIGHBOUR)
    made = tuple(NewJob(one, repeats) for one in (alone, beside, neighbour))
    after = ((), (plan.Sibling(2, Condition.WHILE),), ())
    order = tuple(_rounds(1, 3, repeats, seed=3))
    plan.store(queue.layout, plan.Plan("test", 3, made, order, (), (), after))


def explain(queue: Queue, run: str) -> why.Why:
    with read.reading(queue.layout.db) as connection:
        return why.explain_all(queue.layout, connection, [parse_selector(run)])[0]


def test_why_says_which_run_of_a_round_is_waited_for_and_what_to_do(queue: Queue, mpsq: Cli) -> None:
    bench(queue, repeats=2)
    neighbour, beside = (
        next(row["run"] for row in queue.rows() if row["job_id"] == job and row["repeat"] == 2) for job in (3, 2)
    )
    found = explain(queue, beside)
    assert found.kind == "dependency" and f"its neighbour run {neighbour} must be measured first" in found.sentence
    assert found.next_step == f"mpsq why {neighbour}"
    mpsq("hold", "3")
    found = explain(queue, beside)
    assert f"its neighbour run {neighbour} is held" in found.sentence and "mpsq release 3" in found.next_step
    mpsq("release", "3")
    mpsq("hold", "2")
    found = explain(queue, neighbour)
    assert found.kind == "dependency" and "mpsq release 2" in found.next_step
    assert f"run {beside}, which is to be measured beside it, is held" in found.sentence
    mpsq("release", "2")
    mpsq("pause", "--lane", "cpu:0")
    found = explain(queue, neighbour)
    assert "is bound to lane cpu:0, which is paused" in found.sentence
    assert found.next_step == "mpsq resume --lane cpu:0 resumes it"


def taints(queue: Queue, run: str) -> dict[str, str]:
    with read.reading(queue.layout.db) as connection:
        (run_id,) = (row["run_id"] for row in queue.rows() if row["run"] == run)
        return {taint["kind"]: taint["detail"] for taint in read.detail(connection, "taints", run_id)}


def report(queue: Queue, name: str) -> Any:
    from queue_runner import reports
    from queue_runner.reports._common.options import read_options

    with read.reading(queue.layout.db) as connection:
        result = reports.run(name, connection, read_options(include_invalid=True))
    return result, " ".join(printing.as_text(name, result, "table").split())


def test_rounds_alone_and_beside_a_neighbour(queue: Queue, mpsq: Cli) -> None:
    bench(queue, repeats=2)
    queue.worker("", "--until-idle").wait(60)
    rows = {row["run"]: row for row in queue.rows()}
    assert {run: row["outcome"] for run, row in rows.items()} == {
        **dict.fromkeys(("1.1", "1.2", "2.1", "2.2"), "SUCCEEDED"),
        **dict.fromkeys(("3.1", "3.2"), "CANCELLED"),
    }, queue.log()
    assert [rows[run]["lane"] for run in ("1.1", "2.1", "3.1")] == ["machine", "cpu:0", "cpu:1"]
    for n in ("1", "2"):
        assert "neighbour_busy" not in taints(queue, f"1.{n}")
        assert taints(queue, f"2.{n}")["neighbour_busy"] == (
            f"for 100 % of its measured time another lane was busy: 3.{n} on cpu:1"
        )
        order = [run for run in queue.written() if run.endswith(f".{n}")]
        assert order.index(f"3.{n}") < order.index(f"2.{n}")
        alone, beside, neighbour = (rows[f"{job}.{n}"] for job in (1, 2, 3))
        assert alone["ended_at"] <= neighbour["claimed_at"] or neighbour["ended_at"] <= alone["claimed_at"]
        assert neighbour["started_at"] < beside["claimed_at"] and beside["ended_at"] <= neighbour["ended_at"]
    result, text = report(queue, "neighbours")
    assert [(row["label"], row["n_runs"]) for row in result.rows] == [("alone", 2), ("beside another lane", 2)]
    assert "isolation is not shown: " in text  # two rounds are too few
    result, text = report(queue, "devices")
    assert sorted(row["n_runs"] for row in result.rows) == [2, 2] and "beside another lane" in text
    assert mpsq.ok("wait", "g1").out.startswith("4 of 4 runs succeeded; 2 neighbours ended")  # which is no failure
    assert "job 3 is measured" in mpsq.ok("show", "2.1").out


def test_a_run_whose_neighbour_ends_before_it_starts_is_skipped(queue: Queue) -> None:
    """The trainer beside which it was to run is over before the worker looks."""
    bench(queue, repeats=1, neighbour_n=0)
    queue.worker("", "--until-idle").wait(60)
    rows = {row["run"]: row for row in queue.rows()}
    assert (rows["2.1"]["outcome"], rows["2.1"]["reason"]) == (
        "SKIPPED",
        "dependency: its neighbour, job 3, ended before it could start",
    )


def test_without_its_lane_a_neighbour_does_not_start(queue: Queue) -> None:
    bench(queue, repeats=1)
    config = queue.layout.config
    config.write_text(config.read_text().replace('lanes = "cpu:0,cpu:1"\n', ""))
    queue.worker("", "--until-idle").wait(60)
    rows = {row["run"]: row["outcome"] for row in queue.rows()}
    assert rows == {"1.1": "SUCCEEDED", "2.1": "SKIPPED", "3.1": "SKIPPED"}, queue.log()


def test_two_submissions_that_overlap_name_each_other(queue: Queue) -> None:
    """One that ends while the other goes on, and the one that outlasts it."""
    for n in (10, 60):
        one = replace(spec(queue, n, HERE[0]), lane="", affinity="", cores=0, threads=0)
        plan.store(queue.layout, plan.Plan("test", 1, (NewJob(one, 1),), ((0, 1),), ()))
    queue.worker("", "--until-idle").wait(60)
    until(lambda: all(row["state"] == "DONE" for row in queue.rows()))
    assert taints(queue, "1.1")["neighbour_busy"].endswith("another lane was busy: 2.1 on cpu:1")
    assert taints(queue, "2.1")["neighbour_busy"].endswith("another lane was busy: 1.1 on cpu:0")
