"""Preflights under real workers: a cell that cannot work is known at once, and nothing of it counts."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import psutil
import pytest

from queue_runner.submit import plan
from tests.cli_support import Cli
from tests.patience import patience
from tests.queue_support import Queue, until, warden_pid
from tests.submit_support import requested

pytestmark = pytest.mark.process

TRIED = '''
"""A workload that fails as `how` says, without a framework."""
WORKLOAD = {
    "name": "tried",
    "framework": "torch",
    "about": "A workload for tests.",
    "source": "nowhere",
    "params": {
        "max_iters": {"default": 3, "unit": "iterations", "help": "how many"},
        "how": {"default": "well", "unit": "", "help": "how it ends"},
        "seconds": {"default": 0.0, "unit": "s", "help": "how long it takes"},
    },
    "configs": {},
}
import json, os, sys, time
said = dict(word.split("=", 1) for word in sys.argv if "=" in word)
iters, how = int(said.get("max_iters", 3)), said.get("how", "well")
with open(os.environ["JOURNAL"], "a") as journal:
    journal.write(f"{os.environ['MPSQ_RUN']} {iters} {os.environ['TORCHINDUCTOR_CACHE_DIR']}\\n")
os.makedirs(os.environ["MPSQ_OUT"], exist_ok=True)
os.makedirs(os.environ["TORCHINDUCTOR_CACHE_DIR"], exist_ok=True)
open(os.environ["MPSQ_OUT"] + "/weights", "w").write("0")
events = open(os.environ["MPSQ_EVENTS"], "a", buffering=1)
def tell(**event):
    events.write(json.dumps({"v": 1, "t": 0.0, **event}) + "\\n")
tell(type="hello", pid=os.getpid())
if how == "missing":
    import no_such_package
if how == "device":
    tell(type="note", kind="device_unavailable", text="no such device here")
    sys.exit(69)
if how == "busy":
    tell(type="note", kind="device_unavailable", text="all devices are busy or unavailable")
    sys.exit(69 if os.environ["MPSQ_RUN"].endswith(".0") else 0)
if how == "hang":
    time.sleep(600)
tell(type="phase", name="measure", edge="begin")
for i in range(iters):
    time.sleep(float(said.get("seconds", 0)))
    tell(type="iter", i=i, dur_s=0.01, loss=1.0, synced=True, phase="measure")
tell(type="phase", name="measure", edge="end")
tell(type="bye", ok=True)
'''


def submit(queue: Queue, how: str, **options: Any) -> list[int]:
    """Queue a grid of `tried`; returns its jobs."""
    queue.layout.workloads.mkdir(exist_ok=True)
    (queue.layout.workloads / "tried.py").write_text(TRIED)
    request = requested(
        workload="tried",
        device="cpu",
        sets=(f"how={how}", *options.pop("sets", ())),
        env=(f"JOURNAL={queue.journal}",),
        cwd=str(queue.folder),
        home=str(queue.layout.home),
        **options,
    )
    return list(plan.store(queue.layout, plan.plan(request)).jobs)


def fates(queue: Queue) -> dict[str, str]:
    return {row["run"]: row["outcome"] or row["state"] for row in queue.rows()}


def tried(queue: Queue) -> list[str]:
    return [line.split()[0] for line in queue.written()]


def test_one_impossible_cell_ends_and_the_rest_run(queue: Queue, mpsq: Cli) -> None:
    """Before, each of its repeats was started at its place in the night."""
    submit(queue, "well,missing", repeats=3, order_seed=1)
    queue.worker("", "--until-idle")
    queue.done(8)
    assert fates(queue) == {
        **{"1.0": "SUCCEEDED", "1.1": "SUCCEEDED", "1.2": "SUCCEEDED", "1.3": "SUCCEEDED"},
        **{"2.0": "FAILED", "2.1": "SKIPPED", "2.2": "SKIPPED", "2.3": "SKIPPED"},
    }
    assert tried(queue) == ["1.0", "2.0", "1.1", "1.2", "1.3"]
    assert [line.split()[1] for line in queue.written()] == ["1", "1", "3", "3", "3"]  # one iteration each
    said = mpsq.ok("why", "2").out
    assert all(x in said for x in ("was skipped: preflight", "FAILED(1): ModuleNotFoundError", "mpsq retry 2"))
    assert "install no_such_package" in said
    assert mpsq("wait", "@last").code == 3


def test_nothing_of_a_preflight_counts(queue: Queue, mpsq: Cli) -> None:
    submit(queue, "well", sets=("seconds=0,0.001",), repeats=1)
    queue.worker("", "--until-idle")
    queue.done(4)
    with sqlite3.connect(queue.layout.db) as connection:
        preflights = "SELECT run_id FROM v_run WHERE number = 0"
        for table in ("iterations", "phases", "evals", "metrics", "summaries", "taints"):
            assert connection.execute(f"SELECT count(*) FROM {table} WHERE run_id IN ({preflights})").fetchone() == (0,)
            assert table in ("evals", "metrics", "taints") or connection.execute(f"SELECT 1 FROM {table}").fetchone()
        assert connection.execute(f"SELECT count(*) FROM exits WHERE run_id IN ({preflights})").fetchone() == (2,)
    caches = {line.split()[0]: line.split()[2] for line in queue.written()}
    for run in ("1", "2"):
        assert not (queue.layout.run_dir(f"{run}.0") / "out").exists() and not Path(caches[f"{run}.0"]).exists()
        assert (queue.layout.run_dir(f"{run}.1") / "out" / "weights").exists() and Path(caches[f"{run}.1"]).exists()
    for report in ("time", "devices", "breakdown", "iterations"):
        said = mpsq.ok("report", report, "@last", "--all", "--format", "json").out
        assert '"1.1"' in said and '"1.0"' not in said
    assert [len(job["runs"]) for job in mpsq.ok("list", "--all", "--json").json()["jobs"]] == [1, 1]


def test_what_has_succeeded_here_is_not_tried_again(queue: Queue) -> None:
    submit(queue, "well", sets=("seconds=0,0.001",))
    queue.worker("", "--until-idle").wait()
    submit(queue, "well", sets=("seconds=0,0.001,0.002",), repeats=20)
    assert [row["run"] for row in queue.rows() if row["number"] == 0] == ["1.0", "2.0", "5.0"]


def test_a_start_up_that_is_most_of_the_work_is_not_paid_twice(queue: Queue) -> None:
    """The start of a Python is most of a run of 3 iterations of 0 s: of a similar cell, too."""
    submit(queue, "well", preflight=False)
    queue.worker("", "--until-idle").wait()
    submit(queue, "well", sets=("seconds=0.001,0.002",))
    assert [row["run"] for row in queue.rows()] == ["1.1", "2.1", "3.1"]
    submit(queue, "well", sets=("seconds=0.001,0.002",), repeats=20)
    assert [row["run"] for row in queue.rows() if row["number"] == 0] == ["4.0", "5.0"]


def test_a_first_try_of_few_iterations_is_its_own_preflight(queue: Queue) -> None:
    """Nothing is known of it: its start-up counts as 100 iterations."""
    submit(queue, "well", sets=("max_iters=10", "seconds=0.001,0.002"), repeats=2)
    submit(queue, "well", sets=("max_iters=1000", "seconds=0.001,0.002"), repeats=2)
    assert [row["run"] for row in queue.rows() if row["number"] == 0] == ["3.0", "4.0"]


@pytest.mark.parametrize("how", ["device", "busy"])
def test_a_busy_device_skips_nothing_and_an_absent_one_does(queue: Queue, how: str, mpsq: Cli) -> None:
    submit(queue, f"well,{how}", order_seed=1)
    queue.worker("", "--until-idle")
    queue.done(4)
    found = fates(queue)
    assert found["2.0"] == "DEVICE_UNAVAILABLE" and found["1.1"] == "SUCCEEDED"
    assert found["2.1"] == ("SUCCEEDED" if how == "busy" else "SKIPPED")
    if how == "device":
        assert "no such device" in mpsq.ok("why", "2").out and "mpsq doctor" in mpsq.ok("why", "2").out


def test_a_cancelled_preflight_says_nothing_about_its_runs(queue: Queue, mpsq: Cli) -> None:
    submit(queue, "hang,well", preflight=True, order_seed=1, timeout_s=600.0)
    queue.worker()
    until(lambda: tried(queue) == ["1.0"], "the first preflight")
    assert "1.0" in mpsq.ok("status").out
    mpsq.ok("cancel", "1.0")
    until(lambda: fates(queue)["2.0"] == "SUCCEEDED", "the second")
    until(lambda: "1.1" in tried(queue), "its run")
    mpsq.ok("cancel", "1")
    queue.done(4)
    assert fates(queue) == {"1.0": "CANCELLED", "1.1": "CANCELLED", "2.0": "SUCCEEDED", "2.1": "SUCCEEDED"}


def test_a_worker_killed_in_a_preflight_leaves_it_to_its_warden(queue: Queue) -> None:
    """And a warden killed there leaves nothing: the preflight is lost, says nothing, and the runs go on."""
    submit(queue, "well", sets=("seconds=0.3,0",), order_seed=1)
    worker = queue.worker()
    until(lambda: tried(queue) == ["1.0"], "the first preflight")
    worker.kill()
    worker.wait()
    os.kill(warden_pid(queue.layout, "1.0"), signal.SIGKILL)
    queue.worker("", "--until-idle")
    queue.done(4)
    found = fates(queue)
    assert found == {"1.0": found["1.0"], "1.1": "SUCCEEDED", "2.0": "SUCCEEDED", "2.1": "SUCCEEDED"}
    assert found["1.0"] in ("LOST", "SUCCEEDED")  # it may have ended just before
    assert tried(queue).count("1.0") == 1
    lines = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if "tried.py" in line and str(queue.folder) in line], "of this test"


def test_a_worker_killed_in_mid_preflight_adopts_it(queue: Queue) -> None:
    submit(queue, "well", sets=("seconds=1,0",), order_seed=1)
    worker = queue.worker()
    until(lambda: tried(queue) == ["1.0"], "the first preflight")
    worker.kill()
    worker.wait()
    queue.worker("", "--until-idle")
    queue.done(4)
    assert set(fates(queue).values()) == {"SUCCEEDED"} and sorted(tried(queue)) == ["1.0", "1.1", "2.0", "2.1"]


def test_an_end_that_is_not_stored_yet_is_stored_once(queue: Queue) -> None:
    submit(queue, "missing,well", order_seed=1, repeats=2)
    worker = queue.worker("finish.before_commit")
    os.kill(queue.stopped("finish.before_commit"), signal.SIGKILL)
    worker.wait()  # until then it holds the lock of the queue
    assert fates(queue)["1.1"] == "QUEUED"  # the end and what follows from it are one transaction
    queue.worker("", "--until-idle")
    queue.done(6)
    assert fates(queue)["1.1"] == fates(queue)["1.2"] == "SKIPPED" and fates(queue)["2.2"] == "SUCCEEDED"


def test_a_preflight_that_hangs_ends_with_the_timeout_of_its_job(queue: Queue) -> None:
    submit(queue, "hang,well", timeout_s=patience(1.0), order_seed=1)
    queue.worker("", "--until-idle")
    queue.done(4)
    assert fates(queue) == {"1.0": "TIMED_OUT", "1.1": "SKIPPED", "2.0": "SUCCEEDED", "2.1": "SUCCEEDED"}


def test_one_cell_has_none_unless_it_is_asked_for_and_a_command_never(queue: Queue) -> None:
    submit(queue, "well")
    submit(queue, "well", preflight=True)
    queue.submit("true", preflight=True)
    submit(queue, "well,missing", preflight=False)
    assert [row["run"] for row in queue.rows()] == ["1.1", "2.0", "2.1", "3.1", "4.1", "5.1"]


def test_preflights_come_before_what_already_waits(queue: Queue) -> None:
    queue.submit("echo 1.1 >> $J")
    submit(queue, "well,missing", order_seed=1)
    queue.worker("", "--until-idle")
    queue.done(5)
    assert tried(queue) == ["2.0", "3.0", "1.1", "2.1"]
