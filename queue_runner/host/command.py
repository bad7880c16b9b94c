"""Ask a small tool of the system a question. What cannot be asked is not known: None, never an error."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO

Ask = Callable[[Sequence[str]], str | None]
"""Runs a command and returns what it wrote to stdout; None when it is not there, fails or takes too long."""

TIMEOUT_S = 10.0


def ask(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str | None:
    """The output of a command that works, else None. Its messages are not shown."""
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
    """English messages, and the true version of macOS (sw_vers says 10.16 or 16.0 in compatibility mode)."""
    return {**os.environ, "LC_ALL": "C", "SYSTEM_VERSION_COMPAT": "0"}


class Asked:
    """A question asked again and again without ever waiting: an answer is there one sample after it was asked for.

    A tool of 10 to 300 ms would hold up the worker; here it runs beside it, once at a time.
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
        """When, on the caller's clock, the question of the latest answer was asked; None before the first."""
        return self._answered_s

    def latest(self, now_s: float | None = None) -> str | None:
        """The newest answer; None while there is none, and again when the tool fails. Asks anew when it is time."""
        now = time.monotonic() if now_s is None else now_s
        self._collect(now)
        if self._process is None and now >= self._due:
            self._start(now)
        return self._answer

    def close(self) -> None:
        """End a question that is still under way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _start(self, now: float) -> None:
        self._due = now + self._every_s
        self._started = now
        try:
            self._output = tempfile.TemporaryFile()  # noqa: SIM115 - a file, since a full pipe would stop the tool
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                env=plain_environment(),
            )
        except OSError:
            self._answer = None
            self._due = float("inf")  # the tool is not here: it will not come
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
