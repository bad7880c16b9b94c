"""A function called in a child process with a time limit, for what may wait in the kernel for hours: a folder that
macOS guards until somebody answers a privacy prompt, a network drive that is gone."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

_GIVEN_UP_S = 1.0
"""How long a killed child is waited for: one that waits in the kernel may stay."""
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import os, pickle, threading
def end_with_the_parent():
    os.read(int(sys.argv[2]), 1)
    os.killpg(0, 9)
threading.Thread(target=end_with_the_parent, daemon=True).start()
function, arguments, named = pickle.load(sys.stdin.buffer)
try:
    answer = function(*arguments, **named), None
except Exception as error:
    answer = None, error
pickle.dump(answer, sys.stdout.buffer)
"""

P = ParamSpec("P")
T = TypeVar("T")


class TookTooLong(Exception):
    """The child was ended after the time limit."""


class ChildCall(Generic[T]):
    """A call in a child, which ends with this process even if that is killed. Close it."""

    def __init__(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> None:
        """Begin it; all must be picklable. Raises: OSError when there can be no child."""
        self._name = function.__name__
        with contextlib.ExitStack() as stack:
            self._said = stack.enter_context(tempfile.TemporaryFile())
            content = stack.enter_context(tempfile.TemporaryFile())
            pickle.dump((function, arguments, named), content)
            content.seek(0)
            watched, self._life = os.pipe()
            stack.callback(os.close, self._life)
            try:
                self._process = subprocess.Popen(
                    # -P: a file of the name of a module in the current folder must not take its place
                    [sys.executable, "-P", "-c", _PROGRAM, json.dumps(sys.path), str(watched)],
                    stdin=content,
                    stdout=self._said,
                    pass_fds=[watched],
                    start_new_session=True,
                )
            finally:
                os.close(watched)
            content.close()
            self._kept = stack.pop_all()

    def wait(self, at_most_s: float) -> bool:
        """Wait for its end; return whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(at_most_s, 0))
        return self._process.returncode is not None

    def answer(self) -> T:
        """Return what the function returned, once the child has ended.

        Raises: OSError when the child died; whatever the function raised.
        """
        if self._process.returncode:
            raise OSError(f"the child process of {self._name} ended with {self._process.returncode}")
        self._said.seek(0)
        answer, error = pickle.load(self._said)
        if error is not None:
            raise error
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the child and what it has started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended (macOS: EPERM)
                os.killpg(self._process.pid, signal.SIGKILL)
            self.wait(_GIVEN_UP_S)
        self._kept.close()


def call(limit_s: float, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return function(*arguments, **named) as computed in a child; all must be picklable.

    Raises: TookTooLong; OSError when there can be no child, or it died; whatever the function raises.
    """
    with contextlib.closing(ChildCall(function, *arguments, **named)) as called:
        if not called.wait(limit_s):
            raise TookTooLong
        return called.answer()
