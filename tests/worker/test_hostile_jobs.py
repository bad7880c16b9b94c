"""A job that does its worst to its own folder: it ends with a true outcome, runs once, and the next job starts."""

from __future__ import annotations

import os
import re
import signal

import pytest

from queue_runner.store import read
from queue_runner.store.engine import open_engine, writing
from queue_runner.store.jobs import request_cancel
from tests.cli_support import Cli
from tests.queue_support import Queue, until, warden_pid

pytestmark = pytest.mark.process

HERE = 'cd "$(dirname "$MPSQ_EVENTS")"; echo ran >> $J; '
"""The job goes to its own run folder."""


DEEDS = (
    "rm -rf -- *",
    'cd /; rm -rf -- "$(dirname "$MPSQ_EVENTS")"',
    'D=$PWD; cd /; rm -rf "$D"; ln -s /tmp "$D"',
    "rm -f warden.lock spec.json warden.py",
    "rm -rf warden; echo > warden",
    "mkdir warden/exit.json",
    "rm warden/exit.json.tmp; mkfifo warden/exit.json.tmp",
    "rm warden/exit.json.tmp; ln -s /dev/full warden/exit.json.tmp",
    "mkfifo warden/exit.json",
    "ln -s /dev/zero warden/exit.json",
    'echo \'{"exit_code":0,"stop":{"cause":"bogus"}}\' > warden/exit.json',
    "rm warden/started; mkfifo warden/started",
    'echo \'{"at":"noon"}\' > warden/started',
    'for line in 7 \'[[]]\' \'{"pid":"x","start":{}}\'; do echo "$line" >> warden/pids.jsonl; done',
    "rm stderr.log; mkfifo stderr.log",
    "rm warden.lock; ln -s nowhere warden.lock",
    "chmod 0 warden . ",
)


def test_what_it_does_to_its_folder_changes_nothing(queue: Queue) -> None:
    for deed in DEEDS:
        queue.submit(f"{HERE}{deed}; exit 3")
        queue.submit("echo next >> $J")
    queue.worker()
    ends = [(row["outcome"], row["exit_code"]) for row in queue.done(2 * len(DEEDS))]
    assert dict(zip(DEEDS, zip(ends[::2], ends[1::2], strict=True), strict=True)) == dict.fromkeys(
        DEEDS, (("FAILED", 3), ("SUCCEEDED", 0))
    )
    assert queue.written() == ["ran", "next"] * len(DEEDS)


def notes(queue: Queue, kind: str) -> list[str]:
    with read.reading(queue.layout.db) as connection:
        found = connection.execute("SELECT text FROM notes WHERE kind = ?", [kind])
        return [row["text"] for row in found]


@pytest.mark.parametrize("deed", ["rm -rf -- *", 'D=$PWD; cd /; rm -rf -- "$D"', "true"])
def test_that_it_removed_its_folder_is_noted(queue: Queue, deed: str) -> None:
    queue.submit(f"{HERE}{deed}")
    queue.worker()
    assert queue.done()[0]["outcome"] == "SUCCEEDED"
    said = ["files in the folder of this run were removed during the run: the logs and events may be incomplete"]
    assert notes(queue, "folder_removed") == ([] if deed == "true" else said)


WORDS = (
    *("{", "[]", "{}", "[" * 9999),
    *('{"exit_code":"3"}', '{"stop":{"cause":"bogus"}}', '{"exit_code":3,"ended_at":"noon"}'),
)


def test_a_word_that_is_no_wardens_is_no_word(queue: Queue) -> None:
    """exit.json as a job that killed its warden may leave it: the run is LOST and the queue goes on."""
    worker = queue.worker()
    for number, word in enumerate(WORDS, start=1):
        queue.submit("echo ran >> $J; sleep 300")
        until(lambda number=number: len(queue.written()) == number, f"job {number}")
        warden = warden_pid(queue.layout, f"{number}.1")
        os.kill(worker.pid, signal.SIGSTOP)
        (queue.layout.run_dir(f"{number}.1") / "warden" / "exit.json").write_text(word)
        os.kill(warden, signal.SIGKILL)
        os.kill(worker.pid, signal.SIGCONT)
        assert queue.done(number)[-1]["outcome"] == "LOST", word[:40]
    queue.submit("echo next >> $J")
    assert queue.done(len(WORDS) + 1)[-1]["outcome"] == "SUCCEEDED"


