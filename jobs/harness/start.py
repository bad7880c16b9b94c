"""The first steps of a workload, before it imports its framework. Standard library only."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import sys

from harness import errors, installing, prepared
from mpsq_report import Reporter

_EXACT = {"mlx": {"MLX_ENABLE_TF32": "0"}}
"""fp32 means fp32 in every framework: MLX would round to TF32 on CUDA and on an M5. Read when it is imported."""


def quietly(framework: str, *packages: str) -> None:
    """Prepare the process before the imports: let signals end it at once, without a traceback; flush each line; exit
    with a message if `framework`, its libraries or one of `packages` is not installed.

    A process that is to prepare a run of which everything is known ends here.

    A Python signal handler would run only when the framework returns to Python, after an iteration of many seconds or
    never. The system's default action is immediate, and the exit status names the signal.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    if prepared.is_asked() and prepared.is_complete():
        sys.exit(0)
    for package in (framework, *packages):
        if importlib.util.find_spec(package) is None:
            missing = errors.JobError(
                f'"{package}" is not installed for {sys.executable}',
                f"{installing.command(package)}, there, or run this with an interpreter that has it "
                "(mpsq submit --python PATH)",
            )
            sys.exit(missing.show())
    for name, value in _EXACT.get(framework, {}).items():
        os.environ.setdefault(name, value)
    if framework == "mlx" and (reason := installing.why_not_importable(framework)) is not None:
        sys.exit(_no_library(framework, reason))


def _no_library(framework: str, reason: str) -> int:
    """Report that the package lacks the libraries of every device. Return the exit code."""
    problem = errors.JobError(
        f'"{framework}" is installed for {sys.executable} without the library of any device: {reason}',
        installing.command(framework),
        errors.EX_UNAVAILABLE,
    )
    report = Reporter()
    report.note("device_unavailable", problem.message)
    report.bye(False)
    return problem.show()
