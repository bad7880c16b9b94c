"""venv and pip as programs: their arguments, their output on failure, and the installed packages."""

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
"""Number of last lines shown of pip's output, which contain its error."""
_ELSEWHERE = ("-t", "--target", "--user", "--prefix", "--root", "--python", "--dry-run", "-e", "--editable")
"""Options of pip that install outside of the environment or not at all. Editable packages change after the record."""
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
    (r"No matching distribution found|Could not find a version", "check which versions exist; --index-url"
     " chooses another index and --pre allows pre-releases, both inside --pip"),
    (r"Temporary failure|Name or service|Connection|timed out|Max retries", "check that the index can be reached;"
     " without a network: --no-index --find-links FOLDER, inside --pip"),
    (r"No space left|Disk quota", "free some space: torch with CUDA takes several GiB"),
    (r"ensurepip", "this Python has no venv: install it (apt install python3-venv), or choose another with --python"),
    (r"conflict|ResolutionImpossible", "give fewer exact versions, so that pip can choose"),
    (r"not a supported wheel|Requires-Python|requires a different Python", "use another interpreter: --python PATH"),
)  # fmt: skip


def refuse_elsewhere(words: Sequence[str]) -> None:
    """Raise UsageError for an option by which pip would install outside of the environment."""
    for word in words:
        option = word.partition("=")[0] if word.startswith("--") else word[:2]  # -t/tmp is -t, too
        if option in _ELSEWHERE:
            raise UsageError(
                f"--pip cannot have {option}", "packages are installed into the environment, as they are now"
            )


def without_password(text: str) -> str:
    """Return an address without the part before its @."""
    return _PASSWORD.sub("", text)


def redacted(words: Sequence[str]) -> str:
    """Return the words of a command line for display, without the passwords in addresses."""
    return shlex.join(_PASSWORD.sub("", word) for word in words)


def run(argv: Sequence[str], log: IO[bytes], lock: locks.Lock, failed: str) -> None:
    """Run a command; an interruption kills it and all its children. It also holds the lock: if we are killed it may
    continue, and the environment is neither created nor removed meanwhile.

    Raises: MpsqError with the last lines of its output.
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
        raise MpsqError(
            f"{failed}: {argv[0]} cannot be run: {error.strerror}", "choose another with --python"
        ) from error
    try:
        code = child.wait()
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)  # not reaped yet: the group id is still its own
        child.wait()
        raise
    if code:
        log.seek(0)
        lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        output = _PASSWORD.sub("", "\n".join(f"  {line}" for line in lines[-_SHOWN_LINES:]))
        remedy = next((fix for sign, fix in _REMEDIES if re.search(sign, "\n".join(lines))), "fix what pip reports")
        raise MpsqError(f"{failed}:\n{output}", f"{remedy}; the incomplete environment was removed")


def packages(python: Path) -> tuple[str, dict[str, str]]:
    """Return the version of its Python, and those of its packages by normalized name."""
    done = subprocess.run(
        [str(python), "-I", "-c", _PACKAGES], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    try:
        version, versions = json.loads(done.stdout)
    except ValueError as error:
        raise MpsqError(f"{python} does not list the installed packages", "try another Python: --python") from error
    return str(version), versions
