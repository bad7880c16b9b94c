"""Slurm's own commands, and the batch script that it runs on a node.

A command may block for as long as a controller is down, so each has a time limit.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from queue_runner.paths import checkout
from queue_runner.remote.profile import Profile
from queue_runner.remote.target import Refused, Seen, Unreachable

LIMIT_S = 30.0
"""squeue was seen to block 18 s and sbatch 9 s while slurmctld was down (Slurm 22.05)."""
PREFIX = "mpsq:"
WARN_S = 120.0
"""Time between SIGTERM and the limit of the allocation; for a short allocation a quarter of it."""
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_SILENT = ("Unable to contact", "Socket timed out", "Connection refused", "Zero Bytes")
_MINUTE_S = 60.0
_SCRIPT = """\
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


def call(argv: Sequence[str]) -> str:
    """Run a command and return its stdout. Raises: Unreachable, and for sbatch Refused, with its message."""
    if shutil.which(argv[0]) is None:
        raise Unreachable(f"{argv[0]} is not on PATH")
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{argv[0]} did not answer within {LIMIT_S:.0f} s") from error
    except OSError as error:
        raise Unreachable(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        message = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
        is_silent = any(sign in message for sign in _SILENT)
        raise Unreachable(message) if is_silent or argv[0] != "sbatch" else Refused(message)
    return done.stdout


def resources(profile: Profile) -> list[str]:
    """Return the options of sbatch for a block."""
    words = [f"--{name}={text}" for name in ("partition", "gpus") if (text := getattr(profile, name))]
    if (limit_s := profile.time_s) is not None:
        words.append(f"--time={max(1, round(-(-limit_s // _MINUTE_S)))}")
    warn_s = min(WARN_S, (limit_s or 4 * WARN_S) / 4)
    return [*words, f"--signal=B:TERM@{warn_s:.0f}", *shlex.split(profile.sbatch)]


def blocks() -> dict[str, Seen]:
    """Return the state of every block of this user, by token. Raises: Unreachable."""
    states = {}
    for line in call(["squeue", "--noheader", "--states=all", "--me", "--format=%i|%T|%r|%N|%k"]).splitlines():
        job, state, reason, node, comment = (line.split("|", 4) + [""] * 5)[:5]
        if comment.startswith(PREFIX):
            kind = "waiting" if state in _WAITING else "running" if state in _RUNNING else "gone"
            words = state + (f" ({reason})" if reason not in ("", "None") else "")
            states[comment.strip().removeprefix(PREFIX)] = Seen(kind, words, node, job)
    return states


def batch_script(profile: Profile, module: str, *arguments: str) -> str:
    """Return a batch script that runs a module of mpsq on a node: of this checkout, or of the wheel there. It passes
    SIGTERM on, and restarts the module if it was killed, with the argument `ended` if SIGTERM had come."""
    code = checkout()
    lines = ["#!/bin/sh", f"export PYTHONPATH={shlex.quote(str(code))}" if code else "unset PYTHONPATH"]
    lines.append(_SCRIPT.format(command=shlex.join([profile.python, "-m", module, *arguments])))
    return "\n".join(lines)
