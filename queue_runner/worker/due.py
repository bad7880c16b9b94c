"""The schedules that are due: the worker runs each one's stored command line, `mpsq submit ...`, in a child process.

It does so while none of its runs is on the accelerator: a submission only queues, so it can wait until a measurement
has ended. The child stores the jobs and advances the schedule in one transaction (submit/timetable.py). The worker only
starts it, ends one that takes too long, and records why one has failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from typing import IO

from queue_runner.errors import UsageError
from queue_runner.host import job_environments, job_secrets
from queue_runner.paths import Layout
from queue_runner.source import verify
from queue_runner.store import schedules
from queue_runner.store.engine import Engine, looking, writing
from queue_runner.store.schedules import StoredCommand
from queue_runner.submit.cron import Cron

PATIENCE_S = 5.0
"""How long the worker waits for a submission while it does nothing else."""
_RETRY_S = 60.0
"""Time between two attempts at a submission that the store refused, on a full disk for example."""
_INVALID = 2
"""The exit code of `mpsq submit` for a command line that cannot be submitted."""
_ADD_AGAIN = "bring it back, or remove the schedule and add it again"
_IN_ITS_FOLDER = f"""
import os, sys
try:
    os.chdir(sys.argv[1])
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"error: {{error.filename or sys.argv[2]}}: {{error.strerror}} ({_ADD_AGAIN})")
    is_gone = isinstance(error, (FileNotFoundError, NotADirectoryError, PermissionError))
    sys.exit({_INVALID} if is_gone else 1)
"""
"""Runs a program in a folder. The worker must not enter it: on a network drive that is gone, all its threads would wait
in the kernel."""


class DueSchedules:
    """Submits due schedules, one after another. Close it."""

    def __init__(self, layout: Layout, engine: Engine, log: Callable[[str], None]) -> None:
        self._layout, self._engine, self._log = layout, engine, log
        self._child: _Child | None = None
        self._not_before = 0.0  # monotonic

    @property
    def is_submitting(self) -> bool:
        return self._child is not None

    def submit(self, patience_s: float = PATIENCE_S) -> None:
        """Submit each due schedule once. One that takes longer than `patience_s` continues at the next call.

        Raises: MpsqError when the store refuses.
        """
        if self._child is not None:
            commands, patience_s = [self._child.command], 0.0
        elif time.monotonic() < self._not_before:
            return
        else:
            with looking(self._engine) as connection:
                commands = schedules.commands(connection, due_at=time.time())
        for command in commands:
            try:
                self._child = self._child or _Child(self._layout, command)
            except job_secrets.Missing as error:
                self._refuse(command, f"{error.message} ({_ADD_AGAIN})", is_final=True)
                continue
            except OSError as error:
                self._refuse(command, str(error), is_final=False)
                return
            if not self._child.wait(patience_s):
                return
            code, output = self._child.result()
            self.close()
            if code == 0:
                self._log(f"schedule {command.name}: submitted")
            else:
                self._refuse(command, output, is_final=code in (None, _INVALID))

    def set_right(self, now: float) -> None:
        """Compute anew the next time of a schedule that would miss two times or more: a clock that has since been set
        back made it. Raises: MpsqError when the store refuses."""
        with looking(self._engine) as connection:
            commands = schedules.commands(connection)
        for command in commands:
            with contextlib.suppress(UsageError):  # of the stored line, which is reported once it is due
                times = [*islice(Cron(command.cron, command.timezone).times_after(now), 2)]
                if command.next_at is None or len(times) < 2 or command.next_at <= times[1]:
                    continue
                assert command.id is not None
                with writing(self._engine) as connection:
                    if command in schedules.commands(connection):  # nobody has changed it
                        schedules.set_next(connection, command.id, times[0])
                self._log(f"schedule {command.name}: the clock was set back, so its next time was computed anew")

    def _refuse(self, command: StoredCommand, reason: str, *, is_final: bool) -> None:
        """Record why nothing was submitted. Advance to the next time if that is final; without one the schedule is
        paused. Else try again after _RETRY_S."""
        assert command.id is not None
        now = time.time()
        following = command.next_at
        if is_final:
            try:
                following = Cron(command.cron, command.timezone).next_after(now)
            except UsageError as error:
                following, reason = None, error.message
        else:
            self._not_before = time.monotonic() + _RETRY_S
        dated = f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(now))}: {reason}"
        with writing(self._engine) as connection:
            if schedules.advance(connection, command.id, command.next_at, following, None, dated):
                self._log(f"schedule {command.name}: nothing was submitted: {reason}")

    def close(self) -> None:
        """End a submission that has not ended."""
        if self._child is not None:
            self._child.close()
            self._child = None


class _Child:
    """`mpsq submit` with the stored words, environment, interpreter and folder, in a session of its own.

    Raises: OSError when there can be no process; job_secrets.Missing when its environment is gone.
    """

    def __init__(self, layout: Layout, command: StoredCommand) -> None:
        self.command = command
        self._deadline = time.monotonic() + verify.READ_S
        ours = {name: value for name, value in os.environ.items() if name.startswith("MPSQ_")}
        env = job_environments.read(layout, command.env_file) | ours | {"MPSQ_HOME": str(layout.home)}
        # -P: a module-like file name in the folder must not take its place
        argv = [command.python or sys.executable, "-P", "-m", "queue_runner.cli", "submit", f"--schedule={command.id}"]
        argv = [sys.executable, "-I", "-S", "-c", _IN_ITS_FOLDER, command.cwd, *argv]
        argv += json.loads(command.command_json)
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - a file, since a full pipe would block it
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._output, "stderr": self._output}
        self._process = subprocess.Popen(argv, cwd="/", env=env, start_new_session=True, **streams)  # type: ignore[call-overload]

    def wait(self, patience_s: float) -> bool:
        """Wait for its end or its deadline; return whether either has come."""
        remaining_s = self._deadline - time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(min(patience_s, remaining_s), 0))
        return self._process.returncode is not None or remaining_s <= patience_s

    def result(self) -> tuple[int | None, str]:
        """Return its exit code, None if it has not ended, and its output: of an error only that, with its hint."""
        if self._process.returncode is None:
            return None, f"it was not submitted within {verify.READ_S:.0f} s: mpsq doctor"
        self._output.seek(0)
        error = self._output.read().decode("utf-8", "replace").rpartition("error: ")[2]
        return self._process.returncode, " ".join(error.replace("\n\nhint: ", "; ").split())

    def close(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended (macOS: EPERM)
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that waits in the kernel may stay
                self._process.wait(1.0)
        self._output.close()
