"""Slurm's own commands, and the batch script that it runs on a node.

A command may block for as long as a controller is down, so each has a time limit.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from queue_runner import units
from queue_runner.decoding import convert
from queue_runner.errors import UsageError
from queue_runner.paths import checkout
from queue_runner.remote.profile import Profile
from queue_runner.remote.target import Refused, Seen, Unreachable
from queue_runner.times import clock

LIMIT_S = 30.0
"""squeue was seen to block 18 s and sbatch 9 s while slurmctld was down (Slurm 22.05)."""
PREFIX = "mpsq-"
"""How the name of a job begins; the token of its block follows. The comment is the user's: some clusters need one."""
OURS = ("--nodes=1", "--ntasks=1", "--no-requeue")
"""Options that make an allocation the place of one block, after those of the user."""
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


def call(profile: Profile, argv: Sequence[str], limit_s: float = LIMIT_S) -> str:
    """Run a command for the cluster of a profile and return its stdout. Raises: Unreachable, and for sbatch Refused,
    with its message."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False,
            encoding="utf-8", errors="replace",  # jobs have any names
            env={**os.environ, "LC_ALL": "C", **dict(word.partition("=")[::2] for word in shlex.split(profile.env))},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{argv[0]} did not answer within {limit_s:.0f} s") from error
    except OSError as error:
        raise Unreachable(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        message = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
        is_silent = any(sign in message for sign in _SILENT)
        raise Unreachable(message) if is_silent or argv[0] != "sbatch" else Refused(message)
    return done.stdout


def resources(profile: Profile) -> list[str]:
    """Return the options of sbatch for a block."""
    words = [f"--{name}={text}" for name, text in profile.slurm.items()]
    if profile.gpus:
        words.append(f"--gres=gpu:{profile.gpus}")
    if (limit_s := profile.time_s) is not None:
        words.append(f"--time={max(1, round(-(-limit_s // _MINUTE_S)))}")
    warn_s = min(WARN_S, (limit_s or 4 * WARN_S) / 4)
    return [*words, f"--signal=B:TERM@{warn_s:.0f}", *shlex.split(profile.sbatch)]


def blocks(profile: Profile) -> dict[str, Seen]:
    """Return the state of every block of this user, by token. Raises: Unreachable."""
    states = {}
    answer = call(profile, ["squeue", "--noheader", "--states=all", "--me", "--format=%i|%T|%r|%N|%S|%j"])
    for line in answer.splitlines():
        job, state, reason, node, start, name = (line.split("|", 5) + [""] * 6)[:6]
        if name.startswith(PREFIX):
            kind = "waiting" if state in _WAITING else "running" if state in _RUNNING else "gone"
            words = state + (f" ({reason})" if reason not in ("", "None") else "")
            if kind == "waiting":
                with contextlib.suppress(ValueError):  # "N/A": Slurm has not planned it yet
                    words += f", expected to start at {clock(datetime.fromisoformat(start).timestamp())}"
            states[name.strip().removeprefix(PREFIX)] = Seen(kind, words, node, job)
    return states


class _JobEnd(Struct):
    """What scontrol shows of a job, in its words."""

    JobState: str = ""
    TimeLimit: str = ""
    RunTime: str = ""
    PreemptTime: str = "None"


def end_of(profile: Profile, job: str, *, signalled: bool) -> str:
    """Return how a job ended, in a word of Slurm and, where accounting knows it, by whom. `signalled`: it had SIGTERM
    and ended by itself, which Slurm calls COMPLETED: before its time limit, or before a preemption.

    Raises: Unreachable.
    """
    try:
        answer = call(profile, ["scontrol", "show", "job", "--oneliner", job])
    except Unreachable as error:
        if "Invalid job id" not in str(error):
            raise
        return _accounted(profile, job) or "forgotten"
    end = convert(dict(word.partition("=")[::2] for word in answer.split()), _JobEnd)
    state = end.JobState
    if state == "CANCELLED":
        return _accounted(profile, job) or state
    if state in ("COMPLETED", "FAILED") and signalled:
        limit_s, ran_s = seconds(end.TimeLimit), seconds(end.RunTime)
        is_late = limit_s is not None and ran_s is not None and ran_s + WARN_S + _MINUTE_S >= limit_s
        return "PREEMPTED" if end.PreemptTime != "None" else "TIMEOUT" if is_late else "CANCELLED by a signal"
    return state


def _accounted(profile: Profile, job: str) -> str:
    """Return the state of a job as accounting has it, with the name of who cancelled it; "" where there is none."""
    try:
        answer = call(
            profile, ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}", "--format=State"]
        )
    except Unreachable:
        return ""
    state, by, user = answer.strip().partition(" by ")
    with contextlib.suppress(ValueError, KeyError):
        user = pwd.getpwuid(int(user)).pw_name
    return state + by + user


REFUSED = {
    "array": "a submission is one block",
    "clusters": "SLURM_CLUSTERS in `env` of the profile names the cluster, to every command of Slurm",
    "nodes": "a block runs on one node, so that its runs can be compared",
    "ntasks": "a block is one task",
    "wrap": "mpsq writes the batch script",
    "requeue": "mpsq sends it again itself, with --retries",
    "time": "--time has an option of its own",
    "gpus": "--gpus has an option of its own",
}
"""Options of sbatch that would break a block, and why."""
_SHORT = {"-a": "--array", "-M": "--clusters", "-N": "--nodes", "-n": "--ntasks", "-t": "--time", "-G": "--gpus"}
TEST_S = 10.0


def check(profile: Profile) -> None:
    """Ask Slurm whether it would ever run a block.

    Raises: UsageError for a request that it refuses, or that would wait for ever; Unreachable."""
    where = f"--on {profile.name}"
    for word in shlex.split(profile.sbatch):
        name = (_SHORT.get(word[:2], word) if word[:2] != "--" else word.partition("=")[0]).removeprefix("--")
        if name in REFUSED:
            raise UsageError(f"{where}: {word} cannot be given to sbatch: {REFUSED[name]}", "remove it from --sbatch")
    try:
        call(profile, ["sbatch", "--test-only", *resources(profile), *OURS, "--wrap=true"], TEST_S)
        limit_s = most_s(profile)
    except Refused as error:
        hint = "sinfo shows the partitions and their limits, scontrol show node the rest"
        raise UsageError(f"{where}: Slurm refuses this: {error}", hint) from error
    if profile.time_s is not None and limit_s is not None and profile.time_s > limit_s:
        most = units.duration(limit_s)
        message = f"{where}: --time {units.duration(profile.time_s)} is more than the partition's limit, {most}"
        raise UsageError(message, "ask for less, or name another --partition")


def most_s(profile: Profile) -> float | None:
    """Return the time limit of the profile's partition in seconds, None where there is none. Raises: Unreachable."""
    partition = profile.slurm.get("partition")
    only = [f"--partition={partition}"] if partition else []
    lines = call(profile, ["sinfo", "--noheader", "--format=%P|%l", *only], TEST_S).splitlines()
    limits = [seconds(limit) for name, _, limit in (line.partition("|") for line in lines) if only or name[-1:] == "*"]
    known = [limit_s for limit_s in limits if limit_s is not None]
    return max(known, default=None) if len(known) == len(limits) else None


def seconds(limit: str) -> float | None:
    """Return a limit of sinfo, "30:00", "2:00:00" or "1-00:00:00", in seconds; None for infinite and unknown ones."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def batch_script(profile: Profile, module: str, *arguments: str) -> str:
    """Return a batch script that runs a module of mpsq on a node: of this checkout, or of the wheel there. It passes
    SIGTERM on, and restarts the module if it was killed, with the argument `ended` if SIGTERM had come."""
    code = checkout()
    lines = ["#!/bin/sh"]
    if profile.setup:  # a login shell of bash: `module` is a function of it
        lines = [
            "#!/bin/bash -l",
            f"{profile.setup} || {{ echo 'the setup of [on.{profile.name}] failed' >&2; exit 1; }}",
        ]
    lines.append(f"export PYTHONPATH={shlex.quote(str(code))}" if code else "unset PYTHONPATH")
    command = [*shlex.split(profile.wrapper), profile.python, "-m", module, *arguments]
    lines.append(_SCRIPT.format(command=shlex.join(command)))
    return "\n".join(lines)
