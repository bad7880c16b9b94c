"""Real training, suspended, stalled, killed and resumed under the queue."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from queue_runner.control import pausing
from queue_runner.model import parse_selector
from queue_runner.paths import Layout
from tests import forked_programs
from tests.events_support import whole_lines
from tests.jobs.conftest import SMALL
from tests.jobs.test_through_the_queue import SUBMIT, mpsq, rows, settings
from tests.patience import until

pytestmark = pytest.mark.slow


def small(**changes: object) -> list[str]:
    return settings(**{**SMALL, **changes})


@pytest.fixture
def worker(layout: Layout, tmp_path: Path) -> Iterator[forked_programs.Worker]:
    with (tmp_path / "worker.log").open("wb") as log:
        process = forked_programs.worker((), os.environ, log)
    yield process
    forked_programs.run("cancel", "@last", "--grace", "0")
    process.terminate()
    process.wait()


def trainer(layout: Layout, run: str) -> int:
    """Return the first noted process that is alive: before it there was that of the preparation."""
    pids = layout.run_dir(run) / "warden" / "pids.jsonl"

    def alive() -> list[int]:
        noted = [int(line["pid"]) for line in whole_lines(pids)]
        return [pid for pid in noted if psutil.pid_exists(pid)]

    return int(until(alive, "the trainer to be noted")[0])


def losses(layout: Layout, run: str) -> dict[int, float]:
    events = whole_lines(layout.run_dir(run) / "events.jsonl")
    return {event["i"]: event["loss"] for event in events if event["type"] == "iter"}


def test_a_killed_training_goes_on_and_loses_nothing(layout: Layout, worker: object) -> None:
    """On the CPU in fp32 the losses of its two parts are those of the training that nobody interrupted."""
    long = small(max_iters=400, lr_decay_iters=400, checkpoint_interval=50, dropout=0.2)
    mpsq(*SUBMIT, *long, "--retries", "1", "--resume")
    saved = layout.run_dir("1.1") / "out" / "checkpoint.pt"
    until(lambda: saved.exists(), "a checkpoint")
    pid = trainer(layout, "1.1")

    def stopped_between_checkpoints() -> bool:
        os.kill(pid, signal.SIGSTOP)
        if 5 < max(losses(layout, "1.1")) % 50 < 45:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    until(stopped_between_checkpoints, "some iterations that the checkpoint does not hold")
    os.kill(pid, signal.SIGKILL)
    mpsq(*SUBMIT, *long)
    mpsq("wait", "1", "2")
    killed, resumed, whole = rows(layout)
    assert [row["outcome"] for row in (killed, resumed, whole)] == ["KILLED", "SUCCEEDED", "SUCCEEDED"]
    parts = losses(layout, "1.1"), losses(layout, "1.2")
    first = min(parts[1])
    assert first % 50 == 0 and first > 0 and max(parts[0]) > first
    assert parts[0] | parts[1] == losses(layout, "2.1")
    assert {i: parts[0][i] for i in parts[0] if i in parts[1]} == {i: parts[1][i] for i in parts[1] if i in parts[0]}
    assert resumed["resumed_from"] == killed["run_id"] and resumed["val_loss_last"] == whole["val_loss_last"]
    assert resumed["n_measure"] == len(parts[1]) - 2, "it warms up anew"
    assert resumed["projected_real_s"] > resumed["real_s"] and whole["projected_real_s"] is None
    table = json.loads(mpsq("report", "--json"))["rows"]
    assert sorted(tuple(row["runs"]) for row in table) == [("1.1", "2.1"), ("1.2",)], "never pooled"
    alone = json.loads(mpsq("report", "iterations", "1", "--json"))["rows"]
    assert [row["i"] for row in alone if row["redone_by"] is None] == list(range(400))
    shown = mpsq("show", "1.2")
    assert f"1.2: iterations {first} to 399" in shown and "checkpoint of 1.1" in shown


def test_a_suspended_training_computes_what_it_would_have(layout: Layout, worker: object) -> None:
    mpsq(*SUBMIT, *small(max_iters=400, lr_decay_iters=400), "--repeats", "2", "--seed", "1337")
    until(lambda: len(losses(layout, "1.1")) > 50, "some iterations")
    (result,) = pausing.pause(layout, [parse_selector("1.1")], now=True)
    assert result.did
    before = len(losses(layout, "1.1"))
    end = time.monotonic() + 0.5
    until(lambda: time.monotonic() > end, "time to pass")
    assert len(losses(layout, "1.1")) == before < 400
    pausing.resume(layout, [parse_selector("1.1")])
    mpsq("wait", "1")
    paused, quiet = rows(layout)
    assert losses(layout, "1.1") == losses(layout, "1.2")
    assert paused["paused_s"] >= 0.5 and "suspended" in paused["taints"] and not paused["valid"]
    assert "suspended" not in (quiet["taints"] or "") and not quiet["paused_s"]


def test_an_evaluation_that_takes_too_long_is_named(layout: Layout, worker: object) -> None:
    slow = small(max_iters=50, eval_interval=10, eval_iters=1_000_000)
    mpsq(*SUBMIT, *slow, "--stall", "60s", "--stall", "eval=1s")
    mpsq("wait", "1", code=3)
    (row,) = rows(layout)
    assert row["outcome"] == "STALLED" and "1 s in phase eval" in row["reason"]
    assert row["n_iters"] == 10
