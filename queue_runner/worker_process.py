"""The worker as a process: how it is started, and how one is kept alive for as long as somebody waits for a group."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import queue_runner
from queue_runner import queue_state
from queue_runner.errors import AlreadyRunning, MpsqError
from queue_runner.paths import Layout
from queue_runner.rundir import read_end
from queue_runner.text import last_line

MOST_STARTS = 5
"""Workers that may come and go while something waits, before it is said that none stays."""


def command(*options: str) -> tuple[list[str], dict[str, str]]:
    """The argument list of a worker, and its environment: ours, and in a checkout the place of this code."""
    root = Path(queue_runner.__file__).resolve().parents[1]
    environment = dict(os.environ)
    if root.name not in ("site-packages", "dist-packages"):  # a checkout
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), environment.get("PYTHONPATH")]))
    # -P: a file named like a module in the folder where the user stands must not take its place
    return [sys.executable, "-P", "-m", "queue_runner.daemon", *options], environment


class Helper:
    """Sees to it that a worker runs while somebody waits: where none does, starts one that ends when it has no more to
    do. It is in a session of its own, so that neither Ctrl-C nor the end of the terminal reaches it; that there are
    never two is the matter of its lock."""

    def __init__(self, layout: Layout, say: Callable[[str], None]) -> None:
        self._layout = layout
        self._say = say
        self._worker: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def keep(self) -> None:
        """Start a worker if there is none. Raises: MpsqError when it cannot run, with what it said last."""
        if self._worker is not None:
            code = self._worker.poll()
            if code is None:
                return
            self._worker = None
            if code not in (0, AlreadyRunning.exit_code):
                raise self._useless(f"the worker ended with status {code}")
        if queue_state.worker(self._layout)[0]:
            return
        if self._starts == MOST_STARTS:
            raise self._useless(f"{MOST_STARTS} workers have come and gone, and it still waits")
        self._starts += 1
        argv, environment = command("--until-idle")
        with self._layout.worker_log.open("ab") as log:
            self._worker = subprocess.Popen(
                argv,
                env=environment,
                cwd=self._layout.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if self._starts == 1:
            self._say(f"no worker runs this queue: process {self._worker.pid} does so now, until the queue is empty")

    def _useless(self, what: str) -> MpsqError:
        errors = re.findall(rb"^.* ERROR (?!hint: )(.*)$", read_end(self._layout.worker_log), re.MULTILINE)
        said = last_line(errors[-1]) if errors else ""
        return MpsqError(what + (f": {said}" if said else ""), "the jobs stay queued; mpsq worker shows what is wrong")
