"""Workers and commands forked by a server that has imported their code: for tests of what they do, not how they start.

A forked program is a process with the default signals and an environment, files and working directory of its test, as
`python -m queue_runner.worker` is, without the imports: half a second of a worker, a quarter of a command. The server
has one thread and opens nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from queue_runner import extensions

WORKER, COMMAND, READER = "queue_runner.worker", "queue_runner.cli", "queue_runner.bundles.reader"
CODE = "tests.run_code"
"""The module of a worker or command that is given as code."""
_COMMANDS = ("run", "report", "cancel", "pause", "rerun", "retry", "show", "status")
_USED_LATER = {
    WORKER: ("sqlalchemy.dialects.sqlite", f"{WORKER}.main_loop"),
    COMMAND: (
        *(f"{COMMAND}.{name}" for name in ("main", *_COMMANDS)),
        *(f"queue_runner.referee.{name}" for name in ("judge_command", "contest_command", "bisect_command", "answer")),
        *("queue_runner.submit.plan", "queue_runner.source.snapshot", f"{WORKER}.start_worker"),
        *(f"queue_runner.monitor.{name}" for name in ("forecast", "round_table", "show_text", "status_text")),
        *("queue_runner.control.new_attempts", "queue_runner.reports.devices", "queue_runner.bundles.merge"),
    ),
    READER: ("queue_runner.bundles.rows",),
}
"""The modules that each kind of program imports in most tests."""
_INHERITED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_LINUX_WITHOUT_CAMPAIGN = sys.platform.startswith("linux") and os.environ.get("MPSQ_CAMPAIGN") != "long"
"""A Mac's libraries do not survive a fork, and `make campaign` starts each program as users do."""
_MOST_BYTES = 1 << 17
_ENVIRONMENT = dict(os.environ)
"""The environment in which the tests were started."""


def can_be_forked() -> bool:
    """Return whether a program would import the same code: Python reads its variables only when it starts."""

    def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if name.startswith("PYTHON")}

    return _LINUX_WITHOUT_CAMPAIGN and read_at_start(os.environ) == read_at_start(_ENVIRONMENT)


class ForkedProgram:
    """A program with what tests use of subprocess.Popen. It is a child of the server, which reaps it."""

    def __init__(
        self,
        kind: str,
        module: str,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        cwd: Path,
        *files: IO[Any],
    ) -> None:
        """Start it. `files` are its stdout, stderr, and stdin if it reads one."""
        self.args = [module, *arguments]
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with status:
            ignored = [number for number in _INHERITED if signal.getsignal(number) == signal.SIG_IGN]
            os.umask(mask := os.umask(0o077))
            request = {"words": self.args, "environment": dict(environment), "cwd": str(cwd)}
            request |= {"ignored": ignored, "umask": mask}
            descriptors = [file.fileno() for file in (status, *files)]
            socket.send_fds(_server(kind), [json.dumps(request).encode()], descriptors)
        self.pid = int(self._status.recv(64))

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        if (code := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        def rest(stream: IO[Any] | None) -> Any:
            return stream.read() if stream is not None and not stream.closed else None

        with ThreadPoolExecutor(2) as threads:
            out, err = threads.map(rest, (self.stdout, self.stderr))
        self.close()
        self.wait(timeout)
        return out, err

    def close(self) -> None:
        """Close our ends of its pipes."""
        for stream in filter(None, (self.stdin, self.stdout, self.stderr)):
            with contextlib.suppress(BrokenPipeError):
                stream.close()

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


Worker = ForkedProgram | subprocess.Popen[bytes]
Command = ForkedProgram | subprocess.Popen[str]


def worker(arguments: tuple[str, ...], environment: Mapping[str, str], log: IO[bytes], module: str = WORKER) -> Worker:
    """Start a worker whose output goes to a log. `module` may be one that changes the worker first."""
    if can_be_forked():
        return ForkedProgram(WORKER, module, arguments, environment, Path.cwd(), log, log)
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env=environment, stdout=log, stderr=log)


