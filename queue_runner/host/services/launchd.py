"""The worker as a LaunchAgent: its plist, and the steps to install, restart and remove it.

docs/macos.md has the checks. launchd is asynchronous: bootout returns before the job is gone, and a bootstrap in
between fails with 5 and leaves the service down. So each step checks the actual state.
"""

from __future__ import annotations

import os
import plistlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

import queue_runner
from queue_runner.errors import MpsqError
from queue_runner.host import protected
from queue_runner.host.services.launchctl import LAUNCHCTL, Control, Printed
from queue_runner.host.services.user_service import (
    INSTALL,
    RESTART_AFTER_S,
    STOP_TIMEOUT_S,
    ManagerState,
    Problem,
    UserService,
)
from queue_runner.paths import launchd_log

_START_S = 15.0
_SETTLED_S = 1.0
_EX_CONFIG = 78


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
        loaded = self._control.loaded()
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
        return self._check_running(self._control.bootstrap(self._control.domain(), self.path), done, 0)

    def _start(self, done: str) -> str:
        """Start or restart the job. Loaded in two domains, it stays in the one where it runs."""
        loaded = self._control.loaded()
        if not loaded or any(job.leaving for job in loaded.values()):
            return self._bootstrap(done)
        domain = next((domain for domain, job in loaded.items() if job.running), next(iter(loaded)))
        for other in loaded.keys() - {domain}:
            self._control.bootout(other, STOP_TIMEOUT_S + 5)
        if not self._control.kickstart(domain, kill=loaded[domain].running):
            return self._bootstrap(done)  # it was unloaded meanwhile
        return self._check_running(domain, done, loaded[domain].runs or 0)

    def _stop(self, *, for_good: bool = False) -> None:
        """Unload the job: launchd would start it again otherwise. Its plist stays for the next login."""
        for domain in self._control.loaded():
            self._control.bootout(domain, STOP_TIMEOUT_S + 5)

    @property
    def _control(self) -> Control:
        return Control(self.name, self.launchctl, self.uid, self.clock, self.sleep)

    def _check_running(self, domain: str, done: str, runs_before: int) -> str:
        """Wait until it runs and still does a second later. Raises: MpsqError when it does not, or is throttled."""
        deadline = self.clock() + _START_S
        pid, since = None, self.clock()
        while True:
            job = self._control.look(domain)
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
