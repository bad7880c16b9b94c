"""Random kills over two lanes of processors, a stand-in for two GPUs. Each run takes a lock for each processor that it
is bound to: two runs that share one would meet there. MPSQ_CAMPAIGN=long, as `make campaign` sets, kills a hundred
times for each seed; MPSQ_SEEDS, as `make faults` sets, says how many seeds are tried."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import sys

import psutil
import pytest

from queue_runner.host import locks
from tests.events_support import whole_lines
from tests.process_support import needs_linux, variables_of
from tests.queue_support import Queue, until

pytestmark = [pytest.mark.process, needs_linux]

LONG = os.environ.get("MPSQ_CAMPAIGN") == "long"
SEEDS = int(os.environ.get("MPSQ_SEEDS", "3" if LONG else "1"))
SUBMISSIONS, KILLS = (40, 100) if LONG else (8, 20) if SEEDS > 1 else (3, 3)
LIMIT_S = 1800.0 if LONG else 500.0 if SEEDS > 1 else 120.0

JOB = """
import fcntl, os, sys, time
def tell(*words):
    fd = os.open(sys.argv[1] + "/journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, (" ".join(words) + chr(10)).encode())
tell("start", os.environ["MPSQ_RUN"])
for core in sorted({0, 1} & os.sched_getaffinity(0)):
    held = os.open(sys.argv[1] + "/core%d" % core, os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(held, True)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        tell("violation", os.environ["MPSQ_RUN"], str(core))
time.sleep(0.2)
tell("end", os.environ["MPSQ_RUN"])
"""


def kill(queue: Queue, chance: random.Random) -> bool:
    """Kill the worker, a warden or a trainer, whichever comes; return whether one was there."""
    found: list[int] = []
    if chance.random() < 0.5:
        path = locks.worker_lock_path(queue.layout.home)
        found = [(locks.read_holder(path) or {}).get("pid", 0)] if locks.is_held(path) else []
    else:
        for row in queue.rows():
            with contextlib.suppress(OSError, ValueError):
                folder = queue.layout.run_dir(row["run"]) / "warden"
                if row["state"] == "RUNNING":
                    found += [json.loads((folder / "started").read_text())["warden_pid"]]
                    found += [line["pid"] for line in whole_lines(folder / "pids.jsonl")]
        found = [pid for pid in found if _is_of(queue, pid)]
    if not found:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(chance.choice(found), signal.SIGKILL)
    return True


def _is_of(queue: Queue, pid: int) -> bool:
    """Whether the process is a warden or a trainer of this queue, and not one that took its pid."""
    with contextlib.suppress(psutil.Error, OSError):
        words = " ".join(psutil.Process(pid).cmdline())
        return str(queue.layout.home) in words or variables_of(pid).get("MPSQ_HOME") == str(queue.layout.home)
    return False


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_no_two_runs_share_a_lane_whoever_is_killed(queue: Queue, seed: int) -> None:
    with queue.layout.config.open("a") as file:
        file.write('lanes = "cpu:0,cpu:1"\nhold_after_failures = 0\n')
    chance = random.Random(seed)
    script = "exec " + shlex.join([sys.executable, "-I", "-S", "-c", JOB, str(queue.folder)])
    for number in range(SUBMISSIONS):
        queue.submit(script, repeats=2, device="cpu", gpus=2 if number % 4 == 1 else None)
        if number % 4 == 2:
            queue.submit(script)  # alone: it names no device
    total = len(queue.rows())
    worker, kills = queue.worker(), 0

    def through() -> bool:
        nonlocal worker, kills
        if worker.poll() is not None:
            worker = queue.worker()
        if kills < KILLS and chance.random() < 0.03 and kill(queue, chance):
            kills += 1
        return all(row["state"] == "DONE" for row in queue.rows())

    until(through, "the end of all runs", LIMIT_S)
    told = [line.split() for line in queue.written()]
    starts = [words[1] for words in told if words[0] == "start"]
    assert not [words for words in told if words[0] == "violation"]
    assert len(starts) == len(set(starts)), "a run started twice"
    rows = queue.rows()
    assert len(rows) == total and {row["outcome"] for row in rows} <= {"SUCCEEDED", "LOST", "KILLED"}
    ended = {words[1] for words in told if words[0] == "end"}
    assert {row["run"] for row in rows if row["outcome"] == "SUCCEEDED"} <= ended
    assert {row["lane"] for row in rows} <= {"machine", "cpu:0", "cpu:1", "cpu:0,cpu:1"}
    assert {row["lane"] == "machine" for row in rows if row["asked_device"] == "cpu"} == {False}