@pytest.mark.parametrize("deed", ["mkdir cancel", "mkfifo cancel", "ln -s nowhere cancel", "rm -rf -- *"])
def test_it_cannot_make_itself_uncancellable(queue: Queue, deed: str) -> None:
    queue.submit(f"{HERE}while [ ! -e {queue.folder}/go ]; do sleep 0.02; done; {deed}; sleep 300")
    queue.worker()
    until(queue.written, "the job")
    (queue.folder / "go").touch()
    ask_to_cancel(queue)
    assert queue.done()[0]["outcome"] == "CANCELLED"


def ask_to_cancel(queue: Queue) -> None:
    """What the CLI commits before it dies: the worker has to file the request."""
    engine = open_engine(queue.layout.db)
    with writing(engine) as connection:
        request_cancel(connection, [1], "user")
    engine.dispose()


def test_without_its_folder_and_its_warden_it_is_lost_and_not_run_again(queue: Queue) -> None:
    queue.submit(f"{HERE}sleep 0.1; while [ ! -e {queue.folder}/go ]; do sleep 0.02; done; rm -rf -- *; sleep 300")
    queue.worker()
    until(queue.written, "the job")
    warden = warden_pid(queue.layout, "1.1")
    until(lambda: queue.rows()[0]["started_at"], "the mark")
    (queue.folder / "go").touch()
    until(lambda: not (queue.layout.run_dir("1.1") / "spec.json").exists(), "the deed")
    os.kill(warden, signal.SIGKILL)  # the trainer lives and holds the lane, and nothing on disk tells of it
    assert queue.done()[0]["outcome"] == "LOST"
    assert queue.written() == ["ran"]


@pytest.mark.parametrize("way", ["mkfifo", "ln -s nowhere", "ln -s spec.json", "mkdir"])
def test_what_it_puts_in_the_place_of_the_wardens_lock_stops_no_new_worker(queue: Queue, mpsq: Cli, way: str) -> None:
    queue.submit(
        f"{HERE}rm warden.lock; {way} warden.lock; touch done; while [ ! -e {queue.folder}/go ]; do sleep 0.02; done"
    )
    worker = queue.worker()
    until((queue.layout.run_dir("1.1") / "done").exists, "the deed")
    worker.kill()
    worker.wait()
    assert "1.1" in mpsq.ok("status").out
    queue.worker()
    until(lambda: queue.log().count("worker ") > 1, "the next worker")
    (queue.folder / "go").touch()
    assert queue.done()[0]["outcome"] == "SUCCEEDED"
    assert queue.written() == ["ran"]


@pytest.mark.parametrize("way", ["symlink", "dangling", "file"])
def test_something_in_the_place_of_the_next_runs_folder(queue: Queue, way: str) -> None:
    place = queue.layout.run_dir("1.1")
    if way == "file":
        place.write_text("in the way")
    else:
        place.symlink_to(queue.folder if way == "symlink" else "nowhere")
    queue.submit("echo ran >> $J")
    queue.worker()
    assert queue.done()[0]["outcome"] == "SUCCEEDED"
    assert queue.written() == ["ran"] and queue.layout.config.exists()


def test_a_job_that_stops_itself_is_said_to_keep_the_lane(queue: Queue, mpsq: Cli) -> None:
    queue.submit("kill -STOP $$; echo on >> $J")
    queue.worker()
    until(lambda: "still holds" in mpsq("why", "1.1").out, "why")
    assert "by a signal" in " ".join(mpsq("status").out.split())
    (pid,) = re.findall(r"kill -CONT (\d+) continues it", mpsq("why", "1.1").out)
    os.kill(int(pid), signal.SIGCONT)
    (run,) = queue.done(1)
    assert (run["outcome"], queue.written()) == ("SUCCEEDED", ["on"])
