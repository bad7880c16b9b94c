"""The worker as a LaunchAgent: its plist, and the steps to install, restart and remove it.

docs/macos.md has the checks, and the exit codes of launchctl and its output for `print`, which Apple calls no API.
launchd is asynchronous: bootout returns before the job is gone, and a bootstrap in between fails with 5 and leaves the
service down. So each step checks the actual state.
"""

from __future__ import annotations

import os
import plistlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from xml.parsers.expat import ExpatError

from msgspec import Struct

import queue_runner
from queue_runner.errors import MpsqError
from queue_runner.host import protected
from queue_runner.host.services.user_service import (
    INSTALL,
    RESTART_AFTER_S,
    STOP_TIMEOUT_S,
    ManagerState,
    Problem,
    UserService,
    run_tool,
)
from queue_runner.paths import launchd_log

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
_START_S = 15.0
_SETTLED_S = 1.0
_EX_CONFIG = 78


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


@dataclass
class Launchd(UserService):
    """The LaunchAgent of one queue. The fields describe the machine; tests replace them."""

    launchctl: str = LAUNCHCTL
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    kind = "launchd"

    def __post_init__(self) -> None:
        self.name = self.program.label
        agents = self.user_home / "Library" / "LaunchAgents"  # where launchd looks at every login
        self.path = agents / f"{self.name}.plist"
        self.log = launchd_log(self.name, self.user_home)

    def definition(self) -> dict[str, Any]:
        """Return the plist as a dictionary.

        Omitted on purpose: AbandonProcessGroup, Nice, LowPriorityIO, LowPriorityBackgroundIO, LegacyTimers, UserName.
        """
        return {
            "Label": self.name,
            "ProgramArguments": self.program.argv,  # absolute; Python finds its environment by its unresolved symlink
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},  # exit 0 means: a restart cannot fix it
            "ThrottleInterval": RESTART_AFTER_S,
            "ProcessType": "Interactive",  # any other type throttles the worker and every job
            "ExitTimeOut": STOP_TIMEOUT_S,  # listings show 5 s where it is not set
            "EnvironmentVariables": dict(self.program.environment),  # launchd gives a minimal environment
            "WorkingDirectory": str(self.program.home),  # the default is /
            "StandardOutPath": str(self.log),  # if launchd cannot open it, the job never runs (78)
            "StandardErrorPath": str(self.log),
            "LimitLoadToSessionType": ["Aqua", "Background"],  # Background: without a login at the screen (ssh)
            "Umask": 0o077,
            "SoftResourceLimits": {"NumberOfFiles": 4096},  # the default of 256 is too low for data loaders
        }

    def install(self) -> str:
        """Install and start the service. Raises: MpsqError also when launchd could not read its files."""
        self._check_user()
        for what, path in (
            ("this Python", Path(self.program.python)),
            ("mpsq itself", Path(queue_runner.__file__).parent),
            ("the queue", self.program.home),
        ):
            if place := protected.place(path, self.user_home):
                raise MpsqError(
                    f"{what} is in {place}, which macOS keeps closed to services: {path}",
                    "move it, for example below ~/src or ~/.local, and install again",
                )
        return super().install()

    def _content(self) -> bytes:
        return plistlib.dumps(self.definition(), sort_keys=False)

    def _essence(self, content: bytes) -> object:
        try:
            plist = plistlib.loads(content)
            environment = plist.pop("EnvironmentVariables")
            return plist, {name: value for name, value in environment.items() if name.startswith("MPSQ_")}
        except (ValueError, ExpatError, KeyError, AttributeError, TypeError):  # InvalidFileException is a ValueError
            return None

    def _state(self) -> ManagerState:
        loaded = self._loaded()
        job = next((job for job in loaded.values() if job.running), next(iter(loaded.values()), None))
        return ManagerState(
            known=bool(loaded),
            alive=bool(loaded),
            running=job is not None and job.running,
            settled=len(loaded) == 1 and not any(job.leaving for job in loaded.values()),
            pid=job.pid if job else None,
            detail=f"{job.state or 'loaded'} in {', '.join(loaded)}" if job else "not loaded",
            problems=tuple(self._problems(job)),
        )

    def _problems(self, job: Printed | None) -> Iterator[Problem]:
        if job is None:
            yield f"{self.path} exists, but launchd has not loaded it", INSTALL
            return
        if job.throttled:
            yield f"launchd throttles it and every job it starts (spawn type {job.spawn_type})", INSTALL
        if not job.running:
            yield self._why_down(job)

    def _why_down(self, job: Printed) -> Problem:
        code = job.last_exit_code
        if code == _EX_CONFIG:
            problem = f"launchd could not start it ({job.last_exit}): a path in its plist cannot be opened"
            return problem, f"look at {self.log}"
        if code:
            return f"it exited with code {code} and is restarted every {RESTART_AFTER_S} s", f"read {self.log}"
        if code == 0:
            return "it exited, and a restart would not have helped", f"read {self.log}, then mpsq service restart"
        return f"it is not running ({job.last_signal or job.state or 'state unknown'})", f"read {self.log}"

    def _load(self, done: str) -> str:
        self._stop()
        self._write()  # only while nothing is loaded, so that the loaded plist is always the written one
        return self._bootstrap(done)

    def _bootstrap(self, done: str) -> str:
        return self._check_running(self._load_into(self._domain()), done, 0)

    def _start(self, done: str) -> str:
        """Start or restart the job. Loaded in two domains, it stays in the one where it runs."""
        loaded = self._loaded()
        if not loaded or any(job.leaving for job in loaded.values()):
            return self._bootstrap(done)
        domain = next((domain for domain, job in loaded.items() if job.running), next(iter(loaded)))
        for other in loaded.keys() - {domain}:
            self._bootout(other)
        if not self._kickstart(domain, kill=loaded[domain].running):
            return self._bootstrap(done)  # it was unloaded meanwhile
        return self._check_running(domain, done, loaded[domain].runs or 0)

    def _stop(self, *, for_good: bool = False) -> None:
        """Unload the job: launchd would start it again otherwise. Its plist stays for the next login."""
        for domain in self._loaded():
            self._bootout(domain)

    def _check_running(self, domain: str, done: str, runs_before: int) -> str:
        """Wait until it runs and still does a second later. Raises: MpsqError when it does not, or is throttled."""
        deadline = self.clock() + _START_S
        pid, since = None, self.clock()
        while True:
            job = self._look(domain)
            if job is not None and job.running:
                if pid is None or job.pid != pid:
                    pid, since = job.pid, self.clock()
                if self.clock() - since >= _SETTLED_S:
                    break
            elif job is not None and job.last_exit_code is not None and (job.runs or 0) > runs_before:
                break
            if self.clock() >= deadline:
                break
            self.sleep(0.1)
        if job is None:
            raise MpsqError(f"launchd loaded {self.name}, but no longer has it", "run mpsq service install again")
        if not job.running:
            sentence, fix = self._why_down(job)
            raise MpsqError(f"{self.name} is {done}, but {sentence}", fix)
        if job.throttled:
            raise MpsqError(
                f"launchd runs {self.name} with limits (spawn type {job.spawn_type})",
                "its measurements would be wrong: run mpsq service uninstall, then install; see docs/macos.md",
            )
        logout = "; it stops when you log out" if domain.startswith("gui/") else ""
        return f"{self.name} is {done} and running (process {job.pid}, {domain}{logout})"

    def _check_user(self) -> None:
        if self.uid == 0 or os.environ.get("SUDO_UID"):
            raise MpsqError(
                "a LaunchAgent belongs to a user, not to root", "run mpsq service without sudo, as yourself"
            )

    # -- launchctl --------------------------------------------------------------------------------------------------

    def _loaded(self) -> dict[str, Printed]:
        """Return the job in each domain that has it: both, if an ssh login preceded one at the screen."""
        jobs = {domain: self._look(domain) for domain in (f"gui/{self.uid}", f"user/{self.uid}")}
        return {domain: job for domain, job in jobs.items() if job is not None}

    def _look(self, domain: str) -> Printed | None:
        """Return the job in that domain; None when it is not loaded there."""
        answer = self._call("print", f"{domain}/{self.name}")
        if answer.returncode == OK:
            return parse_print(answer.stdout)
        if answer.returncode in (NOT_FOUND, NO_SUCH_DOMAIN, ESRCH):
            return None
        raise _refused(answer, "show the service")

    def _domain(self) -> str:
        """Return the domain to load it in: the session at the screen if there is one, else the user's."""
        gui = f"gui/{self.uid}"
        return gui if self._call("print", gui).returncode == OK else f"user/{self.uid}"

    def _load_into(self, domain: str) -> str:
        """Load the plist. Return the domain that accepted it."""
        self._call("enable", f"{domain}/{self.name}")  # a `disable` outlives reboots
        deadline, pause_s = self.clock() + _PATIENCE_S, 0.25
        while True:
            answer = self._call("bootstrap", domain, str(self.path))
            if answer.returncode == OK:
                return domain
            if answer.returncode == NO_SUCH_DOMAIN and domain.startswith("gui/"):
                return self._load_into(f"user/{self.uid}")
            if answer.returncode not in (EIO, EINPROGRESS, EALREADY):
                raise _refused(answer, "load the service")
            job = self._look(domain)
            if job is not None and not job.leaving:
                return domain  # refused because it is loaded already
            if self.clock() >= deadline:
                raise _refused(answer, "load the service")
            self.sleep(pause_s)
            pause_s = min(2 * pause_s, 4.0)

    def _bootout(self, domain: str) -> None:
        """Unload the job and wait until it is gone, since launchd answers before that."""
        deadline, pause_s = self.clock() + STOP_TIMEOUT_S + 5, 0.1
        answer = self._call("bootout", f"{domain}/{self.name}")
        if answer.returncode not in _AWAITED:
            raise _refused(answer, "unload the service")
        while (job := self._look(domain)) is not None:
            if self.clock() >= deadline:
                raise _refused(answer, "unload the service")
            self.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
            if answer.returncode in (EINPROGRESS, EIO) and not job.leaving:
                answer = self._call("bootout", f"{domain}/{self.name}")

    def _kickstart(self, domain: str, *, kill: bool = False) -> bool:
        """Start or restart the loaded job. Return False when it is not loaded after all."""
        answer = self._call("kickstart", *(["-k"] if kill else []), f"{domain}/{self.name}")
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
