"""Functions called in a child process with a time limit, for what may wait in the kernel for hours: a folder that macOS
guards until somebody answers a privacy prompt, a network drive that is gone."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

_GIVEN_UP_S = 1.0
"""How long a killed child is waited for: one that waits in the kernel may stay."""
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import os, pickle, queue, threading
calls = queue.SimpleQueue()
def listen():
    while os.read(0, 1):
        calls.put(None)
    os.killpg(0, 9)  # the parent has ended
threading.Thread(target=listen, daemon=True).start()
content, result = int(sys.argv[2]), int(sys.argv[3])
for name in sys.argv[4:]:
    __import__(name)
while True:
    calls.get()
    function, arguments, named = pickle.loads(os.pread(content, os.fstat(content).st_size, 0))
    try:
        answer = function(*arguments, **named), None
    except Exception as error:
        answer = None, error
    answer = pickle.dumps(answer)
    os.ftruncate(result, 0)
    os.pwrite(result, answer, 0)
    os.write(1, b"\\n")
"""
"""For each byte from the parent, it calls the function in one file, writes its answer to another, and answers with a
byte: neither side ever waits for the other to read."""

P = ParamSpec("P")
T = TypeVar("T")


class TookTooLong(Exception):
    """The child was ended after the time limit."""


class Child:
    """A child process that makes one call after the other, and ends with this process even if that is killed. It starts
    with the first call, or before; a call that does not end is ended by `close`. Close it."""

    def __init__(self, *modules: str) -> None:
        """The child imports these modules at its start."""
        self._modules = modules
        self._process: subprocess.Popen[bytes] | None = None
        self._files = contextlib.ExitStack()
        self._name = ""

    def start(self) -> None:
        """Start the child, unless it is there. Raises: OSError when there can be none."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()

    def begin(self, function: Callable[..., object], *arguments: object, **named: object) -> None:
        """Begin a call; all must be picklable. An earlier one must have ended. Raises: OSError when there can be no
        child."""
        self.start()
        self._name = function.__name__
        request = pickle.dumps((function, arguments, named))
        os.ftruncate(self._content, 0)
        os.pwrite(self._content, request, 0)
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def wait(self, at_most_s: float) -> bool:
        """Wait for the end of the call; return whether it has ended."""
        assert self._process is not None and self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], max(at_most_s, 0))[0])

    def answer(self) -> Any:
        """Return what the function returned, once the call has ended.

        Raises: OSError when the child died; whatever the function raised.
        """
        assert self._process is not None and self._process.stdout is not None
        if not self._process.stdout.read(1):
            raise OSError(f"the child process of {self._name} ended with {self._process.wait()}")
        answer, error = pickle.loads(os.pread(self._result, os.fstat(self._result).st_size, 0))
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """End the child and what it has started. The next call starts another."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended (macOS: EPERM)
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GIVEN_UP_S)
        self._files.close()

    def _start(self) -> None:
        with contextlib.ExitStack() as files:
            self._content = files.enter_context(tempfile.TemporaryFile()).fileno()
            self._result = files.enter_context(tempfile.TemporaryFile()).fileno()
            words = [json.dumps(sys.path), str(self._content), str(self._result), *self._modules]
            process = subprocess.Popen(
                # -P: a file of the name of a module in the current folder must not take its place
                [sys.executable, "-P", "-c", _PROGRAM, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=[self._content, self._result],
                start_new_session=True,
            )
            assert process.stdin is not None and process.stdout is not None
            files.callback(process.stdin.close)
            files.callback(process.stdout.close)
            self._process, self._files = process, files.pop_all()


def call(limit_s: float, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return function(*arguments, **named) as computed in a child; all must be picklable.

    Raises: TookTooLong; OSError when there can be no child, or it died; whatever the function raises.
    """
    with contextlib.closing(Child()) as child:
        child.begin(function, *arguments, **named)
        if not child.wait(limit_s):
            raise TookTooLong
        result: T = child.answer()
        return result
