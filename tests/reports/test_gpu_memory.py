"""What a run held of a GPU's memory: from its events to the tables of reports. The CUDA run is planted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli_support import Cli
from tests.queue_support import Queue

pytestmark = pytest.mark.process

PROGRAM = """
import json, os, sys
GIB = 1 << 30
reserved = {"cuda": 3 * GIB, "cpu": GIB // 4}[sys.argv[1]]  # on the CPU it is the memory of the process
with open(os.environ["MPSQ_EVENTS"], "a") as events:
    def say(**fields):
        print(json.dumps(fields), file=events)
    say(v=1, type="hello", pid=os.getpid(), t=0.0, workload="planted", framework="torch", device=sys.argv[1])
    say(type="phase", name="measure", edge="begin", t=0.0)
    for i in range(20):
        say(type="iter", i=i, t=0.001 * i, dur_s=0.001, synced=True, allocated_bytes=GIB, reserved_bytes=reserved)
    say(type="phase", name="measure", edge="end", t=0.02)
"""


def test_runs_on_cuda_show_the_memory_of_the_gpu_and_others_do_not(queue: Queue, mpsq: Cli, tmp_path: Path) -> None:
    program = tmp_path / "planted.py"
    program.write_text(PROGRAM)
    mpsq.ok("submit", "--cwd", tmp_path, "--device", "cpu,cuda", "--", sys.executable, program, "{device}")
    queue.worker("", "--until-idle")
    queue.done(2)
    (cost,) = [part for part in mpsq.ok("report", "--all", "--explain").out.split("\n\n") if "GPU memory" in part]
    rows = {line.split()[0]: line for line in cost.splitlines()}
    assert rows["cuda"].endswith("3.00 GiB") and "iB" in rows["cpu"] and rows["cpu"].endswith(" -")
    (run,) = [line for line in mpsq.ok("report", "time").out.splitlines() if line.startswith("2.1")]
    assert "3.00 GiB" in run
    assert "GPU memory" not in mpsq.ok("report", "time", "1").out
    assert "GPU memory" in mpsq.ok("show", "2").out and "GPU memory" not in mpsq.ok("show", "1").out
