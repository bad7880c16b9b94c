"""Interface to launchctl: its verbs, its exit codes, and the output of `launchctl print`, which Apple calls no API.

Facts and sources: macos.md 1.3 and 1.6, summarized in docs/macos.md. Nothing here has run on a Mac.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from os import getuid
from pathlib import Path
from subprocess import CompletedProcess

from msgspec import Struct, field

from queue_runner.errors import MpsqError
from queue_runner.host.services.user_service import run_tool

LAUNCHCTL = "/bin/launchctl"
OK = 0
ESRCH = 3
"""No such process: bootout's exit code for a job that is not loaded."""
EIO = 5
"""The catch-all: loaded already, still draining after a bootout, insecure plist, wrong session."""
EINPROGRESS = 36
EALREADY = 37
NOT_FOUND = 113
NO_SUCH_DOMAIN = 125
_TIMEOUT_S = 30.0
_PATIENCE_S = 30.0
_LEAVING = ("SIGTERMed", "SIGKILLed", "removing")
_LIMITED = ("daemon", "standard", "adaptive", "background")
_AWAITED = (OK, ESRCH, EIO, EINPROGRESS, NOT_FOUND, NO_SUCH_DOMAIN)
"""Exit codes of bootout after which the job is gone, or soon will be."""


class Printed(Struct, frozen=True):
    """A loaded job as parsed from `print`. Missing or unrecognized fields are None."""

    state: str | None
    pid: int | None
    last_exit: str | None
    last_signal: str | None
    spawn_type: str | None
    runs: int | None

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def leaving(self) -> bool:
        """Whether it is being removed: still printed, and the next bootstrap would fail."""
        return self.state is not None and self.state.startswith(_LEAVING)

    @property
    def throttled(self) -> bool:
        """Whether launchd throttles it and so its children (ProcessType is not Interactive)."""
        return self.spawn_type is not None and self.spawn_type.lower().startswith(_LIMITED)

    @property
    def last_exit_code(self) -> int | None:
        match = re.match(r"\d+", self.last_exit or "")
        return int(match[0]) if match else None


def parse_print(text: str) -> Printed:
    """Parse the job's own lines of `launchctl print`; nested blocks have a state of their own and are skipped."""
    fields: dict[str, str] = {}
    depth = 0
    for line in text.splitlines():
        line = line.strip()
        if line == "}":
            depth -= 1
        elif line.endswith("{"):
            depth += 1
        elif depth == 1 and " = " in line:
            name, _, value = line.partition(" = ")
            fields.setdefault(name.strip().lower(), value.strip())
    return Printed(
        state=fields.get("state"),
        pid=_positive(fields.get("pid", "")),
        last_exit=fields.get("last exit code"),
        last_signal=fields.get("last terminating signal"),
        spawn_type=fields.get("spawn type"),
        runs=_positive(fields.get("runs", "")),
    )


def _positive(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,9}", text) else None


class Control(Struct, frozen=True):
    """A job and the domains it may be in. Every method raises MpsqError for an unexpected answer of launchd."""

    label: str
    launchctl: str = LAUNCHCTL
    uid: int = field(default_factory=getuid)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def loaded(self) -> dict[str, Printed]:
        """Return the job in each domain that has it: both, if an ssh login preceded one at the screen."""
        jobs = {domain: self.look(domain) for domain in (f"gui/{self.uid}", f"user/{self.uid}")}
        return {domain: job for domain, job in jobs.items() if job is not None}

    def look(self, domain: str) -> Printed | None:
        """Return the job in that domain; None when it is not loaded there."""
        answer = self._call("print", f"{domain}/{self.label}")
        if answer.returncode == OK:
            return parse_print(answer.stdout)
        if answer.returncode in (NOT_FOUND, NO_SUCH_DOMAIN, ESRCH):
            return None
        raise _refused(answer, "show the service")

    def domain(self) -> str:
        """Return the domain to load it in: the session at the screen if there is one, else the user's."""
        gui = f"gui/{self.uid}"
        return gui if self._call("print", gui).returncode == OK else f"user/{self.uid}"

    def bootstrap(self, domain: str, plist: Path) -> str:
        """Load the plist. Return the domain that accepted it."""
        self._call("enable", f"{domain}/{self.label}")  # a `disable` outlives reboots
        deadline, pause_s = self.clock() + _PATIENCE_S, 0.25
        while True:
            answer = self._call("bootstrap", domain, str(plist))
            if answer.returncode == OK:
                return domain
            if answer.returncode == NO_SUCH_DOMAIN and domain.startswith("gui/"):
                return self.bootstrap(f"user/{self.uid}", plist)
            if answer.returncode not in (EIO, EINPROGRESS, EALREADY):
                raise _refused(answer, "load the service")
            job = self.look(domain)
            if job is not None and not job.leaving:
                return domain  # refused because it is loaded already
            if self.clock() >= deadline:
                raise _refused(answer, "load the service")
            self.sleep(pause_s)
            pause_s = min(2 * pause_s, 4.0)

    def bootout(self, domain: str, patience_s: float) -> None:
        """Unload the job and wait until it is gone, since launchd answers before that."""
        deadline, pause_s = self.clock() + patience_s, 0.1
        answer = self._call("bootout", f"{domain}/{self.label}")
        if answer.returncode not in _AWAITED:
            raise _refused(answer, "unload the service")
        while (job := self.look(domain)) is not None:
            if self.clock() >= deadline:
                raise _refused(answer, "unload the service")
            self.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
            if answer.returncode in (EINPROGRESS, EIO) and not job.leaving:
                answer = self._call("bootout", f"{domain}/{self.label}")

    def kickstart(self, domain: str, *, kill: bool = False) -> bool:
        """Start or restart the loaded job. Return False when it is not loaded after all."""
        answer = self._call("kickstart", *(["-k"] if kill else []), f"{domain}/{self.label}")
        if answer.returncode not in (OK, EALREADY, NOT_FOUND):
            raise _refused(answer, "start the service")
        return answer.returncode != NOT_FOUND

    def _call(self, *arguments: str) -> CompletedProcess[str]:
        return run_tool([self.launchctl, *arguments], _TIMEOUT_S)


def _refused(answer: CompletedProcess[str], action: str) -> MpsqError:
    code, lines = answer.returncode, answer.stderr.strip().splitlines()
    return MpsqError(
        f"launchd could not {action}: {lines[0] if lines else f'code {code}'}",
        f"launchctl error {code} explains the code; see docs/macos.md",
    )
