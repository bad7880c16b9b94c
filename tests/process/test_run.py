"""mpsq run, with real workers: one is started where none is, followed to the end, and Ctrl-C ends the jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from queue_runner import locks
from queue_runner.paths import Layout
from tests.cli_support import schemas
from tests.process.queue_support import Queue, until
from tests.process.test_many import check_serial

MPSQ = [sys.executable, "-m", "queue_runner.cli.main"]


@pytest.fixture
def queue(layout: Layout, tmp_path: Path) -> Iterator[Queue]:
    queue = Queue(layout, tmp_path)
    yield queue
    lock = locks.worker_lock_path(layout.home)
    if locks.is_held(lock):  # a worker that `mpsq run` started and that still waits for something
        os.kill(int((locks.read_holder(lock) or {})["pid"]), signal.SIGTERM)
        until(lambda: not locks.is_held(lock), "the end of the worker")
    queue.close()


def run(queue: Queue, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*MPSQ, "run", *arguments], cwd=queue.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def workers(queue: Queue) -> list[str]:
    """The process ids of the workers that had this queue."""
    return re.findall(r"worker (\d+) on ", queue.layout.worker_log.read_text())


def test_it_just_works_where_no_worker_runs(queue: Queue) -> None:
    before = queue.submit("echo before >> $J")
    out, err = (process := run(queue, "--repeats", "2", "--", "sh", "-c", "echo out; echo err >&2")).communicate()
    assert process.returncode == 0, err
    assert out.startswith("out\nout\n") and "real " in out and "err" not in out
    assert err.count("err\n") == 2 and ": SUCCEEDED" in err and "no worker runs this queue: process" in err
    assert queue.written() == ["before"] and queue.rows()[0]["job_id"] == before
    until(lambda: not locks.is_held(locks.worker_lock_path(queue.layout.home)), "the end of its worker")
    assert len(workers(queue)) == 1


def test_a_failure_is_exit_3_and_json_is_one_object(queue: Queue) -> None:
    out, err = (process := run(queue, "--json", "--", "sh", "-c", "echo out; exit 7")).communicate()
    assert process.returncode == 3 and "out\n" in err and "1 of 1 runs did not succeed" in err
    said = json.loads(out)
    Draft202012Validator(schemas()["mpsq.run/1"]).validate(said)
    assert (said["schema"], said["ok"], said["runs"][0]["exit_code"]) == ("mpsq.run/1", False, 7)


def test_two_at_once_have_one_worker(queue: Queue) -> None:
    both = [run(queue, "--", "sh", "-c", "sleep 0.2") for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0], [process.communicate() for process in both]
    for process in both:
        process.communicate()
    check_serial(queue.rows())
    assert len(queue.rows()) == 2


def test_ctrl_c_ends_the_jobs(queue: Queue) -> None:
    process = run(queue, "--repeats", "2", "--", "sh", "-c", "echo begun; sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Ctrl-C once more leaves at once" in err, err
    assert [row["outcome"] for row in queue.rows()] == ["CANCELLED", "CANCELLED"]
    assert "Traceback" not in err


def test_ctrl_c_twice_leaves_at_once(queue: Queue) -> None:
    """The job is deaf to SIGINT and SIGTERM: its warden ends it all the same, and somebody records it."""
    process = run(queue, "--", "sh", "-c", "trap '' INT TERM; echo begun; while :; do sleep 0.05; done")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    while "cancelling" not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert queue.done()[0]["outcome"] == "CANCELLED"


def test_a_worker_that_dies_is_replaced(queue: Queue) -> None:
    worker = queue.worker()
    until(lambda: locks.is_held(locks.worker_lock_path(queue.layout.home)), "the worker")
    process = run(queue, "--", "sh", "-c", "echo begun; while [ ! -e go ]; do sleep 0.02; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    worker.kill()
    worker.wait()
    (queue.folder / "go").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "process" in err and queue.rows()[0]["outcome"] == "SUCCEEDED", err


def test_a_worker_that_cannot_run_is_said(queue: Queue) -> None:
    queue.layout.config.write_text("nonsense = 1\n")
    _, err = (process := run(queue, "--", "true")).communicate(timeout=60)
    assert process.returncode == 1 and "nonsense" in err and "Traceback" not in err, err
