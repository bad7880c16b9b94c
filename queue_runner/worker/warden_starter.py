"""Starts wardens through a process that forks them, and knows which have ended (docs/supervision.md)."""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from importlib.abc import InspectLoader
from importlib.util import find_spec
from pathlib import Path

from queue_runner.host.run_dir import RunDir
from queue_runner.warden.instructions import FDS_AT_ONCE, FDS_WORD, REQUEST_END, SOMETHING_LEFT

_MODULES = (
    *("files", "instructions", "limits", "output_order", "process_tree", "spawn", "suspend", "supervise"),
    "fork_server",
)
"""The modules of the warden. Each imports only earlier ones."""
PROGRAM = """
import marshal, os, sys
for name, code in marshal.loads(sys.stdin.buffer.read()):
    module = sys.modules[name] = type(sys)(name)
    exec(code, vars(module))
os._exit(module.main(sys.argv[1]))
"""
ANSWER_S = 5.0
"""How long the process may take to fork a warden, its own start included; the other lanes wait meanwhile. Then nobody
listens to it any more: it serves the request and ends."""
EXIT_S = 1.0
"""How long its end may take: one that waits in the kernel stays."""
REST_S = 10.0
"""How long it stays without a warden."""


@cache
def warden_code() -> bytes:
    """Return the modules of the warden, compiled. A worker reads them once, at its start: a later upgrade of mpsq
    changes no warden that it starts."""
    names = ["queue_runner", "queue_runner.warden", *(f"queue_runner.warden.{name}" for name in _MODULES)]
    return marshal.dumps([(name, _compiled(name)) for name in names])


def _compiled(name: str) -> object:
    spec = find_spec(name)
    assert spec is not None and isinstance(spec.loader, InspectLoader)
    return spec.loader.get_code(name)


class _ForkServer:
    """A process that forks wardens, and our end of the socket to it."""

    def __init__(self, folder: Path) -> None:
        """Start it. Raises: OSError when it cannot be."""
        with contextlib.ExitStack() as undo:
            self._socket, its_end = (undo.enter_context(end) for end in socket.socketpair())
            self._errors = undo.enter_context(tempfile.TemporaryFile(dir=folder))
            with its_end, tempfile.TemporaryFile(dir=folder) as code:
                code.write(warden_code())
                code.seek(0)
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", "-c", PROGRAM, str(its_end.fileno())],
                    stdin=code,
                    stdout=self._errors,
                    stderr=self._errors,
                    pass_fds=[its_end.fileno()],
                    start_new_session=True,
                    cwd="/",
                )
            self._files = undo.pop_all()
        self._received = b""

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def request(self, folder: Path, lane_fds: Sequence[int]) -> None:
        """Ask for a warden. Raises: OSError if the process cannot have the whole request."""
        for at in range(0, len(lane_fds), FDS_AT_ONCE):
            socket.send_fds(self._socket, [FDS_WORD], lane_fds[at : at + FDS_AT_ONCE])
        self._socket.sendall(b"%d %b" % (len(lane_fds), os.fsencode(folder)) + REQUEST_END)

    def line(self, at_most_s: float) -> bytes | None:
        """Return the next line; b"" if the process has ended, None if neither comes in time."""
        while b"\n" not in self._received:
            try:
                if not select.select([self._socket], [], [], max(at_most_s, 0.0))[0]:
                    return None
                part = self._socket.recv(4096)
            except (OSError, ValueError):  # ValueError: a descriptor beyond what select can look at
                part = b""
            if not part:
                return b""
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line

    def leave(self, at_most_s: float = 0.0) -> bytes:
        """Let the process end, and wait for that; return what it has written so far."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(at_most_s)
        try:
            self._errors.seek(0)
            return bytes(self._errors.read())
        except OSError as error:
            return str(error).encode()
        finally:
            self._files.close()


class WardenStarter:
    """Starts wardens through a process that forks them, and knows which have ended. Close it; the wardens go on."""

    def __init__(self, folder: Path) -> None:
        """`folder` takes temporary files without a name."""
        self._folder = folder
        self._server: _ForkServer | None = None
        self._wardens: dict[int, int | None] = {}  # the exit code of each, None while it lives
        self._rests_at = 0.0

    def get_ready(self) -> _ForkServer:
        """Start the process that forks, unless it is there. Raises: OSError when it cannot be."""
        self._rests_at = time.monotonic() + REST_S
        if self._server is None or not self._server.is_alive:
            self.close()
            self._server = _ForkServer(self._folder)
        return self._server

    def spawn(self, folder: RunDir, lane_fds: Sequence[int]) -> int | None:
        """Start the warden of a run, which inherits the lane's locks; the caller closes its own copy. Return its
        process id; None if it is not known: as after a death of this worker, the lane and the folder show whether there
        is a warden, or will be one.

        Raises: OSError when no process can be created, and only then: there is and will be no warden.
        """
        folder.warden_log.touch(0o600)
        if not self._request(folder, lane_fds) and not self._request(folder, lane_fds):  # the first one died before
            pid = None
        else:
            pid = self._answer()
        if pid is None:
            words = self._leave()
            with contextlib.suppress(OSError):
                _append(folder.warden_log, words)
        elif pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        else:
            self._wardens[pid] = None
        return pid

    def exit_code(self, pid: int, at_most_s: float = 0.0) -> int | None:
        """Return the exit code of a warden, for which this waits; None while it lives, SOMETHING_LEFT if it will not be
        known."""
        while self._wardens.get(pid, SOMETHING_LEFT) is None:
            assert self._server is not None
            line = self._server.line(at_most_s)
            if line is None:
                return None
            self._note_end(line)
        return self._wardens.pop(pid, SOMETHING_LEFT)

    def rest(self) -> None:
        """End the process that forks if it has had nothing to do for a while."""
        while self._server is not None and (line := self._server.line(0.0)) is not None:
            self._note_end(line)
        if self._server is not None and None not in self._wardens.values() and time.monotonic() > self._rests_at:
            self.close()

    def close(self) -> None:
        """End the process that forks. The next warden starts another."""
        self._leave(EXIT_S)

    def _leave(self, at_most_s: float = 0.0) -> bytes:
        server, self._server = self._server, None
        self._wardens.clear()
        return server.leave(at_most_s) if server is not None else b""

    def _request(self, folder: RunDir, lane_fds: Sequence[int]) -> bool:
        """Return whether the process that forks has the whole request; if not, it has none of it."""
        server = self.get_ready()
        try:
            server.request(folder.path, lane_fds)
        except ConnectionError:
            return False
        except OSError:
            self._leave()
            raise
        return True

    def _answer(self) -> int | None:
        assert self._server is not None
        deadline = time.monotonic() + ANSWER_S
        while line := self._server.line(deadline - time.monotonic()):
            if b" " not in line:
                return int(line)
            self._note_end(line)
        return None

    def _note_end(self, line: bytes) -> None:
        if not line:
            self._leave()
        else:
            pid, code = line.split()
            self._wardens[int(pid)] = int(code)


def _append(path: Path, words: bytes) -> None:
    """Append to a file, in place of which a job may have put something else."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "wb") as log:
        log.write(words)
