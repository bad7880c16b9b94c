"""The first thing that a workload does, before it imports its framework. Standard library only."""

from __future__ import annotations

import importlib.util
import io
import signal
import sys

from harness import problems


def quietly(framework: str) -> None:
    """Let signals end the process at once and without a traceback, show each line as it is printed, and leave with a
    sentence when `framework` is not installed here.

    A handler in Python would run only when the framework returns to Python: after an iteration of many seconds, or
    never. The system's own reaction is immediate, and the exit status tells the signal.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    if importlib.util.find_spec(framework) is None:
        missing = problems.JobError(
            f'"{framework}" is not installed for {sys.executable}',
            "install it there, or run this with an interpreter that has it (mpsq submit --python PATH)",
        )
        sys.exit(missing.show())
