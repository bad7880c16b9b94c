"""launchctl's words: its verbs and exit codes, and the text of `launchctl print`, which Apple calls no API at all.

Facts and sources: macos.md 1.3 and 1.6, as told in docs/macos.md. Nothing here has run on a Mac.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from queue_runner.errors import MpsqError

LAUNCHCTL = "/bin/launchctl"
OK = 0
ESRCH = 3
"""No such process: what bootout says of a job that is not loaded."""
EIO = 5
"""The catch-all: loaded already, still draining after a bootout, insecure plist, wrong session."""
EINPROGRESS = 36
EALREADY = 37
NOT_FOUND = 113
NO_SUCH_DOMAIN = 125
_TIMEOUT_S = 30.0
_ENDING = ("SIGTERMed", "SIGKILLed", "exited", "removing")


@dataclass(frozen=True)
class Answer:
    code: int
    output: str
    message: str


@dataclass(frozen=True)
class Printed:
    """A loaded job, as far as `print` told. What it did not tell, or told in other words, is None."""

    state: str | None
    pid: int | None
    last_exit: str | None
    last_signal: str | None
    spawn_type: str | None
    path: str | None

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def leaving(self) -> bool:
        """Whether it is on its way out: it is printed still, and the next bootstrap would fail."""
        return self.state is not None and self.state.startswith(_ENDING)

    @property
    def throttled(self) -> bool:
        """Whether launchd runs it with limits, which its children inherit (ProcessType is not Interactive)."""
        return self.spawn_type is not None and not self.spawn_type.startswith(("interactive", "app"))

    @property
    def last_exit_code(self) -> int | None:
        match = re.match(r"\d+", self.last_exit or "")
        return int(match[0]) if match else None


def call(launchctl: str, arguments: Sequence[str]) -> Answer:
    """Run launchctl. Raises: MpsqError when it is not there or hangs."""
    try:
        done = subprocess.run(
            [launchctl, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MpsqError(f"launchctl {arguments[0]} did not answer within {_TIMEOUT_S:.0f} s", "try again") from error
    except OSError as error:
        raise MpsqError(f"{launchctl} cannot be run: {error.strerror}", "a service needs launchd, as macOS has it") from error
    return Answer(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace").strip())


def parse_print(text: str) -> Printed:
    """Read the job's own lines of `launchctl print`; blocks inside it have a state of their own and are passed over."""
    found: dict[str, str] = {}
    depth = 0
    for line in text.splitlines():
        line = line.strip()
        if line == "}":
            depth -= 1
        elif line.endswith("{"):
            depth += 1
        elif depth == 1 and " = " in line:
            name, _, value = line.partition(" = ")
            found.setdefault(name.strip().lower(), value.strip())
    pid = found.get("pid", "")
    return Printed(
        state=found.get("state"),
        pid=int(pid) if re.fullmatch(r"[1-9]\d{0,9}", pid, re.ASCII) else None,
        last_exit=found.get("last exit code"),
        last_signal=found.get("last terminating signal"),
        spawn_type=found.get("spawn type"),
        path=found.get("path"),
    )
