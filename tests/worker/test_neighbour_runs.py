"""Runs beside runs of another lane, under a real worker. The lanes are of processors, a stand-in for GPUs."""

from __future__ import annotations

import os
import sys

import pytest

from queue_runner.paths import jobs_dir
from queue_runner.spec import JobSpec, NewJob
from queue_runner.store import read
from queue_runner.submit import plan
from tests import named_rows
from tests.process_support import needs_linux
from tests.queue_support import Queue, until

pytestmark = [pytest.mark.process, needs_linux]

TRAINER = """
import os, pathlib, sys, time
sys.path.insert(0, {jobs!r})
import mpsq_report
report = mpsq_report.Reporter()
report.hello(workload="stand-in", framework="torch", device="cpu", dtype="fp32", planned_iters=8)
with report.phase("measure"):
    pathlib.Path(os.environ["MPSQ_CWD"], "began" + os.environ["MPSQ_RUN"]).touch()
    i = left = 0
    while left < {n}:
        time.sleep(0.02)
        report.iter(i, 0.02, 1.0, synced=True)
        i += 1
        left += len(list(pathlib.Path(os.environ["MPSQ_CWD"]).glob("began*"))) == 2  # both are measured
"""
"""A program without a framework, that sleeps in place of training."""


@pytest.fixture
def queue(queue: Queue) -> Queue:
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs the processors 0 and 1")
    with queue.layout.config.open("a") as file:
        file.write('lanes = "cpu:0,cpu:1"\n')
    return queue


def spec(queue: Queue, n: int) -> JobSpec:
    return JobSpec(
        kind="command",
        name="stand-in",
        argv=(sys.executable, "-c", TRAINER.format(jobs=str(jobs_dir()), n=n)),
        device="cpu",
        cwd=str(queue.folder),
        python=sys.executable,
        env=dict(os.environ),
        allow_changed=True,
    )


def taints(queue: Queue, run: str) -> dict[str, str]:
    with read.reading(queue.layout.db) as connection:
        (run_id,) = (row["run_id"] for row in queue.rows() if row["run"] == run)
        return {taint["kind"]: taint["detail"] for taint in named_rows.detail(connection, "taints", run_id)}


def test_two_submissions_that_overlap_name_each_other(queue: Queue) -> None:
    """One that ends while the other goes on, and the one that outlasts it."""
    for n in (40, 100):
        plan.store(queue.layout, plan.Plan("test", 1, (NewJob(spec(queue, n)),)))
    queue.worker("", "--until-idle").wait()
    until(lambda: all(row["state"] == "DONE" for row in queue.rows()))
    assert taints(queue, "1.1")["neighbour_busy"].endswith(" 2.1 on cpu:1")
    assert taints(queue, "2.1")["neighbour_busy"].endswith(" 1.1 on cpu:0")
