"""venv and pip as programs: what they are told, what they said when they failed, and what is there afterwards."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from queue_runner.errors import MpsqError, UsageError
from queue_runner.host import locks

_SHOWN_LINES = 8
"""Of pip's output, the last: its error is there."""
_ELSEWHERE = ("-t", "--target", "--user", "--prefix", "--root", "--python", "--dry-run", "-e", "--editable")
"""Options of pip that put packages into another place than the environment, or none at all. What is editable changes
after it was recorded."""
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")
_PACKAGES = """
import importlib.metadata, json, platform, re
found = {}
for one in importlib.metadata.distributions():
    name = one.metadata["Name"]
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), one.version)
print(json.dumps([platform.python_version(), dict(sorted(found.items()))]))
"""

_REMEDIES = (
    (r"No matching distribution found|Could not find a version", "see what versions there are: an index of its own is"
     " named by --index-url, and pre-releases by --pre, inside of --pip"),
    (r"Temporary failure|Name or service|Connection|timed out|Max retries", "see whether that index can be reached from"
     " here; without a network: --no-index --find-links FOLDER inside of --pip"),
    (r"No space left|Disk quota", "free some space: torch with CUDA takes several GiB"),
    (r"ensurepip", "this Python has no venv: install it (apt install python3-venv), or name another by --python"),
    (r"conflict|ResolutionImpossible", "let pip choose: give fewer exact versions"),
    (r"not a supported wheel|Requires-Python|requires a different Python", "take another interpreter: --python PATH"),
)  # fmt: skip


def refuse_elsewhere(words: Sequence[str]) -> None:
    """Raises: UsageError for an option by which pip would leave the environment."""
    for word in words:
        option = word.partition("=")[0] if word.startswith("--") else word[:2]  # -t/tmp is -t, too
        if option in _ELSEWHERE:
            raise UsageError(f"--pip cannot have {option}", "packages go into the environment, as they are now")


def without_password(text: str) -> str:
    """An address without what stands before its @."""
    return _PASSWORD.sub("", text)


def redacted(words: Sequence[str]) -> str:
    """A command line's words as they may be shown: without the passwords of addresses."""
    return shlex.join(_PASSWORD.sub("", word) for word in words)


def run(argv: Sequence[str], log: IO[bytes], lock: locks.Lock, failed: str) -> None:
    """Run a command whose end is shown if it fails, and all that it starts: none of it outlives an interruption. It
    holds the lock as well: if we are killed it may go on, and nobody makes or removes the environment meanwhile.

    Raises: MpsqError with the last lines of what it wrote.
    """
    log.seek(0)
    log.truncate()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "MPSQ_", "PIP_USER"))}
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            pass_fds=[lock.fd],
            start_new_session=True,
        )
    except OSError as error:
        raise MpsqError(f"{failed}: {argv[0]} cannot be run: {error.strerror}", "name another by --python") from error
    try:
        code = child.wait()
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)  # not reaped yet: the group is still its own
        child.wait()
        raise
    if code:
        log.seek(0)
        lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        told = _PASSWORD.sub("", "\n".join(f"  {line}" for line in lines[-_SHOWN_LINES:]))
        remedy = next((fix for sign, fix in _REMEDIES if re.search(sign, "\n".join(lines))), "mend what it says")
        raise MpsqError(f"{failed}:\n{told}", f"{remedy}; nothing is left of it")


def packages(python: Path) -> tuple[str, dict[str, str]]:
    """The version of its Python, and those of its packages by normalised name."""
    done = subprocess.run(
        [str(python), "-I", "-c", _PACKAGES], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    try:
        version, found = json.loads(done.stdout)
    except ValueError as error:
        raise MpsqError(f"{python} does not say what is installed", "try another Python: --python") from error
    return str(version), found
