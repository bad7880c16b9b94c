"""Queries to small system tools. A failed query means unknown: None, never an error."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO

Ask = Callable[[Sequence[str]], str | None]
"""A function that runs a command and returns its stdout; None when it is missing, fails or times out."""

TIMEOUT_S = 10.0


def ask(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str | None:
    """Return the output of a command, None when it fails. Its messages are discarded."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=plain_environment(),
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def plain_environment() -> dict[str, str]:
    """Return an environment for English messages and the true macOS version (sw_vers prints 10.16 or 16.0 in
    compatibility mode)."""
    return {**os.environ, "LC_ALL": "C", "SYSTEM_VERSION_COMPAT": "0"}


class PolledCommand:
    """A repeated query that never blocks: an answer is available one sample after it was requested.

    A tool that takes 10 to 300 ms would delay the worker; here it runs beside it, one process at a time.
    """

    def __init__(self, argv: Sequence[str], every_s: float) -> None:
        self._argv = list(argv)
        self._every_s = every_s
        self._due = 0.0
        self._started = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._answer: str | None = None
        self._answered_s: float | None = None

    @property
    def answered_s(self) -> float | None:
        """Time, on the caller's clock, at which the query of the latest answer started; None before the first."""
        return self._answered_s

    def latest(self, now_s: float | None = None) -> str | None:
        """Return the newest answer, None before the first or when the tool fails. Start a new query when it is due."""
        now = time.monotonic() if now_s is None else now_s
        self._collect(now)
        if self._process is None and now >= self._due:
            self._start(now)
        return self._answer

    def close(self) -> None:
        """End a query that is still running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _start(self, now: float) -> None:
        self._due = now + self._every_s
        self._started = now
        try:
            self._output = tempfile.TemporaryFile()  # noqa: SIM115 - a file, since a full pipe would block the tool
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                env=plain_environment(),
            )
        except OSError:
            self._answer = None
            self._due = float("inf")  # the tool is missing: do not retry
            self._forget()

    def _collect(self, now: float) -> None:
        if self._process is None or self._output is None:
            return
        code = self._process.poll()
        if code is None:
            if now - self._started > TIMEOUT_S:
                self._answer = None
                self.close()
            return
        self._answered_s = self._started
        self._output.seek(0)
        self._answer = self._output.read().decode("utf-8", "replace") if code == 0 else None
        self._forget()

    def _forget(self) -> None:
        if self._output is not None:
            self._output.close()
        self._process = None
        self._output = None
