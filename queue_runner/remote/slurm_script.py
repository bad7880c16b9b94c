"""The batch script that Slurm runs on a node."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from queue_runner.paths import checkout

_AGAIN = """\
node= ended=
trap 'ended=ended; kill -TERM "$node"' TERM
for turn in 1 2 3 4 5; do
    {command} $ended &
    node=$!
    wait "$node"
    code=$?
    while kill -0 "$node" 2>/dev/null; do  # a signal interrupts wait
        wait "$node"
        code=$?
    done
    [ "$code" -gt 128 ] || break
done
exit "$code"
"""


def batch_script(profile: Mapping[str, str], module: str, *arguments: str) -> str:
    """Return a batch script that runs a module of mpsq on a node: of this checkout, or of the wheel there. It passes
    SIGTERM on, and restarts the module if it was killed, with the argument `ended` if SIGTERM had come."""
    code = checkout()
    lines = ["#!/bin/sh", f"export PYTHONPATH={shlex.quote(str(code))}" if code else "unset PYTHONPATH"]
    lines.append(_AGAIN.format(command=shlex.join([profile.get("python") or "python3", "-m", module, *arguments])))
    return "\n".join(lines)
