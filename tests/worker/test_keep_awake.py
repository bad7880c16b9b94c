"""The helper that keeps the machine awake over a run's whole life.

It is a stand-in: a shell that ends with the warden, as `caffeinate -w` does, and writes down whom it waits for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.process_support import is_there
from tests.queue_support import Queue, until, warden_pid

pytestmark = pytest.mark.process

WORKER = """
import sys
from queue_runner.host import keep_awake
helper = 'echo $$ $0 >> {said}; while kill -0 $0 2>/dev/null; do sleep 0.02; done'
keep_awake.command_for = lambda pid, **_: ["/bin/sh", "-c", helper, str(pid)]
from queue_runner.worker.main_loop import main
sys.exit(main([]))
"""


def test_a_run_keeps_the_machine_awake_whatever_becomes_of_its_worker(queue: Queue) -> None:
    queue.submit("while [ ! -e go ]; do sleep 0.02; done")
    said = queue.folder / "said"
    workers = []

    def start() -> subprocess.Popen[bytes]:
        with (queue.folder / "worker.log").open("ab") as log:
            command = [sys.executable, "-c", WORKER.format(said=said)]
            workers.append(subprocess.Popen(command, stderr=log, start_new_session=True))
        return workers[-1]

    def helpers() -> list[list[int]]:
        return [[int(word) for word in line.split()] for line in said.read_text().splitlines()] if said.exists() else []

    try:
        first = start()
        until(helpers, "a helper")
        ((helper, watched),) = helpers()
        assert watched == warden_pid(queue.layout, "1.1")
        assert os.getsid(helper) == helper != os.getsid(first.pid)
        os.killpg(first.pid, signal.SIGKILL)  # as launchd sweeps the process group of a job that ended
        first.wait()
        os.kill(helper, 0)
        os.kill(helper, signal.SIGKILL)  # what a restart leaves of it is no matter
        start()
        until(lambda: len(helpers()) == 2, "the helper of the worker that adopted the run")
        assert helpers()[1][1] == watched
        (queue.folder / "go").touch()
        queue.done()
        until(lambda: not is_there(helpers()[1][0]), "its end")
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
