"""A real queue for process tests: real workers, wardens and jobs, ended by the ids we hold."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import psutil

from queue_runner.host import locks, processes
from queue_runner.model import parse_selector
from queue_runner.monitor import explanation
from queue_runner.paths import Layout
from queue_runner.store import read
from queue_runner.submit import plan
from queue_runner.warden import process_tree
from queue_runner.worker import warden_starter
from tests import forked_programs, named_rows
from tests.patience import UNTIL_S, until
from tests.process_support import state_of, variables_of
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
        self._programs: list[forked_programs.Worker | forked_programs.Command] = []

    def submit(self, script: str, repeats: int = 1, **options: Any) -> int:
        """Queue a shell script; returns the job's id. `$J` in it is the journal. On Slurm it is one block at first."""
        if options.get("on") == "slurm":
            options.setdefault("nodes_at_once", 1)
        argv = ("/bin/sh", "-c", script.replace("$J", str(self.journal)))
        options = {"cwd": str(self.folder), "snapshot": "off", **options}
        planned = plan.plan(requested(argv=argv, repeats=repeats, **options))
        return plan.store(self.layout, planned).jobs[0]

    def worker(
        self, stop_at: str = "", *arguments: str, module: str = forked_programs.WORKER
    ) -> forked_programs.Worker:
        """Start a worker; with `stop_at`, it or its warden stops itself there."""
        with (self.folder / "worker.log").open("ab") as log:
            worker = forked_programs.worker(arguments, {**os.environ, **self._stopping(stop_at)}, log, module)
        self._programs.append(worker)
        return worker

    def adopted_by(self, worker: forked_programs.Worker) -> None:
        """Wait until this worker holds the queue."""
        lock = locks.worker_lock_path(self.layout.home)
        until(lambda: (locks.read_holder(lock) or {}).get("pid") == worker.pid, "the new worker")

    def command(self, *arguments: str, stop_at: str = "") -> forked_programs.Command:
        """Start an mpsq command with its output in pipes; with `stop_at`, it stops itself there."""
        command = forked_programs.command(*arguments, cwd=self.folder, **self._stopping(stop_at))
        self._programs.append(command)
        return command

    def _stopping(self, stop_at: str) -> dict[str, str]:
        return {"MPSQ_STOP_DIR": str(self.stops), **({"MPSQ_STOP_AT": stop_at} if stop_at else {})}

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

    def why(self, id: str) -> str:
        """Return the output of `mpsq why` for a job or a run."""
        with read.reading(self.layout.db) as connection:
            return explanation.explain_all(self.layout, connection, [parse_selector(id)])[0].sentence

    def log(self) -> str:
        path = self.folder / "worker.log"
        return path.read_text()[-3000:] if path.exists() else ""

    def token(self) -> str:
        with sqlite3.connect(f"file:{self.layout.db}?mode=ro", uri=True) as connection:
            return str(connection.execute("SELECT token FROM runs WHERE token IS NOT NULL").fetchone()[0])

    def close(self) -> None:
        """End every program and everything that its runs may have left."""
        for program in self._programs:
            if program.poll() is None:
                program.send_signal(signal.SIGCONT)
                program.kill()
            program.wait()
            for stream in filter(None, (program.stdout, program.stderr)):
                stream.close()
        with sqlite3.connect(self.layout.db) as connection:
            states = dict(connection.execute("SELECT token, state FROM runs WHERE token IS NOT NULL"))
        if folders := [path.parent for path in self.layout.runs.glob("*/warden")]:
            _kill_wardens(self.layout.home, folders)
        variables = {word for pid in psutil.pids() for word in process_tree.environment(pid)} if states else set()
        for token, state in states.items():
            if state == "RUNNING" or f"MPSQ_TAG={token}".encode() in variables:
                processes.end_all(processes.Traces(tag=token), 0, 0)


def _kill_wardens(home: Path, folders: list[Path]) -> None:
    """Kill the queue's wardens, those of 0.1 too, and what forks them."""
    of_0_1 = {str(folder / "warden.py") for folder in folders}
    for process in psutil.process_iter(["cmdline"]):
        words = {*(process.info["cmdline"] or ())}
        is_ours = warden_starter.PROGRAM in words and variables_of(process.pid).get("MPSQ_HOME") == str(home)
        if is_ours or of_0_1 & words:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def warden_pid(layout: Layout, run: str) -> int:
    """The warden's pid, from the fence that it wrote."""
    import json

    path = layout.run_dir(run) / "warden" / "started"
    until(path.exists, "the fence")
    return int(json.loads(path.read_text())["warden_pid"])
