"""Slurm's own commands. Each may block for as long as a controller is down, so each has a time limit."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from queue_runner.remote.answers import Refused, Seen, Unreachable
from queue_runner.units import parse_duration

LIMIT_S = 30.0
"""squeue was seen to block 18 s and sbatch 9 s while slurmctld was down (Slurm 22.05)."""
PREFIX = "mpsq:"
WARN_S = 120.0
"""Time between SIGTERM and the limit of the allocation; for a short allocation a quarter of it."""
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_SILENT = ("Unable to contact", "Socket timed out", "Connection refused", "Zero Bytes")
_MINUTE_S = 60.0


def call(argv: Sequence[str]) -> str:
    """Run a command and return its stdout. Raises: Unreachable, and for sbatch Refused, with what it said."""
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
        said = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
        lost = any(sign in said for sign in _SILENT)
        raise Unreachable(said) if lost or argv[0] != "sbatch" else Refused(said)
    return done.stdout


def resources(profile: Mapping[str, str], options: Mapping[str, str]) -> list[str]:
    """Return the options of sbatch for what a submission asks for, or else its profile. `time` is in seconds in
    `options`, as stored, and any duration in the profile. Raises: UsageError for what is no duration."""
    given = {name: options.get(name) or profile.get(name) for name in ("partition", "gpus", "sbatch")}
    words = [f"--{name}={given[name]}" for name in ("partition", "gpus") if given[name]]
    limit_s = float(options["time"]) if options.get("time") else time_s(profile)
    if limit_s is not None:
        words.append(f"--time={max(1, round(-(-limit_s // _MINUTE_S)))}")
    warn_s = min(WARN_S, (limit_s or 4 * WARN_S) / 4)
    return [*words, f"--signal=B:TERM@{warn_s:.0f}", *shlex.split(given["sbatch"] or "")]


def time_s(profile: Mapping[str, str]) -> float | None:
    """Return the limit that a profile sets, in seconds. Raises: UsageError."""
    return parse_duration(profile["time"], "time of the profile") if profile.get("time") else None


def blocks() -> dict[str, Seen]:
    """Return the state of every block of this user, by token. Raises: Unreachable."""
    told = call(["squeue", "--noheader", "--states=all", "--me", "--format=%i|%T|%r|%N|%k"])
    found = {}
    for line in told.splitlines():
        job, state, reason, node, comment = (line.split("|", 4) + [""] * 5)[:5]
        if comment.startswith(PREFIX):
            kind = "waiting" if state in _WAITING else "running" if state in _RUNNING else "gone"
            said = state + (f" ({reason})" if reason not in ("", "None") else "")
            found[comment.strip().removeprefix(PREFIX)] = Seen(kind, said, node, job)
    return found
