"""--stall from the command line to the outcome: by phase, for commands, and not for who stands still."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from queue_runner.submit import plan
from tests.queue_support import Queue, until
from tests.submit_support import requested

pytestmark = pytest.mark.process

EVENTS = """
import json, os, sys, time
events = os.open(os.environ["MPSQ_EVENTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def say(**event): os.write(events, json.dumps(event).encode() + b"\\n")
def phase(name, edge): say(type="phase", t=time.perf_counter(), name=name, edge=edge)
say(type="hello", v=1)
phase("measure", "begin")
for i in range(3): say(type="iter", t=time.perf_counter(), i=i, dur_s=0.01, phase="measure")
phase("eval", "begin")
time.sleep(1.0)  # longer than the limit of everything else
say(type="eval", t=time.perf_counter(), i=3, split="val", metrics={"loss": 1.0})
if sys.argv[1] == "eval": time.sleep(60)
phase("eval", "end")
time.sleep(60 if sys.argv[1] == "measure" else 0)
"""


def run_python(queue: Queue, program: str, *arguments: str, **options: object) -> None:
    path = Path(queue.folder) / "train.py"
    path.write_text(program)
    argv = (sys.executable, "-u", "-I", "-S", str(path), *arguments)
    plan.store(queue.layout, plan.plan(requested(argv=argv, cwd=str(queue.folder), **options)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("where", "limit"), [("eval", "2.5"), ("measure", "0.6"), ("nowhere", "")])
def test_each_phase_has_its_limit(queue: Queue, where: str, limit: str) -> None:
    """The post's last evaluation took 1,256 s; its iterations a tenth of one."""
    run_python(queue, EVENTS, where, stall=("0.6s", "eval=2.5s"))
    queue.worker()
    (row,) = queue.done()
    if where == "nowhere":
        assert row["outcome"] == "SUCCEEDED"
    else:
        assert row["outcome"] == "STALLED"
        assert row["reason"] == f"nothing was reported for {limit} s in phase {where}"
        assert row["n_iters"] == 3


def test_a_command_that_talks_is_not_stalled_and_one_that_stops_talking_is(queue: Queue) -> None:
    queue.submit("for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done; sleep 60", stall=("0.8s",))
    queue.worker()
    (row,) = queue.done()
    assert (row["outcome"], row["reason"]) == ("STALLED", "nothing was reported for 0.8 s")
    assert row["real_s"] > 1.8


def test_a_stalled_run_is_tried_again_where_that_was_asked_for(queue: Queue) -> None:
    queue.submit("echo x >> $J; [ $(wc -l < $J) -gt 1 ] || sleep 60", stall=("0.6s",), retries=1, retry_on="stalled")
    queue.worker()
    assert [row["outcome"] for row in queue.done(2)] == ["STALLED", "SUCCEEDED"]


def test_who_is_suspended_is_not_stalled(queue: Queue) -> None:
    import time

    from queue_runner.control import pausing
    from queue_runner.model import parse_selector

    queue.submit("while [ ! -e go ]; do echo x | tee -a $J; sleep 0.1; done", stall=("0.8s",))
    queue.worker()
    until(queue.written)
    pausing.pause(queue.layout, [parse_selector("1")], now=True)
    since = time.monotonic()
    until(lambda: time.monotonic() - since > 1.6, "a pause of twice the limit")
    pausing.resume(queue.layout, [parse_selector("1")])
    (queue.folder / "go").touch()
    (row,) = queue.done()
    assert row["outcome"] == "SUCCEEDED" and row["paused_s"] > 1.5


def test_submit_says_which_limit_holds_for_a_command() -> None:
    def notes(*stall: str) -> str:
        return " ".join(plan.plan(requested(argv=("/usr/bin/true",), parser="nanogpt", stall=stall)).warnings)

    assert "the longest limit, 30 min 00 s, applies" in notes("60s", "eval=30m")
    assert "no limit applies" in notes("eval=30m")
    assert notes("60s") == ""
