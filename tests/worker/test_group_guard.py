"""One mistake does not use up a night: a nearly full disk, a group whose runs all fail at once, a missing device."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from tests import forked_programs
from tests.cli_support import Cli
from tests.process_support import needs_linux
from tests.queue_support import Queue, until

pytestmark = pytest.mark.process

NO_DEVICE = """\
echo '{"v": 1, "type": "hello", "pid": 1, "t": 0.0}' >> $MPSQ_EVENTS
echo '{"type": "note", "t": 0.1, "kind": "device_unavailable", "text": "no cuda here"}' >> $MPSQ_EVENTS
echo tried >> $J; exit 69
"""


def blocked(queue: Queue) -> str:
    with sqlite3.connect(queue.layout.db) as connection:
        return str((connection.execute("SELECT blocked_reason FROM lanes").fetchone() or [""])[0] or "")


def states(queue: Queue) -> list[Any]:
    return [row["outcome"] or row["state"] for row in queue.rows()]


def test_little_disk_space_keeps_runs_waiting(queue: Queue, mpsq: Cli) -> None:
    """0.1 started each and ended it OUTPUT_LIMIT: six jobs with retries were gone within 0.4 s."""
    config = queue.layout.config.read_text()
    queue.layout.config.write_text(config.replace("min_free_bytes = 0", "min_free_bytes = 1152921504606846976"))
    for _ in range(3):
        queue.submit("echo ran >> $J", retries=2)
    worker = queue.worker()
    until(lambda: blocked(queue), "a reason")
    assert "min_free_bytes" in blocked(queue) and "mpsq gc" in blocked(queue)
    assert states(queue) == ["QUEUED"] * 3 and queue.written() == []
    said = mpsq.ok("why", "1").out
    assert "nothing can start" in said and "min_free_bytes" in said
    worker.terminate()
    worker.wait()
    queue.layout.config.write_text(config)  # some space was freed
    queue.worker("", "--until-idle")
    queue.done(3)
    assert states(queue) == ["SUCCEEDED"] * 3


WORKER = """
import shutil, sys
from collections import namedtuple
usage = namedtuple("usage", "total used free")
shutil.disk_usage = lambda path: usage(1 << 40, 0, int(open({stand_in!r}).read() or 0))
from queue_runner.worker.main_loop import main
sys.exit(main([]))
"""


def test_it_continues_by_itself_when_there_is_space(queue: Queue) -> None:
    """The disk is a stand-in: the worker believes what a file says is free."""
    stand_in = queue.folder / "free"
    stand_in.write_text("2048")
    config = queue.layout.config.read_text()
    queue.layout.config.write_text(config.replace("min_free_bytes = 0", "min_free_bytes = 4096"))
    queue.submit("echo ran >> $J")
    queue.worker("", WORKER.format(stand_in=str(stand_in)), module=forked_programs.CODE)
    until(lambda: "only 2.00 KiB are free" in blocked(queue), "the reason")
    stand_in.write_text(str(1 << 30))
    queue.done()
    assert queue.written() == ["ran"] and blocked(queue) == ""


ANY_TIME = """
import sys
from queue_runner.worker import group_guard
from queue_runner.worker.main_loop import main
group_guard.AT_ONCE_S = 600.0
sys.exit(main(["--until-idle"]))
"""
"""A worker for which runs fail at once however long a busy machine takes."""


def test_three_runs_that_fail_at_once_hold_their_group(queue: Queue, mpsq: Cli) -> None:
    queue.submit("echo tried >> $J; echo no such file: data.bin $$ >&2; exit 2", repeats=6, retries=1)
    queue.submit("echo other >> $J")
    queue.worker("", ANY_TIME, module=forked_programs.CODE).wait()
    assert queue.written().count("tried") == 6 and queue.written().count("other") == 1, "three, and a retry of each"
    assert sorted(states(queue)) == ["FAILED"] * 6 + ["HELD"] * 3 + ["SUCCEEDED"], queue.log()
    said = mpsq("wait", "g1")
    assert said.code == 3 and all(x in said.out for x in ("HELD: 3 runs", " 1.1, 1.2, 1.3, failed", "within a second"))
    why = mpsq.ok("why", "1.4").out
    assert " 1.1, 1.2, 1.3, failed" in why and "mpsq resume" in why
    mpsq.ok("resume", "1.4", "1.5")
    queue.worker("", ANY_TIME, module=forked_programs.CODE).wait()
    assert queue.written().count("tried") == 10, "two more and their retries: older failures do not count"


@needs_linux
def test_runs_that_meet_a_full_disk_say_so_and_hold_their_group(queue: Queue, mpsq: Cli) -> None:
    """They were FAILED(1), although there is an outcome for a full disk."""
    queue.submit("echo x > x; cp x /dev/full", repeats=5)
    queue.worker("", ANY_TIME, module=forked_programs.CODE)
    queue.done(3)
    until(lambda: states(queue) == ["DISK_FULL"] * 3 + ["HELD"] * 2, "the others to be held")
    why = mpsq.ok("why", "1.1").out
    assert all(x in why for x in ("disk was full", "No space left", "mpsq gc"))
    held = mpsq.ok("why", "1.4").out
    assert "mpsq resume 1" in held and "hold_after_failures 0" in held


def test_other_failures_hold_nothing(queue: Queue) -> None:
    queue.submit('n=$(wc -l < $J 2>/dev/null || echo 0); echo tried >> $J; echo "cause $n" | tr 0-9 a-j >&2; exit 2', 6)
    queue.worker("", "--until-idle").wait()
    assert states(queue) == ["FAILED"] * 6, "each for another cause"


def test_it_can_be_switched_off(queue: Queue) -> None:
    queue.layout.config.write_text(queue.layout.config.read_text() + "hold_after_failures = 0\n")
    queue.submit("exit 2", 5)
    queue.worker("", "--until-idle").wait()
    assert states(queue) == ["FAILED"] * 5


def test_a_missing_device_is_tried_once_in_a_group(queue: Queue, mpsq: Cli) -> None:
    job = queue.submit(NO_DEVICE, repeats=4, device="cuda", parser=None)
    queue.worker("", "--until-idle").wait()
    assert states(queue) == ["DEVICE_UNAVAILABLE", *["SKIPPED"] * 3] and queue.written() == ["tried"]
    why = mpsq.ok("why", f"{job}.2").out
    assert "run 1.1" in why and "not use cuda" in why
    mpsq.ok("retry", "1")
    queue.worker("", "--until-idle").wait()
    assert queue.written() == ["tried"] * 2, "a retry looks once more"
