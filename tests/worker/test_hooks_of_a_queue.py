"""Hooks beside a real queue: they delay nothing, are called at most once, and leave nothing, whatever is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.host import processes
from queue_runner.paths import Layout
from queue_runner.worker import hooks
from tests.patience import patience
from tests.process_support import SETSID
from tests.queue_support import Queue, until

pytestmark = pytest.mark.process


@pytest.fixture
def queue(layout: Layout, tmp_path: Path) -> Iterator[Queue]:
    made = Queue(layout, tmp_path)
    yield made
    made.close()
    assert processes.end_all(processes.Traces(tag=hooks.tag_of(layout)), 0, 0) == []


def settings(queue: Queue, **values: str | float) -> None:
    with queue.layout.config.open("a") as config:
        for key, value in values.items():
            config.write(f"{key} = {value}\n" if isinstance(value, float) else f"{key} = '''{value}'''\n")


def alive(queue: Queue) -> bool:
    return bool(processes.find_orphans(processes.Traces(tag=hooks.tag_of(queue.layout))))


def test_a_hook_knows_what_happened(queue: Queue) -> None:
    command = f"echo $MPSQ_HOOK $MPSQ_RUN $MPSQ_OUTCOME $MPSQ_EXIT_CODE $(nice) >> {queue.journal}"
    settings(queue, hook_done=command, hook_failed=command, hook_idle=command)
    queue.submit("true")
    queue.submit("echo no >&2; exit 3")
    assert queue.worker("", "--until-idle").wait() == 0, queue.log()
    calls = ["done 1.1 SUCCEEDED 0 19", "failed 2.1 FAILED 3 19", "idle 19"]
    assert queue.written() == calls
    assert queue.worker("", "--until-idle").wait() == 0 and queue.written() == calls  # idle is called once


def test_a_hook_that_hangs_delays_no_run(queue: Queue) -> None:
    settings(queue, hook_done="sleep 6000", hook_timeout_s=3600.0)
    for _ in range(4):
        queue.submit("echo ran >> $J")
    worker = queue.worker()
    queue.done(4)
    until(lambda: alive(queue), "the first call")
    assert len(queue.written()) == 4 and "hook_done after" not in queue.log(), "the first call goes on"
    worker.terminate()
    assert worker.wait() == 0  # two seconds for the hook, and no more
    before, _, after = queue.log().partition("worker was stopped")
    assert "after run 1.1: " in before.splitlines()[-1] and after and "run 2.1: " not in after and not alive(queue)


def test_a_worker_killed_while_a_hook_runs(queue: Queue) -> None:
    """The next one ends the hook, and calls none of the runs that ended before."""
    script = f"echo $MPSQ_RUN >> {queue.journal}; [ $MPSQ_RUN = 3.1 ] || {SETSID} sh -c 'trap \"\" TERM; sleep 60'"
    settings(queue, hook_done=script)
    queue.submit("true")
    queue.submit("true")
    worker = queue.worker()
    queue.done(2)
    until(lambda: queue.written() == ["1.1"], "the first call")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert alive(queue)
    queue.worker()
    until(lambda: not alive(queue), "the end of the hook")
    queue.submit("true")
    until(lambda: queue.written() == ["1.1", "3.1"], "the next call")


def test_a_skipped_job_leaves_an_idle_queue(queue: Queue) -> None:
    from queue_runner.store.engine import open_engine, writing

    settings(queue, hook_idle=f"echo idle >> {queue.journal}")
    queue.submit("exit 1")
    queue.submit("true")
    engine = open_engine(queue.layout.db)
    with writing(engine) as connection:
        connection.change("INSERT INTO dependencies VALUES (2, 1, 'ok')")
    engine.dispose()
    assert queue.worker("", "--until-idle").wait() == 0
    assert queue.written() == ["idle"] and [row["outcome"] for row in queue.rows()] == ["FAILED", "SKIPPED"]


def test_its_tree_is_ended_at_the_limit(tmp_path: Path) -> None:
    program = tmp_path / "deaf"
    program.write_text("trap '' TERM INT; echo $$ >> pids; while :; do sleep 0.05; done\n")
    script = f"touch {tmp_path}/pids; cd {tmp_path}; {SETSID} sh deaf & sh deaf & "
    script += "while [ $(wc -l < pids) -lt 2 ]; do sleep 0.01; done"
    problem, output = hooks.run(
        ["/bin/sh", "-c", script + "; echo started; wait"],
        {"PATH": os.environ["PATH"], "MPSQ_TAG": "f" * 32, "MPSQ_HOME": "/"},
        patience(2.0),
        threading.Event(),
    )
    assert "hook_timeout_s" in problem
    assert output.splitlines()[0] == "started"  # the shell may live to name its child that was killed
    assert len((tmp_path / "pids").read_text().split()) == 2
    assert not processes.find_orphans(processes.Traces(tag="f" * 32))


@pytest.mark.parametrize("how", ["kill -9 $PPID", "kill $PPID", "kill -9 0"])
def test_a_hook_that_ends_its_parent_does_not_end_the_worker(queue: Queue, how: str) -> None:
    settings(queue, hook_done=how)
    queue.submit("echo one >> $J")
    worker = queue.worker()
    until(lambda: "hook_done after run 1.1" in queue.log() or worker.poll() is not None, "the hook")
    queue.submit("echo two >> $J")
    queue.done(2)
    assert worker.poll() is None and queue.written() == ["one", "two"]
