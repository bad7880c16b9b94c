"""Runs that the machine disturbed are replaced by complete rounds (--until-valid), under real workers."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import psutil
import pytest

from queue_runner.submit import plan, run_order
from tests.cli_support import Cli
from tests.queue_support import Queue, until, warden_pid
from tests.submit_support import requested

pytestmark = pytest.mark.process

STAND_IN = """
import json, sys
from queue_runner.analysis.validity import MACHINE
from queue_runner.store import results
store = results.save_taints
def save(connection, run_id, taints):
    run = connection.value("SELECT job_id || '.' || number FROM runs WHERE id = ?", (run_id,))
    planned = json.load(open({path!r}))
    kind = planned.get(run, planned.get("*"))
    kept = [taint for taint in taints if taint[0] not in MACHINE]
    store(connection, run_id, kept + ([(kind, "invalid", "planted")] if kind else []))
results.save_taints = save
from queue_runner.worker.main_loop import main
sys.exit(main(sys.argv[1:]))
"""
"""A worker on a stand-in for a machine whose load disturbs the planned runs, and no others."""

Planned = Mapping[str, str]


def worker(queue: Queue, disturbed: Planned, stop_at: str = "", *arguments: str) -> subprocess.Popen[bytes]:
    path = queue.folder / "disturbed.json"
    path.write_text(json.dumps(dict(disturbed)))
    env = {**os.environ, "MPSQ_STOP_DIR": str(queue.stops)} | ({"MPSQ_STOP_AT": stop_at} if stop_at else {})
    with (queue.folder / "worker.log").open("ab") as log:
        program = [sys.executable, "-c", STAND_IN.format(path=str(path)), *(arguments or ("--until-idle",))]
        process = subprocess.Popen(program, env=env, stdout=log, stderr=log)
    queue._workers.append(process)
    return process


def submit(queue: Queue, script: str = "", *, arms: str = "a,b,c", repeats: int = 4, **options: Any) -> list[int]:
    """Queue `arms` of a shell script, which journals its run; `{arm}` in it is the arm. Returns the jobs."""
    argv = ("/bin/sh", "-c", f"echo $MPSQ_RUN >> {queue.journal}; {script or ': {arm}'}")
    options = {"until_valid": True, "order_seed": 7, **options}
    request = requested(argv=argv, sets=(f"arm={arms}",), repeats=repeats, cwd=str(queue.folder), **options)
    return list(plan.store(queue.layout, plan.plan(request)).jobs)


def run(queue: Queue, disturbed: Planned) -> list[str]:
    """Run a worker until the queue is empty; returns the runs in their order."""
    assert worker(queue, disturbed).wait() == 0, queue.log()
    return queue.written()


def said_of(mpsq: Cli, *words: str) -> str:
    """What a command prints, without its line breaks."""
    return " ".join(mpsq.ok(*words).out.split())


def rounds(queue: Queue, first: int, last: int, jobs: int = 3, seed: int = 7) -> list[str]:
    """The runs of these rounds as a grid of so many repeats orders them."""
    return [f"{cell + 1}.{repeat}" for cell, repeat in run_order.interleave(jobs, last, seed) if repeat >= first]


def test_a_disturbed_round_is_replaced_by_a_complete_one(queue: Queue, mpsq: Cli) -> None:
    """Before, the pair was lost: a comparison of 4 had 3."""
    submit(queue)
    ran = run(queue, {"2.3": "contended"})
    assert ran == rounds(queue, 1, 5)  # and the fifth round is in the order that --repeats 5 had given it
    by_run = {row["run"]: row for row in queue.rows()}
    assert [row["run"] for row in by_run.values() if row["replaced"]] == ["2.3"]
    assert {run: row["replaces"] for run, row in by_run.items() if row["replaces"] is not None} == {
        **{"1.5": 0, "2.5": 3, "3.5": 0}
    }
    assert {row["repeat"] for row in by_run.values() if row["number"] == 5} == {5}
    said = said_of(mpsq, "report", "devices", "@last", "--explain")
    assert "1 of 12 runs repeated, because the machine disturbed them: " in said and "2.3 (contended)" in said
    assert "excluded" not in said
    assert "round 5 replaces round 3, which the machine disturbed: 2.3 contended" in said_of(mpsq, "show", "2.5")
    assert mpsq("wait", "@last").code == 0


def test_each_disturbed_round_has_its_own(queue: Queue) -> None:
    submit(queue)
    assert run(queue, {"1.1": "slept", "2.1": "throttled", "3.2": "gpu_contended"}) == rounds(queue, 1, 6)
    assert {row["run"]: row["replaces"] for row in queue.rows() if row["replaces"]} == {"1.5": 1, "2.5": 1, "3.6": 2}


def test_a_machine_that_stays_busy_ends_after_two_replacements(queue: Queue, mpsq: Cli) -> None:
    submit(queue, arms="a,b", repeats=2)
    assert run(queue, {"*": "swapping"}) == rounds(queue, 1, 6, jobs=2)
    said = said_of(mpsq, "report", "devices", "@last", "--explain")
    assert "4 of 4 runs repeated, and 4 of the repetitions" in said and "1.1 (swapping)" in said
    assert "excluded: 1.5, 1.6, 2.5, 2.6 swapping (planted)" in said


def test_arms_that_are_disturbed_by_turns_end_too(queue: Queue) -> None:
    submit(queue, arms="a,b", repeats=1)
    alternate = {"1.1": "contended", "2.2": "contended", "1.3": "contended", "2.4": "contended"}
    assert run(queue, alternate) == rounds(queue, 1, 3, jobs=2)


@pytest.mark.parametrize("kind", ["drift", "levels", "stragglers", "wrong_loss", "diverged", "battery", "stolen"])
def test_never_for_what_the_numbers_say(queue: Queue, kind: str) -> None:
    submit(queue, arms="a,b", repeats=1)
    assert len(run(queue, {"*": kind})) == 2


def test_not_unless_it_is_asked_for(queue: Queue, mpsq: Cli) -> None:
    submit(queue, until_valid=None, repeats=1)
    submit(queue, until_valid=False, repeats=1)
    assert len(run(queue, {"*": "contended"})) == 6


def test_a_cancelled_or_deleted_group_is_not_replaced(queue: Queue, mpsq: Cli) -> None:
    submit(queue, repeats=1)
    mpsq.ok("pause", "3.1")
    assert len(run(queue, {"*": "contended"})) == 2  # a held run keeps the group open
    mpsq.ok("cancel", "3")
    run(queue, {"*": "contended"})
    assert len(queue.written()) == 2


def test_a_held_group_is_replaced_once_it_is_released_and_has_ended(queue: Queue, mpsq: Cli) -> None:
    submit(queue, repeats=1)
    mpsq.ok("pause", "3")
    assert len(run(queue, {"1.1": "contended"})) == 2
    mpsq.ok("resume", "3")
    assert run(queue, {"1.1": "contended"}) == [*queue.written()[:3], *rounds(queue, 2, 2)]


def test_an_arm_that_never_worked_is_not_in_the_new_round(queue: Queue) -> None:
    submit(queue, "[ {arm} != b ]", repeats=2)
    ran = run(queue, {"1.2": "contended"})
    assert sorted(ran[6:]) == ["1.3", "3.3"]


def test_retries_and_replacements_do_not_multiply(queue: Queue) -> None:
    """With one retry, a slot that fails first each time has one failure in all, not one in each replacement."""
    script = f"n=$(grep -c ^${{MPSQ_RUN%.*}}[.] {queue.journal}); [ $n != 1 ]"
    submit(queue, script + " # {arm}", arms="a,b", repeats=1, retries=1)
    ran = run(queue, {"*": "contended"})
    assert sorted(ran) == ["1.1", "1.2", "1.3", "1.4", "2.1", "2.2", "2.3", "2.4"]
    attempts = {row["run"]: (row["repeat"], row["attempt"]) for row in queue.rows() if row["job_id"] == 1}
    assert attempts == {"1.1": (1, 1), "1.2": (1, 2), "1.3": (2, 2), "1.4": (3, 2)}


def test_who_waits_for_the_group_waits_for_its_replacements(queue: Queue, mpsq: Cli) -> None:
    submit(queue, repeats=1)
    queue.submit("echo behind >> $J", after=("g1",))
    queue.layout.config.write_text(
        queue.layout.config.read_text() + 'hook_idle = "echo idle >> ' + str(queue.journal) + '"\n'
    )
    ran = run(queue, {"1.1": "contended"})
    assert ran[3:] == [*rounds(queue, 2, 2), "behind", "idle"]


@pytest.mark.parametrize("point", ["finish.before_retry", "finish.before_commit", "worker.done"])
def test_the_round_is_added_exactly_once_whenever_the_worker_dies(queue: Queue, point: str) -> None:
    submit(queue, arms="a,b", repeats=1)
    for _ in range(2):
        process = worker(queue, {"1.1": "contended", "2.1": "contended"}, point)
        os.kill(queue.stopped(point), signal.SIGKILL)
        process.wait()
    assert run(queue, {"1.1": "contended", "2.1": "contended"}) == rounds(queue, 1, 2, jobs=2)


def test_a_run_lost_at_a_reboot_is_replaced_and_its_job_is_ok(queue: Queue, mpsq: Cli) -> None:
    submit(queue, "[ $MPSQ_RUN != 1.1 ] || sleep 600 # {arm}", arms="a,b", repeats=1)
    queue.submit("echo behind >> $J", after=("g1",))
    process = worker(queue, {})
    until(lambda: "1.1" in queue.written(), "the run")
    process.kill()
    process.wait()
    warden = psutil.Process(warden_pid(queue.layout, "1.1"))
    for one in (*warden.children(recursive=True), warden):
        one.kill()
    with sqlite3.connect(queue.layout.db) as connection:  # a stand-in for a reboot
        connection.execute("UPDATE runs SET boot_id = 'before' WHERE state = 'RUNNING'")
    ran = run(queue, {})
    found = {row["run"]: row["outcome"] for row in queue.rows()}
    assert found == {"1.1": "LOST", "2.1": "SUCCEEDED", "1.2": "SUCCEEDED", "2.2": "SUCCEEDED", "3.1": "SUCCEEDED"}
    assert ran[-1] == "behind"
    assert mpsq("wait", "g1").code == 0
