"""Count what a worker's steps cost: `python -m tests.worker_transactions` runs one job of 2.4 s and prints it.

The worker is the real one, with --until-idle, in this process; its other threads are counted apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from queue_runner.host.run_dir import RunDir
from queue_runner.store.engine import Connection

JOB_S = 2.4
READ, WRITE, EXIT = "read transactions", "write transactions", "readings of exit.json"


@contextmanager
def counting() -> Iterator[Counter[tuple[str, str]]]:
    """Count, by thread and kind, every transaction of every engine and every reading of an exit.json."""
    counts: Counter[tuple[str, str]] = Counter()

    def counted(owner: type, method: str, kind: str) -> AbstractContextManager[object]:
        original = getattr(owner, method)

        def wrapped(*arguments: Any) -> Any:
            counts[threading.current_thread().name, kind] += 1
            return original(*arguments)

        return mock.patch.object(owner, method, wrapped)

    with (
        counted(Connection, "begin", READ),
        counted(Connection, "begin_writing", WRITE),
        counted(RunDir, "exit", EXIT),
    ):
        yield counts


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mpsq-transactions-") as name:
        for folder in ("home", "locks"):
            Path(name, folder).mkdir(mode=0o700)
        os.environ |= {"MPSQ_HOME": f"{name}/home", "MPSQ_LOCKS": f"{name}/locks"}
        submit = [sys.executable, "-m", "queue_runner.cli.main", "submit", "--no-gate", "--snapshot", "off", "--"]
        subprocess.run([*submit, "sleep", str(JOB_S)], check=True, cwd=name, capture_output=True)
        from queue_runner.worker.main_loop import main as work
        from queue_runner.worker.steps import Steps

        one_step, n_steps = Steps.step, 0

        def step(steps: Steps) -> bool:
            nonlocal n_steps
            n_steps += 1
            return one_step(steps)

        with counting() as counts, mock.patch.object(Steps, "step", step):
            status = work(["--until-idle"])
    print(f"{n_steps:5}  steps")
    for (thread, kind), n in sorted(counts.items()):
        print(f"{n:5}  {kind} of {thread}")
    return status


if __name__ == "__main__":
    sys.exit(main())
