"""Second tries that go on from a checkpoint: a command that counts, killed in all the ways that are retried."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from queue_runner.control import new_attempts
from queue_runner.errors import UsageError
from queue_runner.model import parse_selector
from tests import forked_programs
from tests.queue_support import Queue, until, warden_pid

pytestmark = pytest.mark.process

COUNT = """
i=$(cat "${MPSQ_RESUME:-/dev/null}"); i=${i:-0}
while [ $i -lt 6 ]; do
    i=$((i + 1)); echo $i >> $J; mkdir -p $MPSQ_OUT
    if [ -n "$MPSQ_RESUME" ]; then echo spoilt > $MPSQ_RESUME; fi
    echo $i > $MPSQ_OUT/.part; mv $MPSQ_OUT/.part $MPSQ_OUT/checkpoint
    if [ $i = 3 ] && [ -z "$MPSQ_RESUME" ]; then END; fi
done
"""
"""Counts to six and saves each step; the first try ends after three. It even spoils the file that it was given."""
WHOLE = ["1", "2", "3", "4", "5", "6"]


def outcomes(rows: Sequence[dict[str, object]]) -> list[object]:
    return [row["outcome"] for row in rows]


@pytest.mark.parametrize(
    ("end", "outcome"),
    [("exit 1", "FAILED"), ("kill -9 $$", "KILLED"), ("sleep 60; exit 1", "LOST"), ("sleep 61; exit 1", "STALLED")],
)
def test_an_agreed_retry_goes_on_where_the_last_checkpoint_was(queue: Queue, end: str, outcome: str) -> None:
    stalls = {"stall": ("0.6s",), "retry_on": "stalled"} if outcome == "STALLED" else {}
    queue.submit(COUNT.replace("END", end), retries=2, resume=True, **stalls)
    queue.worker()
    if outcome == "LOST":
        until(lambda: queue.written() == WHOLE[:3], "the first try")
        os.kill(warden_pid(queue.layout, "1.1"), signal.SIGKILL)
    rows = queue.done(2)
    assert outcomes(rows) == [outcome, "SUCCEEDED"] and queue.written() == WHOLE
    assert rows[1]["resumed_from"] == rows[0]["run_id"] and rows[1]["taints"] is not None
    taints = set(rows[1]["taints"].split(","))
    by_others = {"contended", "slept", "swapping"}  # other tests run beside this one
    assert "resumed" in taints and (rows[1]["valid"] or taints & by_others)
    old = queue.layout.run_dir("1.1") / "out" / "checkpoint"
    assert old.read_text() == "3\n", "what the first run wrote stays as it is"
    assert (queue.layout.run_dir("1.2") / "resume" / "checkpoint").read_text() == "spoilt\n"


def test_what_left_no_checkpoint_begins_anew(queue: Queue) -> None:
    queue.submit("echo ${MPSQ_RESUME:-anew} >> $J; [ $(wc -l < $J) -gt 1 ]", retries=1, resume=True)
    queue.worker()
    rows = queue.done(2)
    assert outcomes(rows) == ["FAILED", "SUCCEEDED"] and rows[1]["resumed_from"] is None
    assert queue.written() == ["anew", "anew"]


def test_by_hand(queue: Queue) -> None:
    queue.submit(COUNT.replace("END", "exit 1"))
    queue.submit("exit 1")
    queue.worker()
    queue.done(2)
    with pytest.raises(UsageError, match=r"run 2\.1 left no checkpoint"):
        new_attempts.retry(queue.layout, [parse_selector("2")], resumed=True)
    assert forked_programs.run("retry", "1", "--resume").stdout.startswith("run 1.2 queued")
    assert outcomes(queue.done(3)) == ["FAILED", "SUCCEEDED", "FAILED"] and queue.written() == WHOLE
    assert "from a checkpoint of 1.1" in forked_programs.run("show", "1").stdout


def test_a_checkpoint_that_is_gone_ends_the_run_and_holds_nobody(queue: Queue) -> None:
    queue.submit(COUNT.replace("END", "exit 1"))
    queue.submit("echo next >> $J")
    queue.worker("", "--until-idle").wait()
    new_attempts.retry(queue.layout, [parse_selector("1")], resumed=True)
    queue.submit("echo last >> $J")
    Path(queue.layout.run_dir("1.1") / "out" / "checkpoint").unlink()
    queue.worker()
    rows = queue.done(4)
    assert outcomes(rows) == ["FAILED", "SPAWN_FAILED", "SUCCEEDED", "SUCCEEDED"]
    assert all(x in rows[1]["reason"] for x in ("checkpoint of run 1.1", "removed"))
    assert queue.written()[-1] == "last"
