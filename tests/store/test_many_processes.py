"""Never two, never lost, never locked: many submitters and readers, and a worker that keeps dying."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
from pathlib import Path

import psutil
import pytest

from queue_runner.store import backup
from tests import forked_programs
from tests.process_support import SETSID, state_of, variables_of
from tests.queue_support import Queue, until

pytestmark = pytest.mark.process

LONG = os.environ.get("MPSQ_CAMPAIGN") == "long"
SUBMITTERS, EACH = 8, 125 if LONG else 6
SEED = int(os.environ.get("MPSQ_SEED", "20261121"))

SUBMITTER = """
import sys
from queue_runner.host.home import ensure_home
from queue_runner.submit import plan
from tests.submit_support import requested
layout = ensure_home()
for number in range(int(sys.argv[2])):
    word = f"{sys.argv[1]}-{number}"
    request = requested(argv=("/bin/sh", "-c", f"echo {word} >> {sys.argv[3]}"), tags=(word,))
    print(plan.store(layout, plan.plan(request)).jobs[0], flush=True)
"""
TIMED_SUBMITTER = """
import pathlib, sys, time
from queue_runner.host.home import ensure_home
from queue_runner.submit import plan
from tests.submit_support import requested
pathlib.Path(sys.argv[3], f"ready {sys.argv[1]}").touch()
while not pathlib.Path(sys.argv[3], "go").exists():
    time.sleep(0.005)
layout = ensure_home()
for number in range(int(sys.argv[2])):
    request = requested(argv=("/usr/bin/true",), cwd=sys.argv[3], tags=(f"{sys.argv[1]}-{number}",))
    print(plan.store(layout, plan.plan(request)).jobs[0], time.monotonic())
"""
READER = """
import time
from queue_runner.host.home import ensure_home
from queue_runner.monitor import run_view
from queue_runner.store import read
from tests import named_rows
while True:
    with read.reading(ensure_home().db) as connection:
        rows = named_rows.runs(connection)
        assert sum(row["state"] == "RUNNING" for row in rows) <= 1
        run_view.queue(connection)
    time.sleep(0.02)  # or two readers take both processors from what they look at
"""


def spawn(*code: str) -> forked_programs.Command:
    return forked_programs.command(*code, module=forked_programs.CODE)


def test_eight_submitters_one_worker_and_readers(queue: Queue) -> None:
    queue.worker()
    readers = [spawn(READER) for _ in range(2)]
    submitters = [spawn(SUBMITTER, f"s{i}", str(EACH), str(queue.journal)) for i in range(SUBMITTERS)]
    try:
        said = [process.communicate(timeout=300) for process in submitters]
        assert [(process.returncode, err) for process, (_, err) in zip(submitters, said, strict=True)] == [(0, "")] * 8
        ids = [int(line) for out, _ in said for line in out.split()]
        assert len(set(ids)) == len(ids) == SUBMITTERS * EACH
        for count in range(10, (len(ids) if LONG else 20) + 1, 10):
            queue.done(count)  # each ten in their time: how long all take depends on the machine
        assert [reader.poll() for reader in readers] == [None, None], [reader.stderr.read() for reader in readers]
    finally:
        for process in (*readers, *submitters):
            process.kill()
            process.communicate()
    rows = queue.rows()
    assert {row["job_id"] for row in rows} == set(ids)
    check_serial(rows)
    ran = [line for line in queue.written()]
    assert len(set(ran)) == len(ran) >= sum(row["state"] == "DONE" for row in rows)
    assert "lock" not in queue.log().replace("block", "")
    assert backup.problems(queue.layout.db) == []


def test_eight_submitters_into_a_new_home(home: Path, tmp_path: Path) -> None:
    """All see that there is no database yet. Whoever has to create it, or to write, has its turn as often as others."""
    each = 500 if LONG else 25
    submitters = [spawn(TIMED_SUBMITTER, f"s{i}", str(each), str(tmp_path)) for i in range(SUBMITTERS)]
    until(lambda: len(list(tmp_path.glob("ready *"))) == SUBMITTERS, "all to be ready")
    (tmp_path / "go").touch()
    said = [process.communicate(timeout=600) for process in submitters]
    assert [(process.returncode, err) for process, (_, err) in zip(submitters, said, strict=True)] == [(0, "")] * 8
    stored = [[line.split() for line in out.splitlines()] for out, _ in said]
    assert len({number for lines in stored for number, _ in lines}) == SUBMITTERS * each
    starts, ends = ([float(lines[at][1]) for lines in stored] for at in (0, -1))
    assert max(starts) < min(ends), "one had to wait until another had stored everything"


def check_serial(rows: list[dict[str, object]]) -> None:
    """No two runs overlap, by their wardens' own clocks."""
    spans = sorted((r["started_at"], r["ended_at"]) for r in rows if r["state"] == "DONE" and r["started_at"])
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


def test_a_worker_that_keeps_dying(queue: Queue) -> None:
    """SIGKILL at random moments, a new worker each time: every job once, its true exit code, all its output."""
    generator = random.Random(SEED)
    count, kills = (10, 20) if LONG else (5, 8)
    for number in range(count):
        queue.submit(f"echo start {number} >> $J; sleep 0.2; echo end {number} >> $J; exit {number}")
    deaths = 0
    worker = queue.worker()
    while deaths < kills and not all(row["state"] == "DONE" for row in queue.rows()):
        worker_lives_s = generator.uniform(0.05, 0.6)
        try:
            worker.wait(worker_lives_s)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        deaths += 1
        worker = queue.worker()
    rows = queue.done(count, limit_s=120)
    assert [row["exit_code"] for row in rows] == list(range(count))
    assert queue.written() == [f"{word} {number}" for number in range(count) for word in ("start", "end")]
    check_serial(rows)


@pytest.mark.parametrize("turn", range(20 if LONG else 4))
def test_cancel_leaves_nothing_alive(queue: Queue, turn: int) -> None:
    """A child of its own session, one that was daemonised, one deaf to TERM and INT: none outlives the cancel."""
    queue.submit(
        f"{SETSID} sleep 301 & ({SETSID} sh -c 'sleep 302 & sleep 303' &) ;"
        " sh -c 'trap \"\" TERM INT; while :; do sleep 0.05; done' & sleep 304 & echo ready >> $J; wait; sleep 305"
    )
    queue.worker()
    until(queue.written, "the job")
    assert forked_programs.run("cancel", "1").returncode == 0
    (row,) = queue.done()
    assert row["outcome"] == "CANCELLED"
    tag = queue.token()
    assert [p for p in psutil.pids() if variables_of(p).get("MPSQ_TAG") == tag and state_of(p) != "Z"] == []


def test_cancel_without_grace_kills_at_once(queue: Queue) -> None:
    queue.layout.config.write_text("grace_int_s = 60\ngrace_term_s = 60\nmin_free_bytes = 0\n")
    queue.submit("trap '' INT TERM; echo ready >> $J; while :; do sleep 0.05; done")
    queue.worker()
    until(queue.written, "the job")
    assert "cancelled" in forked_programs.run("cancel", "1", "--grace", "0").stdout
    assert queue.done()[0]["outcome"] == "CANCELLED"
