"""Slurm, by its own commands. Each may block for as long as a controller is down, so each has a time limit.

What a controller says is not the truth about a run (docs/remote.md): it only decides how long to wait for a record.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from queue_runner.paths import checkout
from queue_runner.remote.block import Folder, take_fence
from queue_runner.remote.newest import Newest

LIMIT_S = 30.0
"""squeue was seen to block 18 s and sbatch 9 s while slurmctld was down (Slurm 22.05)."""
PREFIX = "mpsq:"
WARN_S = 120
"""Time between SIGTERM and the limit of the allocation."""
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}


class Unreachable(Exception):
    """The cluster does not answer; the text says how."""


class Refused(Exception):
    """The cluster refuses the block; the text is its own."""


@dataclass(frozen=True)
class Seen:
    """What the cluster says of a block: waiting, running or gone; in its words, on which node, under which id."""

    state: str
    said: str = ""
    node: str = ""
    job: str = ""


class Slurm:
    """The cluster that sbatch of this machine submits to."""

    kind = "slurm"

    def __init__(self, profile: Mapping[str, str], poll_s: float, grace_s: float) -> None:
        self._profile = profile
        self.poll_s = poll_s
        self.grace_s = grace_s
        self.local = profile.get("local", "")
        self._newest = Newest(_squeue, poll_s / 2, Unreachable("squeue does not answer"))

    def folder(self, token: str) -> Folder:
        """Return the block's folder, which the front and the nodes share."""
        return Folder(Path(self._profile["folder"]) / token)

    def send(self, token: str, options: Mapping[str, str]) -> str:
        """Submit a block whose folder is written; return its id. Raises: Unreachable, Refused."""
        folder = self.folder(token)
        script = folder.path / "block.sh"
        code = checkout()
        lines = ["#!/bin/sh", f"export PYTHONPATH={shlex.quote(str(code))}" if code else "unset PYTHONPATH"]
        python = self._profile.get("python") or "python3"
        lines.append(f"exec {shlex.quote(python)} -m queue_runner.remote {shlex.quote(str(folder.path))}")
        script.write_text("\n".join(lines) + "\n")
        words = ["sbatch", "--parsable", "--exclusive", "--nodes=1", "--no-requeue", f"--signal=B:TERM@{WARN_S}"]
        words += [f"--comment={PREFIX}{token}", f"--job-name=mpsq-{token[:8]}", "--open-mode=append"]
        words += [f"--output={folder.log}", f"--chdir={folder.path}"]
        given = {name: options.get(name) or self._profile.get(name) for name in ("partition", "gpus", "time", "sbatch")}
        if given["partition"]:
            words.append(f"--partition={given['partition']}")
        if given["gpus"]:
            words.append(f"--gpus={given['gpus']}")
        if given["time"]:
            words.append(f"--time={max(1, -(-int(float(given['time'])) // 60))}")
        words += shlex.split(given["sbatch"] or "")
        try:
            return _call([*words, str(script)]).strip().partition(";")[0]
        finally:
            self._newest.forget()  # what squeue said before does not know this block

    def look(self, token: str) -> Seen:
        """Return the state of a block, found by its token: one squeue answers for all. Raises: Unreachable."""
        return self._newest.answer().get(token, Seen("gone", "forgotten"))

    def end(self, token: str, *, hard: bool) -> None:
        """Ask the cluster to end a block: SIGTERM to its supervisor, or (hard) everything. Raises: Unreachable."""
        job = self.look(token).job
        if job:
            _call(["scancel", job] if hard else ["scancel", "--batch", "--signal=TERM", job])

    def fetch(self, token: str) -> None:
        """Do nothing: the folder is shared."""

    def has_fence(self, token: str) -> bool:
        """Return whether the block was started, or made void."""
        return self.folder(token).fence.exists()

    def void(self, token: str) -> bool:
        """Make a block void; False when it was started before. Raises: OSError."""
        return take_fence(self.folder(token), {"void": "by the front"})

    def request(self, token: str, name: str) -> None:
        """Leave a request for the node. Raises: OSError."""
        (self.folder(token).path / name).touch()

    def remove(self, token: str) -> None:
        """Remove the folder of a block that is over."""
        shutil.rmtree(self.folder(token).path, ignore_errors=True)


def _squeue() -> dict[str, Seen]:
    """Return the state of every block of this user, by token. Raises: Unreachable."""
    told = _call(["squeue", "--noheader", "--states=all", "--me", "--format=%i|%T|%r|%N|%k"])
    found = {}
    for line in told.splitlines():
        job, state, reason, node, comment = (line.split("|", 4) + [""] * 5)[:5]
        if comment.startswith(PREFIX):
            kind = "waiting" if state in _WAITING else "running" if state in _RUNNING else "gone"
            said = state + (f" ({reason})" if reason not in ("", "None") else "")
            found[comment.strip().removeprefix(PREFIX)] = Seen(kind, said, node, job)
    return found


def _call(argv: Sequence[str]) -> str:
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
        lost = any(
            sign in said for sign in ("Unable to contact", "Socket timed out", "Connection refused", "Zero Bytes")
        )
        raise Unreachable(said) if lost or argv[0] != "sbatch" else Refused(said)
    return done.stdout
