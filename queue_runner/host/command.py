"""Queries to small system tools. A failed query means unknown: None, never an error."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence

Ask = Callable[[Sequence[str]], str | None]
"""A function that runs a command and returns its stdout; None when it is missing, fails or times out."""

TIMEOUT_S = 10.0


def ask(argv: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> str | None:
    """Return the output of a command, None when it fails. Its messages are discarded."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=plain_environment(),
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def plain_environment() -> dict[str, str]:
    """Return an environment for English messages and the true macOS version (sw_vers prints 10.16 or 16.0 in
    compatibility mode)."""
    return {**os.environ, "LC_ALL": "C", "SYSTEM_VERSION_COMPAT": "0"}