def work(**variables: str) -> None:
    """Run a worker until nothing waits."""
    with Path(os.devnull).open("wb") as nowhere:
        assert worker(("--until-idle",), {**os.environ, **variables}, nowhere).wait() == 0


def command(*arguments: str, cwd: Path | None = None, module: str = COMMAND, **variables: str) -> Command:
    """Start an mpsq command with its output in pipes. `module` may be one that changes the command first."""
    environment = {**os.environ, **variables}
    if not can_be_forked():
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=cwd, env=environment, text=True, **pipes
        )
    ends = [os.pipe() for _ in range(2)]
    with os.fdopen(ends[0][1], "w") as out, os.fdopen(ends[1][1], "w") as err:
        started = ForkedProgram(COMMAND, module, arguments, environment, cwd or Path.cwd(), out, err)
    started.stdout, started.stderr = (os.fdopen(end, encoding="utf-8") for end, _ in ends)
    return started


def reader(command: list[str], **options: Any) -> ForkedProgram | subprocess.Popen[bytes]:
    """Start the process that opens bundles, as bundles.reading does with subprocess.Popen."""
    if not can_be_forked():
        return subprocess.Popen(command, **options)
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    with os.fdopen(their_in, "rb") as stdin, os.fdopen(their_out, "wb") as stdout, open(os.devnull, "wb") as stderr:
        started = ForkedProgram(READER, READER, (), os.environ, Path.cwd(), stdout, stderr, stdin)
    started.stdin, started.stdout = os.fdopen(our_out, "wb"), os.fdopen(our_in, "rb")
    return started


def run(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run an mpsq command to its end, in a process of its own."""
    started = command(*arguments, cwd=cwd, **variables)
    out, err = started.communicate()
    return subprocess.CompletedProcess(arguments, started.wait(), out, err)


@functools.cache
def _server(kind: str) -> socket.socket:
    """Start the server of a kind of program for this process; it ends with the connection. It has no variable of the
    test that happens to start it: by those, tests find what they have to end."""
    local, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with remote:
        words = [sys.executable, "-m", __name__, kind, str(remote.fileno())]
        process = subprocess.Popen(words, pass_fds=[remote.fileno()], cwd=Path(__file__).parents[1], env=_ENVIRONMENT)
    atexit.register(process.wait)
    atexit.register(local.close)
    return local


def _serve(control: socket.socket) -> None:
    """Fork a program for each request, and report how each ends. Returns in a program; exits with the connection."""
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
        message, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 4)
        if not message:
            os._exit(0)
        status, files = socket.socket(fileno=descriptors[0]), descriptors[1:]
        if pid := os.fork():
            status_of[pid] = status
            for file in files:
                os.close(file)
            _send(status, pid)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (control, awake, waker, status, *status_of.values()):
            end.close()
        _become(json.loads(message), files)
        return


def _send(status: socket.socket, number: int) -> None:
    try:
        status.send(str(number).encode())
    except OSError:  # the test no longer wants to know
        status.close()


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Take over what the test gives its program."""
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.umask(request["umask"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    os.chdir(request["cwd"])
    for standard, file in zip((1, 2, 0), files, strict=False):
        os.dup2(file, standard)
        os.close(file)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, closefd=False)
    sys.argv = request["words"]
    sys.path[0] = request["cwd"]


def _import(kind: str) -> None:
    for name in _USED_LATER[kind]:
        importlib.import_module(name)
    if kind == WORKER:
        for extension in extensions.installed():
            if extension.worker_part:
                extensions.load(extension.worker_part)
    gc.freeze()  # no program walks over what it shares with the server, nor copies it


if __name__ == "__main__":
    _import(sys.argv[1])
    _serve(socket.socket(fileno=int(sys.argv[2])))
    runpy.run_module(sys.argv[0], run_name="__main__")
