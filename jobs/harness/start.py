"""The first steps of a workload, before it imports its framework. Standard library only."""

from __future__ import annotations

import importlib.util
import io
import os
import signal
import sys

_EXACT = {"mlx": {"MLX_ENABLE_TF32": "0"}}
"""fp32 means fp32 in every framework: MLX would round to TF32 on CUDA and on an M5. Read when it is imported."""


def quietly(framework: str, *packages: str) -> None:
    """Prepare the process before the imports: let signals end it at once, without a traceback; flush each line; exit
    with a message if `framework`, its libraries or one of `packages` is not installed.

    A process that is to prepare a run for which everything is prepared ends here.

    A Python signal handler would run only when the framework returns to Python, after an iteration of many seconds or
    never. The system's default action is immediate, and the exit status names the signal.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    if os.environ.get("MPSQ_PREPARE") == "1":
        from harness import prepared

        if prepared.is_complete():
            sys.exit(0)
    for package in (framework, *packages):
        if importlib.util.find_spec(package) is None:
            from harness import installing

            sys.exit(installing.missing(package).show())
    for name, value in _EXACT.get(framework, {}).items():
        os.environ.setdefault(name, value)
    if framework == "mlx":
        from harness import installing

        if (reason := installing.why_not_importable(framework)) is not None:
            sys.exit(installing.report_no_library(framework, reason))
