"""--stall from the command line to the outcome: by phase, for commands, and not for who stands still."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from queue_runner.submit import plan
from tests.patience import patience
from tests.queue_support import Queue, until
from tests.submit_support import requested

pytestmark = pytest.mark.process

EVENTS = """
import json, os, sys, time
events = os.open(os.environ["MPSQ_EVENTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def line(**event): return json.dumps({"t": time.perf_counter(), **event}).encode() + b"\\n"
def phase(name, edge): return line(type="phase", name=name, edge=edge)
begins = line(type="hello", v=1) + phase("measure", "begin")
for i in range(3): begins += line(type="iter", i=i, dur_s=0.01, phase="measure")
os.write(events, begins + phase("eval", "begin"))  # at once: a busy machine stalls nowhere in between
time.sleep(1.0)  # longer than the limit of everything else
os.write(events, line(type="eval", i=3, split="val", metrics={"loss": 1.0}))
if sys.argv[1] == "eval": time.sleep(600)
if sys.argv[1] == "measure":
    os.write(events, phase("eval", "end"))
    time.sleep(600)
"""


def run_python(queue: Queue, program: str, *arguments: str, **options: object) -> None:
    path = Path(queue.folder) / "train.py"
    path.write_text(program)
    argv = (sys.executable, "-u", "-I", "-S", str(path), *arguments)
    plan.store(queue.layout, plan.plan(requested(argv=argv, cwd=str(queue.folder), **options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["eval", "measure", "nowhere"])
def test_each_phase_has_its_limit(queue: Queue, where: str) -> None:
    """The post's last evaluation took 1,256 s; its iterations a tenth of one."""
    eval_s = f"{patience(2.5) if where == 'eval' else 600:.1f}"
    limit = f"{float(eval_s):g}" if where == "eval" else "0.6"
    run_python(queue, EVENTS, where, stall=("0.6s", f"eval={eval_s}s"))
    queue.worker()
    (row,) = queue.done()
    if where == "nowhere":
        assert row["outcome"] == "SUCCEEDED"
    else:
        assert row["outcome"] == "STALLED"
        assert row["reason"].endswith(f" {limit} s in phase {where}")
        assert row["n_iters"] == 3


def test_a_command_that_talks_is_not_stalled_and_one_that_stops_talking_is(queue: Queue) -> None:
    limit_s = f"{patience(0.8):.1f}"
    queue.submit("for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done; sleep 600", stall=(f"{limit_s}s",))
    queue.worker()
    (row,) = queue.done()
    assert row["outcome"] == "STALLED" and row["reason"].endswith(f" {float(limit_s):g} s")
    assert row["real_s"] > 1.0 + float(limit_s)


def test_a_stalled_run_is_tried_again_where_that_was_asked_for(queue: Queue) -> None:
    script = "echo x >> $J; [ $(wc -l < $J) -gt 1 ] || sleep 600"
    queue.submit(script, stall=("0.6s",), retries=9, retry_on="stalled")  # on a busy machine another try may stall
    queue.worker()
    until(lambda: queue.rows()[-1]["outcome"] == "SUCCEEDED", "a try that succeeds")
    assert {row["outcome"] for row in queue.rows()[:-1]} == {"STALLED"}


def test_who_is_suspended_is_not_stalled(queue: Queue) -> None:
    import time

    from queue_runner.control import pausing
    from queue_runner.model import parse_selector

    limit_s = patience(0.8)
    queue.submit("while [ ! -e go ]; do echo x | tee -a $J; sleep 0.1; done", stall=(f"{limit_s:.1f}s",))
    queue.worker()
    until(queue.written)
    pausing.pause(queue.layout, [parse_selector("1")], now=True)
    since = time.monotonic()
    until(lambda: time.monotonic() - since > 2 * limit_s, "a pause of twice the limit")
    pausing.resume(queue.layout, [parse_selector("1")])
    (queue.folder / "go").touch()
    (row,) = queue.done()
    assert row["outcome"] == "SUCCEEDED" and row["paused_s"] > 1.8 * limit_s


def test_submit_says_which_limit_holds_for_a_command() -> None:
    def notes(*stall: str) -> str:
        return " ".join(plan.plan(requested(argv=("/usr/bin/true",), parser="nanogpt", stall=stall)).warnings)

    assert "longest limit, 30 min" in notes("60s", "eval=30m")
    assert "no limit applies" in notes("eval=30m")
    assert notes("60s") == ""
