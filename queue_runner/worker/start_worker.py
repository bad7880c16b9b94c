"""The worker as a process: how it is started, and how one is kept alive while a command waits for a group."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import queue_runner
from queue_runner.errors import AlreadyRunning, MpsqError
from queue_runner.host import locks
from queue_runner.host.run_dir import read_end
from queue_runner.model import DEFAULT_LANE
from queue_runner.paths import Layout
from queue_runner.store import added_rounds, read, ready
from queue_runner.store.engine import looking, open_engine
from queue_runner.text import last_line

MOST_STARTS = 5
"""Number of workers that may come and go while runs wait, before this is reported."""
_LONG_S = 10.0
"""Lifetime above which a worker counts as having done its work, and its end is not counted."""


def program(module: str, *options: str) -> tuple[list[str], dict[str, str]]:
    """Return the argument list of a program of ours, and its environment: ours, and in a checkout the location of this
    code."""
    root = Path(queue_runner.__file__).resolve().parents[1]
    environment = dict(os.environ)
    if root.name not in ("site-packages", "dist-packages"):  # a checkout
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), environment.get("PYTHONPATH")]))
    # -P: a module-like file name in the current folder must not take its place
    return [sys.executable, "-P", "-m", module, *options], environment


_STARTER = """
[ "$1" = ready ] || read -r _ || exit
shift
while
    /bin/sh -c 'echo $$; exec "$@" >>"$0" 2>&1' "$0" "$@"
    echo $?
    read -r _
do :; done
"""
"""A shell script that starts a worker for each line from us, the first at once if it is to be ready, and prints its
process id and then its exit status. A worker reads the next line itself and begins then. $0 is its log, then comes its
command."""


class WorkerStarter:
    """Keeps a worker running while a command waits for a group.

    If there is no worker, it starts one that ends when it has no more to do. The worker is in a session of its own, so
    that neither Ctrl-C nor the end of the terminal reaches it; its lock ensures that there are never two.

    The waiting command may give way to the measured run (nice), but a worker and its runs must not. A shell starts the
    workers: it was started before, with the priority that this program had then. The first worker is loaded beside this
    program, which takes as long as making a plan, and begins when it is needed.
    """

    def __init__(self, layout: Layout, say: Callable[[str], None]) -> None:
        self._layout = layout
        self._say = say
        self._worker_pid: int | None = None
        self._started_at = 0.0
        self._starts = 0
        self._is_ready = not locks.worker(layout.home)[0]
        argv, environment = program("queue_runner.worker", "--until-idle", "--on-request")
        first = "ready" if self._is_ready else "later"
        layout.worker_log.touch(0o600)
        self._starter = subprocess.Popen(
            ["/bin/sh", "-c", _STARTER, str(layout.worker_log), first, *argv],
            env=environment,
            cwd=layout.home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # select does not see buffered data
            start_new_session=True,
        )

    def keep(self) -> None:
        """Start a worker if there is none and work for one. Raises: MpsqError when it cannot run, with its last
        output."""
        if self._worker_pid is not None and not self._has_ended():
            return
        if locks.worker(self._layout.home)[0] or not self._has_work():
            return
        if self._starts == MOST_STARTS:
            raise self._useless(f"{MOST_STARTS} workers have started and exited, and the runs still wait")
        self._starts += 1
        self._started_at = time.monotonic()
        self._worker_pid = self._start()
        self._say(f"no worker was running: started process {self._worker_pid}, which exits when the queue is empty")

    def close(self) -> None:
        """Start no more workers. A running one continues."""
        for pipe in (self._starter.stdin, self._starter.stdout):
            assert pipe is not None
            pipe.close()

    def _start(self) -> int:
        assert self._starter.stdin is not None and self._starter.stdout is not None
        try:
            self._starter.stdin.write(b"\n" if self._is_ready else b"\n\n")
            self._is_ready = False
            return int(self._starter.stdout.readline())
        except (OSError, ValueError):
            raise MpsqError("no worker can be started: the helper shell has exited", "mpsq worker") from None

    def _has_ended(self) -> bool:
        """Return whether the started worker has ended. Raises: MpsqError when it exited with an error."""
        assert self._starter.stdout is not None
        if not select.select([self._starter.stdout], [], [], 0)[0]:
            return False
        status = int(self._starter.stdout.readline() or 0)
        self._worker_pid = None
        if time.monotonic() - self._started_at > _LONG_S:
            self._starts = 0  # it did work
        if 0 < status < 128 and status != AlreadyRunning.exit_code:  # larger: it was killed
            raise self._useless(f"the worker exited with status {status}")
        return True

    def _has_work(self) -> bool:
        """Return whether a worker would stay: a run is active, or will start some time without user action, or a round
        may follow one that has ended."""
        with read.reading(self._layout.db) as connection:
            if connection.execute("SELECT 1 FROM runs WHERE state = 'RUNNING'").fetchone():
                return True
        engine = open_engine(self._layout.db)
        with looking(engine) as writer:
            return bool(added_rounds.ended(writer)) or ready.something_waits(writer, DEFAULT_LANE, time.time())

    def _useless(self, what: str) -> MpsqError:
        errors = re.findall(rb"^.* ERROR (?!hint: )(.*)$", read_end(self._layout.worker_log), re.MULTILINE)
        message = last_line(errors[-1]) if errors else ""
        return MpsqError(
            what + (f": {message}" if message else ""), "the jobs stay queued; run mpsq worker to see the error"
        )
