"""A real queue for process tests: real workers, wardens and jobs, ended by the ids we hold."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from queue_runner.host import processes
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.submit import plan
from tests import forked_worker, named_rows
from tests.forked_worker import ForkedWorker
from tests.patience import UNTIL_S, until
from tests.process_support import state_of
from tests.submit_support import requested

ANY_MACHINE = "gate_cpu_share = 1\ngate_memory_bytes = 0\ngate_battery = false\n"
"""Settings with which the gate stands open: the machine that tests run on is never quiet."""


class Queue:
    """One MPSQ_HOME with its workers. `journal` is a file to which the jobs of a test append."""

    def __init__(self, layout: Layout, folder: Path) -> None:
        self.layout = layout
        self.folder = folder
        self.journal = folder / "journal"
        self.stops = folder / "stops"
        self.stops.mkdir(exist_ok=True)
        settings = "grace_int_s = 0.3\ngrace_term_s = 0.3\nmin_free_bytes = 0\npoll_s = 1.0\n"
        layout.config.write_text(settings + ANY_MACHINE)
        self._workers: list[ForkedWorker | subprocess.Popen[bytes]] = []

    def submit(self, script: str, repeats: int = 1, **options: Any) -> int:
        """Queue a shell script; returns the job's id. `$J` in it is the journal. On Slurm it is one block at first."""
        if options.get("on") == "slurm":
            options.setdefault("nodes_at_once", 1)
        argv = ("/bin/sh", "-c", script.replace("$J", str(self.journal)))
        options = {"cwd": str(self.folder), "snapshot": "off", **options}
        planned = plan.plan(requested(argv=argv, repeats=repeats, **options))
        return plan.store(self.layout, planned).jobs[0]

    def worker(
        self, stop_at: str = "", *arguments: str, module: str = forked_worker.MODULE
    ) -> ForkedWorker | subprocess.Popen[bytes]:
        """Start a worker; with `stop_at`, it or its warden stops itself there."""
        env = {**os.environ, "MPSQ_STOP_DIR": str(self.stops)}
        if stop_at:
            env["MPSQ_STOP_AT"] = stop_at
        worker: ForkedWorker | subprocess.Popen[bytes]
        with (self.folder / "worker.log").open("ab") as log:
            if module == forked_worker.MODULE and forked_worker.can_be_forked():
                worker = ForkedWorker(arguments, env, log)
            else:
                worker = subprocess.Popen([sys.executable, "-m", module, *arguments], env=env, stdout=log, stderr=log)
        self._workers.append(worker)
        return worker

    def stopped(self, point: str) -> int:
        """Wait until a process has stopped at the point; returns its pid."""
        marker = until(lambda: next(self.stops.glob(f"{point}.*"), None), f"stop at {point}")
        pid = int(marker.name.rsplit(".", 1)[1])
        until(lambda: state_of(pid) == "T", f"{pid} stopping")
        marker.unlink()
        return pid

    def rows(self) -> list[named_rows.Row]:
        with read.reading(self.layout.db) as connection:
            return named_rows.runs(connection)

    def done(self, count: int = 1, limit_s: float = UNTIL_S) -> list[named_rows.Row]:
        """Wait until `count` runs are DONE; returns all rows."""
        until(
            lambda: self._ended() >= count,
            lambda: f"{count} runs done\n{self.log()}",
            limit_s,
        )
        return self.rows()

    def _ended(self) -> int:
        with read.reading(self.layout.db) as connection:
            return len(connection.execute("SELECT 1 FROM runs WHERE state = 'DONE'").fetchall())

    def written(self) -> list[str]:
        """The lines of the journal so far."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def verbs(self, job: int) -> list[str]:
        with read.reading(self.layout.db) as connection:
            return [event["verb"] for event in named_rows.events(connection, job)]

    def log(self) -> str:
        path = self.folder / "worker.log"
        return path.read_text()[-3000:] if path.exists() else ""

    def token(self) -> str:
        with sqlite3.connect(f"file:{self.layout.db}?mode=ro", uri=True) as connection:
            return str(connection.execute("SELECT token FROM runs WHERE token IS NOT NULL").fetchone()[0])

    def close(self) -> None:
        """End every worker and everything that its runs may have left."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()
        with sqlite3.connect(self.layout.db) as connection:
            tokens = [row[0] for row in connection.execute("SELECT token FROM runs WHERE token IS NOT NULL")]
        for path in self.layout.runs.glob("*/warden"):
            _kill_warden(path.parent)
        for token in tokens:
            processes.end_all(processes.Traces(tag=token), 0, 0)


def _kill_warden(folder: Path) -> None:
    words = {str(folder), str(folder / "warden.py")}  # the second is 0.1's
    for process in psutil.process_iter(["cmdline"]):
        if words & {*(process.info["cmdline"] or ())}:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def warden_pid(layout: Layout, run: str) -> int:
    """The warden's pid, from the fence that it wrote."""
    import json

    path = layout.run_dir(run) / "warden" / "started"
    until(path.exists, "the fence")
    return int(json.loads(path.read_text())["warden_pid"])
