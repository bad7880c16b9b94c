"""Count the transactions of a worker: `python -m tests.worker_transactions` runs one job of 2.4 s and prints them.

The worker is the real one, with --until-idle, in this process; hooks and the other threads are counted apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event

JOB_S = 2.4


def count(counts: Counter[str]) -> None:
    """Count from now on every transaction of every engine, every step and every reading of an exit.json."""

    def began(connection: Connection) -> None:
        kind = "read" if connection.get_execution_options().get("reads") else "write"
        counts[f"{_thread()}: {kind} transactions"] += 1

    def counted(cls: type, method: str, name: str) -> None:
        original = getattr(cls, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            counts[f"{_thread()}: {name}"] += 1
            return original(*args, **kwargs)

        setattr(cls, method, wrapped)

    from queue_runner.run_dir import RunDir
    from queue_runner.worker.main import Worker

    event.listen(Engine, "begin", began)
    counted(RunDir, "exit", "readings of exit.json")
    counted(Worker, "_step_once", "steps")


def _thread() -> str:
    return "step" if threading.current_thread().name.startswith("ThreadPoolExecutor-0") else "other threads"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mpsq-transactions-") as name:
        for folder in ("home", "locks"):
            Path(name, folder).mkdir(mode=0o700)
        os.environ |= {"MPSQ_HOME": f"{name}/home", "MPSQ_LOCKS": f"{name}/locks"}
        submit = [sys.executable, "-m", "queue_runner.cli.main", "submit", "--no-gate", "--allow-changed", "--"]
        subprocess.run([*submit, "sleep", str(JOB_S)], check=True, cwd=name, capture_output=True)
        from queue_runner.worker.main import main as work

        counts: Counter[str] = Counter()
        count(counts)
        status = work(["--until-idle"])
    for what, n in sorted(counts.items()):
        print(f"{n:5}  {what}")
    return status


if __name__ == "__main__":
    sys.exit(main())
