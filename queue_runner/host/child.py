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
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_GIVEN_UP_S = 1.0
"""How long a killed child is waited for: one that waits in the kernel may stay."""
_LOOK_S = 0.5
"""How often it is asked whether the answer is still wanted."""
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import pickle
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


class Unwanted(Exception):
    """The child was ended because nobody wants its answer any more."""


def call(limit_s: float, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return function(*arguments, **named) as computed in a child; all must be picklable.

    Raises: TookTooLong; OSError when there can be no child, or it died; whatever the function raises.
    """
    return call_while(lambda: True, limit_s, function, *arguments, **named)


def call_while(
    wanted: Callable[[], bool], limit_s: float, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
) -> T:
    """Do as `call`, as long as `wanted` says so.

    Raises: Unwanted; as `call`.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=said,
            start_new_session=True,
        )
        try:
            _wait(process, pickle.dumps((function, arguments, named)), wanted, time.monotonic() + limit_s)
        finally:
            if process.poll() is None:
                _end(process)
        said.seek(0)
        if process.returncode:
            raise OSError(f"the child process of {function.__name__} ended with {process.returncode}")
        answer, error = pickle.load(said)
    if error is not None:
        raise error
    return answer  # type: ignore[no-any-return]


def _wait(process: subprocess.Popen[bytes], content: bytes, wanted: Callable[[], bool], deadline: float) -> None:
    """Write the content to the child and wait for its end. Raises: TookTooLong, Unwanted."""
    unsent: bytes | None = content
    while True:
        left_s = deadline - time.monotonic()
        try:
            process.communicate(unsent, timeout=max(min(left_s, _LOOK_S), 0))
            return
        except subprocess.TimeoutExpired:
            if left_s <= _LOOK_S:
                raise TookTooLong from None
            if not wanted():
                raise Unwanted from None
            unsent = None  # the next call goes on with the rest


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended (macOS: EPERM)
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GIVEN_UP_S)
