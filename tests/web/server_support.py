"""`mpsq web` as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Server:
    """`mpsq web` as a process, ended as Ctrl-C ends it."""

    def __init__(self, home: Path, *options: str) -> None:
        command = [sys.executable, "-m", "queue_runner.cli", "web", "--port", "0", *options]
        env = {**os.environ, "MPSQ_HOME": str(home)}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http://127.0.0.1:"), self.process.stderr
        self.base = self.address.partition("/?")[0]

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Return the exit code and what was written to stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, err = self.process.communicate()
        return self.process.returncode, err


@contextmanager
def served(home: Path, *options: str) -> Iterator[Server]:
    server = Server(home, *options)
    try:
        yield server
    finally:
        code, err = server.end()
        assert code == 0 and "Traceback" not in err, err
