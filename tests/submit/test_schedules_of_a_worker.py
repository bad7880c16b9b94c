"""Schedules under a real worker: what is due is submitted once, whoever dies at whatever instruction."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time

import pytest

from queue_runner.cli.main import main
from queue_runner.host import job_environments
from queue_runner.store import read
from queue_runner.submit import timetable
from tests.process_support import is_there
from tests.queue_support import Queue, until

pytestmark = pytest.mark.process


def schedule(queue: Queue, script: str, *, line: str = "0 2 * * *", overdue_s: float | None = 2 * 86_400.0) -> None:
    """A schedule called nightly; with `overdue_s`, its time passed so long ago."""
    words = ["--", "--", "/bin/sh", "-c", script.replace("$J", str(queue.journal))]
    with contextlib.chdir(queue.folder):
        assert main(["schedule", "add", line, "--name", "nightly", "--timezone", "UTC", *words]) == 0
    if overdue_s is not None:
        due(queue, time.time() - overdue_s)


def due(queue: Queue, at: float) -> None:
    with sqlite3.connect(queue.layout.db, timeout=30) as connection:
        connection.execute("UPDATE schedules SET next_at = ?", [at])


def stored(queue: Queue) -> read.ScheduleRow:
    with read.reading(queue.layout.db) as connection:
        return read.schedules(connection)[0]


def test_what_was_missed_is_made_up_for_once(queue: Queue) -> None:
    schedule(queue, "echo ran >> $J")
    assert queue.worker("", "--until-idle").wait() == 0
    assert queue.worker("", "--until-idle").wait() == 0
    assert queue.written() == ["ran"]
    assert [(row["outcome"], row["schedule_id"]) for row in queue.rows()] == [("SUCCEEDED", 1)]
    assert (stored(queue).next_at or 0) > time.time()


@pytest.mark.parametrize("point", ["submit.planned", "submit.before_commit", "submit.committed"])
def test_the_worker_and_its_submission_die(queue: Queue, point: str) -> None:
    schedule(queue, "echo ran >> $J")
    worker = queue.worker(point)
    submission = queue.stopped(point)
    worker.kill()
    worker.wait()
    os.kill(submission, signal.SIGKILL)
    assert len(queue.rows()) == (point == "submit.committed")
    assert queue.worker("", "--until-idle").wait() == 0
    assert queue.written() == ["ran"] and len(queue.rows()) == 1


def test_a_submission_outlives_the_worker_that_started_it(queue: Queue) -> None:
    schedule(queue, "echo ran >> $J")
    worker = queue.worker("submit.planned")
    submission = queue.stopped("submit.planned")
    worker.kill()
    worker.wait()
    assert queue.worker("", "--until-idle").wait() == 0
    os.kill(submission, signal.SIGCONT)
    until(lambda: not is_there(submission), "the end of the first submission")
    assert queue.written() == ["ran"] and len(queue.rows()) == 1


def test_it_comes_when_its_time_has_come_and_not_at_the_next_poll(queue: Queue) -> None:
    queue.layout.config.write_text("poll_s = 3000\nmin_free_bytes = 0\n")
    worker = queue.worker()
    until(queue.layout.fifo.exists, "the worker")
    schedule(queue, "echo ran >> $J", overdue_s=None)  # rings: the worker reckons with it from now on
    due(queue, time.time() + 1.5)
    timetable.resume(queue.layout, "nightly")
    queue.done()
    assert queue.written() == ["ran"] and worker.poll() is None


def test_nothing_is_submitted_beside_a_run_and_it_comes_before_what_is_less_urgent(queue: Queue) -> None:
    with queue.layout.config.open("a") as config:
        config.write("sample_s = 1\n")
    queue.submit("while [ ! -e go ]; do sleep 0.02; done; echo first >> $J")
    queue.worker()
    until(lambda: any(row["state"] == "RUNNING" for row in queue.rows()), "the run")
    queue.submit("echo third >> $J", priority=-1)
    schedule(queue, "echo second >> $J")
    before = _samples(queue)
    until(lambda: _samples(queue) > before, "a step of the worker that is due")
    assert len(queue.rows()) == 2
    (queue.folder / "go").touch()
    queue.done(3)
    assert queue.written() == ["first", "second", "third"]


def _samples(queue: Queue) -> int:
    """How often the worker has noted the conditions of its run."""
    with read.reading(queue.layout.db) as connection:
        return int(connection.execute("SELECT count(*) AS n FROM conditions").fetchone()["n"])


@pytest.mark.parametrize("gone", ["folder", "environment"])
def test_a_schedule_names_the_missing_part_and_the_remedy(queue: Queue, gone: str) -> None:
    (folder := queue.folder / "project").mkdir()
    schedule(queue, "echo ran >> $J")
    if gone == "folder":
        with sqlite3.connect(queue.layout.db) as connection:
            connection.execute("UPDATE schedules SET cwd = ?", [str(folder)])
        folder.rmdir()
    else:
        (file,) = job_environments.files(queue.layout)
        file.unlink()
    worker = queue.worker()
    until(lambda: stored(queue).last_error, "the error")
    assert gone in str(stored(queue).last_error).replace("project", "folder")
    assert "add it again" in str(stored(queue).last_error) and (stored(queue).next_at or 0) > time.time()
    assert worker.poll() is None


def test_one_that_cannot_be_submitted_does_not_stop_the_worker(queue: Queue) -> None:
    schedule(queue, "echo ran >> $J")
    with sqlite3.connect(queue.layout.db) as connection:
        connection.execute("UPDATE schedules SET command_json = replace(command_json, '/bin/sh', '/bin/no-such-shell')")
    worker = queue.worker()
    until(lambda: stored(queue).last_error, "the error")
    assert "/bin/no-such-shell" in str(stored(queue).last_error) and (stored(queue).next_at or 0) > time.time()
    queue.submit("echo other >> $J")
    queue.done()
    assert queue.written() == ["other"] and worker.poll() is None
