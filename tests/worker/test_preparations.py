"""A preparation (the reference of a question, computed before its run) under workers that are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from queue_runner.store import read
from queue_runner.submit import plan
from queue_runner.worker.main_loop import BUSY_TICK_S
from tests import named_rows
from tests.process_support import state_of
from tests.queue_support import Queue, until, warden_pid
from tests.submit_support import requested

pytestmark = pytest.mark.process

PREPARED = '''
"""A workload whose preparation lasts until it is told to end, without a framework."""
WORKLOAD = {
    "name": "prepared",
    "framework": "torch",
    "prepares": True,
    "about": "A workload for tests.",
    "source": "nowhere",
    "params": {"max_iters": {"default": 1, "unit": "iterations", "help": "how many"}},
    "configs": {},
}
import json, os, pathlib, time
folder = pathlib.Path(os.environ["FOLDER"])
kept = pathlib.Path(os.environ["MPSQ_PREPARED"])
step = "prepares" if os.environ.get("MPSQ_PREPARE") else "runs"
with (folder / "journal").open("a") as journal:
    journal.write(f"{step} {os.environ['MPSQ_RUN']} {os.getpid()}\\n")
if step == "prepares":
    while not (folder / "go on").exists():
        time.sleep(0.01)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("3.14")
elif "MPSQ_CHECKED" not in os.environ:
    with open(os.environ["MPSQ_EVENTS"], "a") as events:
        def write(**event):
            events.write(json.dumps({"v": 1, "t": 0.0, **event}) + "\\n")
        write(type="metric", name="reference_loss_cpu", value=float(kept.read_text()))
        if (folder / "wrong").exists():
            write(type="note", kind="wrong_loss", text="another loss than the CPU's")
'''


def submit(queue: Queue, repeats: int = 1, seed: int | None = None) -> None:
    queue.layout.workloads.mkdir(exist_ok=True)
    (queue.layout.workloads / "prepared.py").write_text(PREPARED)
    options: dict[str, Any] = {"cwd": str(queue.folder), "home": str(queue.layout.home), "device": "cpu"}
    options |= {"env": (f"FOLDER={queue.folder}",), "repeats": repeats, "seed": seed}
    plan.store(queue.layout, plan.plan(requested(workload="prepared", **options)))


def steps(queue: Queue) -> list[str]:
    return [line.rsplit(" ", 1)[0] for line in queue.written()]


def pids(queue: Queue) -> list[int]:
    return [int(line.rsplit(" ", 1)[1]) for line in queue.written()]


def samples(queue: Queue) -> list[dict[str, Any]]:
    with read.reading(queue.layout.db) as connection:
        return [json.loads(row["data_json"]) for row in named_rows.detail(connection, "conditions", 1)]


def test_a_new_worker_adopts_a_preparation(queue: Queue) -> None:
    """Which goes on under its warden, once, and is no part of the run: not of its times, nor of its conditions."""
    submit(queue)
    worker = queue.worker()
    until(lambda: steps(queue) == ["prepares 1.1"], "the preparation")
    worker.kill()
    worker.wait()
    second = queue.worker()
    until(lambda: f"worker {second.pid} on" in queue.log() and queue.rows()[0]["started_at"], "its adoption")
    time.sleep(2 * BUSY_TICK_S)
    at = queue.rows()[0]["started_at"]
    assert not samples(queue)
    Path(queue.folder / "go on").touch()
    (row,) = queue.done()
    assert row["outcome"] == "SUCCEEDED" and steps(queue) == ["prepares 1.1", "runs 1.1"]
    exit_ = json.loads((queue.layout.run_dir("1.1") / "warden" / "exit.json").read_text())
    assert exit_["prepared"]["exit_code"] == 0 and row["started_at"] > at
    assert exit_["prepared"]["real_s"] > BUSY_TICK_S and row["real_s"] == exit_["real_s"]
    with read.reading(queue.layout.db) as connection:
        (metric,) = named_rows.detail(connection, "metrics", 1)
    assert metric["value"] == 3.14


def test_a_preparation_whose_worker_and_warden_are_killed_leaves_nothing(queue: Queue) -> None:
    submit(queue)
    worker = queue.worker()
    until(lambda: steps(queue) == ["prepares 1.1"], "the preparation")
    worker.kill()
    worker.wait()
    os.kill(warden_pid(queue.layout, "1.1"), signal.SIGKILL)
    queue.worker()
    (row,) = queue.done()
    assert row["outcome"] == "LOST"
    assert all(sample.keys() <= {"energy_at", "energy_j"} for sample in samples(queue)), "a GPU counts its joules"
    assert steps(queue) == ["prepares 1.1"] and {state_of(pid) for pid in pids(queue)} <= {"gone", "Z"}


@pytest.mark.parametrize(
    ("wrong", "seed", "prepared"),
    [(False, None, ["1.1"]), (True, None, ["1.1", "1.2", "1.3"]), (False, 7, ["1.1", "1.2", "1.3"])],
    ids=["right", "another loss than the CPU's", "one seed, so that the values are kept"],
)
def test_later_rounds_of_a_job_with_the_right_loss_need_no_preparation(
    queue: Queue, wrong: bool, seed: int | None, prepared: list[str]
) -> None:
    (queue.folder / "go on").touch()
    if wrong:
        (queue.folder / "wrong").touch()
    submit(queue, repeats=3, seed=seed)
    queue.worker("", "--until-idle")
    assert [row["outcome"] for row in queue.done(3)] == ["SUCCEEDED"] * 3, "a later one looked for the CPU's loss"
    assert [step.split()[1] for step in steps(queue) if step.startswith("prepares")] == prepared
    assert [step for step in steps(queue) if step.startswith("runs")] == ["runs 1.1", "runs 1.2", "runs 1.3"]


def test_a_command_is_warmed_up_before_its_first_round_and_prepared_before_each_start(queue: Queue) -> None:
    """The journal of `sh` is that of hyperfine --warmup 2 --prepare; none of it is in the times of the runs."""
    line = f"echo {{}} >> '{queue.folder}/journal'"
    options: dict[str, Any] = {
        "cwd": str(queue.folder),
        "warmup": 2,
        "prepare": f"{line.format('prepares {n}')}; test -d {{cwd}}; sleep 0.2; touch {queue.folder}/prepared",
    }
    run = ["sh", "-c", f"{line.format('$MPSQ_RUN {n}')}; test $MPSQ_RUN = 1.2 || exit 3"]
    plan.store(queue.layout, plan.plan(requested(command=run, set=("n=5",), repeats=2, **options)))
    queue.worker("", "--until-idle")
    rows = queue.done(2)
    assert queue.written() == [*["prepares 5", "1.1 5"] * 3, "prepares 5", "1.2 5"]
    assert [row["outcome"] for row in rows] == ["FAILED", "SUCCEEDED"], "how a warm-up ends does not matter"
    prepared_at = (queue.folder / "prepared").stat().st_mtime
    assert rows[1]["started_at"] > prepared_at and rows[1]["real_s"] < rows[1]["ended_at"] - prepared_at


def test_nothing_starts_when_its_prepare_fails(queue: Queue) -> None:
    options: dict[str, Any] = {"cwd": str(queue.folder), "prepare": "echo no disk; exit 3"}
    plan.store(queue.layout, plan.plan(requested(command=["touch", "started"], **options)))
    queue.worker("", "--until-idle")
    (row,) = queue.done()
    assert row["outcome"] == "SPAWN_FAILED" and all(x in row["reason"] for x in ("--prepare", "exit code 3"))
    assert not (queue.folder / "started").exists()
    assert (queue.layout.run_dir("1.1") / "warden" / "prepare.log").read_text() == "no disk\n"


def test_nothing_starts_when_the_shell_of_prepare_cannot(queue: Queue) -> None:
    """The program was started without its preparation."""
    queue.submit(": > started", prepare="true", env=["PATH=/nowhere"])
    queue.worker("", "--until-idle")
    (row,) = queue.done()
    assert row["outcome"] == "SPAWN_FAILED" and "No such file" in row["reason"]
    assert not (queue.folder / "started").exists()
