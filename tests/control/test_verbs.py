"""Order, time and second tries with a real worker and real jobs."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pytest

from queue_runner.control import new_attempts, pausing
from queue_runner.host import job_environments
from queue_runner.model import Selector, parse_selector
from tests.process_support import NOW
from tests.queue_support import Queue, until

pytestmark = pytest.mark.process


def named(text: str) -> list[Selector]:
    return [parse_selector(text)]


def test_dependents_are_skipped_while_another_job_runs(queue: Queue) -> None:
    queue.submit("until [ -e go ]; do sleep 0.02; done")
    bad = queue.submit("echo bad >> $J")
    queue.submit("echo never >> $J", after=(f"{bad}",))
    queue.submit("echo cleaned >> $J", after=(f"{bad}:any",))
    queue.worker()
    until(lambda: queue.rows()[0]["state"] == "RUNNING")
    process = queue.command("cancel", str(bad))
    assert process.wait() == 0
    until(lambda: queue.rows()[2]["outcome"] == "SKIPPED", "the skip beside a running job")
    assert queue.rows()[2]["reason"] == f"dependency: job {bad} did not succeed"
    (queue.folder / "go").touch()
    queue.done(4)
    assert queue.written() == ["cleaned"]


def test_a_job_starts_at_its_time_and_not_before(queue: Queue) -> None:
    at = time.time() + 2.5
    queue.submit(f"{NOW} >> $J", at=time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)))
    queue.worker()
    queue.done()
    assert float(queue.written()[0]) >= int(at)


def test_retries_wait_longer_each_time_and_keep_the_old_runs(queue: Queue) -> None:
    queue.submit(f"{NOW} >> $J; exit 3", retries=2, backoff_s=0.3)
    queue.worker()
    rows = queue.done(3)
    assert [(row["run"], row["attempt"], row["exit_code"]) for row in rows] == [
        ("1.1", 1, 3),
        ("1.2", 2, 3),
        ("1.3", 3, 3),
    ]
    times = [float(line) for line in queue.written()]
    assert times[1] - times[0] >= 0.3 and times[2] - times[1] >= 0.6
    assert queue.verbs(1).count("retry") == 2


def test_a_lost_run_is_repeated_only_where_that_was_asked_for(queue: Queue) -> None:
    import os
    import signal

    from tests.queue_support import warden_pid

    queue.submit("echo x >> $J; [ $(wc -l < $J) -gt 1 ] || sleep 60", retries=1, retry_on="lost")
    queue.worker()
    until(lambda: queue.written())
    os.kill(warden_pid(queue.layout, "1.1"), signal.SIGKILL)
    rows = queue.done(2)
    assert [row["outcome"] for row in rows] == ["LOST", "SUCCEEDED"]
    assert queue.written() == ["x", "x"]


def test_drain_lets_the_current_job_finish_and_starts_none(queue: Queue) -> None:
    queue.submit("until [ -e go ]; do sleep 0.02; done; echo one >> $J")
    queue.submit("echo two >> $J")
    queue.worker()
    until(lambda: queue.rows()[0]["state"] == "RUNNING")
    impatient = queue.command("pause", "--when-done", "--timeout", "0.1s")
    assert impatient.wait() == 124
    drain = queue.command("pause", "--when-done")
    (queue.folder / "go").touch()
    assert drain.wait() == 0 and drain.stdout is not None and "nothing runs" in drain.stdout.read()
    assert queue.written() == ["one"] and queue.rows()[1]["state"] == "QUEUED"
    assert queue.command("resume").wait() == 0
    queue.done(2)
    assert queue.written() == ["one", "two"]


def test_a_worker_until_idle_does_not_wait_for_what_needs_a_hand(queue: Queue) -> None:
    queue.submit("echo held >> $J", hold=True)
    queue.submit("echo ran >> $J")
    assert queue.worker("", "--until-idle").wait() == 0
    assert queue.written() == ["ran"]
    pausing.resume(queue.layout, named("1"))
    pausing.pause_lane(queue.layout, "test")
    assert queue.worker("", "--until-idle").wait() == 0
    assert queue.written() == ["ran"]


def test_a_retry_that_looks_for_secrets_holds_up_nobody(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.submit("exit 1")
    queue.worker("", "--until-idle").wait()

    def check(*_: object) -> None:
        """Write meanwhile."""
        with closing(sqlite3.connect(queue.layout.db, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")

    monkeypatch.setattr(job_environments, "check", check)
    assert [run.new for run in new_attempts.retry(queue.layout, named("1"))] == ["1.2"]


def test_retry_runs_what_failed_and_what_was_skipped_for_it(queue: Queue) -> None:
    first = queue.submit("[ -e mended ] && echo ok >> $J")
    queue.submit("echo then >> $J", after=(str(first),))
    queue.worker()
    queue.done(2)
    (queue.folder / "mended").touch()
    found = new_attempts.retry(queue.layout, [*named("1"), *named("2")])
    assert [one.new for one in found] == ["1.2", "2.2"]
    queue.done(4)
    assert queue.written() == ["ok", "then"]
    assert [row["outcome"] for row in queue.rows()] == ["FAILED", "SUCCEEDED", "SKIPPED", "SUCCEEDED"]
