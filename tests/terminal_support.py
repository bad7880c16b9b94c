"""A terminal for process tests: a pseudo-terminal of the standard library, with a command in its foreground."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from typing import Any

from tests.queue_support import until

_RUN = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that its Ctrl-C and Ctrl-Z come to this session
from queue_runner.cli.main import entry
entry()
"""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`mpsq ARGUMENTS` on a terminal of 80 x 24."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.fd, slave = os.openpty()
        self.resize(80, 24)
        env = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1", **environment}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            env.pop(name, None) if name not in environment else None
        self.attributes = termios.tcgetattr(slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _RUN, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=env,
        )
        self._slave = slave  # kept open: a terminal does not vanish with its program
        os.set_blocking(self.fd, False)
        self.raw = ""
        self._from = 0

    def read(self) -> str:
        """All that was written so far, escape sequences included."""
        try:
            while data := os.read(self.fd, 1 << 16):
                self.raw += data.decode("utf-8", "replace")
        except BlockingIOError:
            pass
        return self.raw

    def forget(self) -> None:
        """From now on `shows` looks at what comes new."""
        self._from = len(self.read())

    def shows(self, *texts: str) -> str:
        """Wait until all texts have been written; returns what was, without escape sequences."""

        def written() -> str | None:
            plain = _ESCAPES.sub("", self.read()[self._from :])
            return plain if all(text in plain for text in texts) else None

        try:
            return str(until(written, f"{texts} on the terminal", 20.0))
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {self.read()[-3000:]!r}") from None

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def is_restored(self) -> bool:
        """Whether the terminal is as it was: its settings, its own screen, its cursor."""
        settings: list[Any] = termios.tcgetattr(self._slave)
        screens = re.findall(r"\x1b\[\?(1049|25)([hl])", self.read())
        last = dict(screens)
        return settings == self.attributes and last.get("1049", "l") == "l" and last.get("25", "h") == "h"

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self.fd)
