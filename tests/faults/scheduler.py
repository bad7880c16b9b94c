"""APScheduler 3.11 as far as the worker uses it: jobs at intervals, one thread for each executor, of each job one
instance that runs and one that waits. It reads the wall clock, and waits by the other one, as the original does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from apscheduler.jobstores.base import JobLookupError

from tests.faults.calls import Thread, task


@dataclass
class Job:
    """A job and when it is due (Unix seconds)."""

    id: str
    function: Callable[[], object]
    every_s: float
    due_at: float
    executor: str
    most: int
    n_instances: int = 0
    scheduler: Any = field(default=None, repr=False)

    def modify(self, next_run_time: datetime) -> None:
        self.scheduler.modify_job(self.id, next_run_time=next_run_time)


class SimulatedScheduler:
    """A BackgroundScheduler in greenlets."""

    def __init__(self, executors: dict[str, object], job_defaults: dict[str, Any], timezone: object) -> None:
        self._executors: dict[str, list[Job]] = {name: [] for name in executors}
        self._most = job_defaults["max_instances"]
        self._jobs: dict[str, Job] = {}
        self._is_awake = self._is_paused = self._is_over = False
        self._n_running = 0

    def add_job(
        self,
        function: Callable[[], object],
        trigger: str,
        *,
        seconds: float,
        id: str,
        executor: str = "default",
        max_instances: int | None = None,
        next_run_time: datetime | None = None,
    ) -> None:
        due_at = time.time() + seconds if next_run_time is None else next_run_time.timestamp()
        self._jobs[id] = Job(id, function, seconds, due_at, executor, max_instances or self._most, scheduler=self)
        self._is_awake = True

    def start(self) -> None:
        Thread(self._schedule, name="scheduler").start()
        for name in self._executors:
            Thread(self._execute, [name], name=f"executor {name}").start()

    def get_jobs(self) -> list[Job]:
        return list(self._jobs.values())

    def modify_job(self, id: str, *, next_run_time: datetime) -> None:
        if self._is_over or id not in self._jobs:
            raise JobLookupError(id)
        self._jobs[id].due_at = next_run_time.timestamp()
        self._is_awake = True

    def reschedule_job(self, id: str, *, trigger: str, seconds: float) -> None:
        job = self._jobs[id]
        job.every_s, job.due_at = seconds, time.time() + seconds
        self._is_awake = True

    def pause(self) -> None:
        self._is_paused = True

    def shutdown(self, *, wait: bool) -> None:
        self._is_over = self._is_awake = True
        _machine().wait(lambda: not self._n_running)

    def _schedule(self) -> None:
        while not self._is_over:
            self._is_awake = False
            now, next_due = time.time(), None
            for job in self._jobs.values():
                if job.due_at <= now and not self._is_paused:
                    while job.due_at + job.every_s <= now:
                        job.due_at += job.every_s  # coalesced
                    if job.n_instances < job.most:
                        job.n_instances += 1
                        self._executors[job.executor].append(job)
                    job.due_at += timedelta(seconds=job.every_s).total_seconds()
                next_due = job.due_at if next_due is None else min(next_due, job.due_at)
            wait_s = None if next_due is None or self._is_paused else max(next_due - now, 0.0)
            _machine().wait(lambda: self._is_awake, wait_s)

    def _execute(self, name: str) -> None:
        waiting = self._executors[name]
        while True:
            _machine().wait(lambda: bool(waiting) or self._is_over)
            if self._is_over:
                return
            job = waiting.pop(0)
            self._n_running += 1
            try:
                job.function()
            finally:
                self._n_running -= 1
                job.n_instances -= 1


def _machine() -> Any:
    now = task()
    assert now is not None
    return now.machine
