"""Workers forked by a server that has imported their code, for tests of what a worker does rather than how it starts.

A forked worker is a process with the default signals and an environment, log and working directory of its test, as
`python -m queue_runner.worker` is, without half a second of imports. The server has one thread and opens nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from queue_runner import extensions

MODULE = "queue_runner.worker"
_USED_LATER = ("sqlalchemy.dialects.sqlite", f"{MODULE}.main_loop")
_INHERITED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_LINUX_WITHOUT_CAMPAIGN = sys.platform.startswith("linux") and os.environ.get("MPSQ_CAMPAIGN") != "long"
"""A Mac's libraries do not survive a fork, and `make campaign` starts each worker as users do."""
_MOST_BYTES = 1 << 17
_ENVIRONMENT = dict(os.environ)
"""The environment in which the tests were started."""


def can_be_forked() -> bool:
    """Return whether a worker would import the same code: Python reads its variables only when it starts."""

    def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if name.startswith("PYTHON")}

    return _LINUX_WITHOUT_CAMPAIGN and read_at_start(os.environ) == read_at_start(_ENVIRONMENT)


class ForkedWorker:
    """A worker with the methods of subprocess.Popen that tests use. It is a child of the server, which reaps it."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str], output: IO[bytes]) -> None:
        self.returncode: int | None = None
        self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with status:
            ignored = [number for number in _INHERITED if signal.getsignal(number) == signal.SIG_IGN]
            os.umask(mask := os.umask(0o077))
            request = {"arguments": arguments, "environment": environment, "cwd": str(Path.cwd())}
            request |= {"ignored": ignored, "umask": mask}
            files = [output.fileno(), status.fileno()]
            socket.send_fds(_server(), [json.dumps(request).encode()], files)
        self.pid = int(self._status.recv(64))

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(MODULE, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its status is on the way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            self.returncode = os.waitstatus_to_exitcode(int(self._status.recv(64)))
            self._status.close()
        return self.returncode


@functools.cache
def _server() -> socket.socket:
    """Start the server of this process; it ends with the connection. It has no variable of the test that happens to
    start it: by those, tests find what they have to end."""
    local, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with remote:
        command = [sys.executable, "-m", __name__, str(remote.fileno())]
        process = subprocess.Popen(command, pass_fds=[remote.fileno()], cwd=Path(__file__).parents[1], env=_ENVIRONMENT)
    atexit.register(process.wait)
    atexit.register(local.close)
    return local


def _serve(control: socket.socket) -> None:
    """Fork a worker for each request, and report how each ends. Returns in a worker; exits with the connection."""
    awake, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status_of: dict[int, socket.socket] = {}
    while True:
        ready = select.select([control, awake], [], [])[0]
        if awake in ready:
            awake.recv(4096)
            while status_of and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with status_of.pop(ended[0]) as status:
                    _send(status, ended[1])
        if control not in ready:
            continue
        message, files, _, _ = socket.recv_fds(control, _MOST_BYTES, 2)
        if not message:
            os._exit(0)
        output, status = files[0], socket.socket(fileno=files[1])
        if pid := os.fork():
            status_of[pid] = status
            os.close(output)
            _send(status, pid)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (control, awake, waker, status, *status_of.values()):
            end.close()
        _become(json.loads(message), output)
        return


def _send(status: socket.socket, number: int) -> None:
    try:
        status.send(str(number).encode())
    except OSError:  # the test no longer wants to know
        status.close()


def _become(request: dict[str, Any], output: int) -> None:
    """Take over what the test gives its worker."""
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.umask(request["umask"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.chdir(request["cwd"])
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    sys.argv = [MODULE, *request["arguments"]]
    sys.path[0] = request["cwd"]


if __name__ == "__main__":
    for name in _USED_LATER:
        importlib.import_module(name)
    for extension in extensions.installed():
        if extension.worker_part:
            extensions.load(extension.worker_part)
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(MODULE, run_name="__main__")
