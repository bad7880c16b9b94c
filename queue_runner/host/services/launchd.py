"""The worker as a LaunchAgent: its plist, and the steps to install, restart and remove it.

The reasons for every key and step are in docs/macos.md. launchd is asynchronous: bootout returns before the job is
gone, and a bootstrap in between fails with 5 and leaves the service down. So each step checks the actual state.
"""

from __future__ import annotations

import os
import plistlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from queue_runner.errors import MpsqError
from queue_runner.host import protected
from queue_runner.host.services.launchctl import LAUNCHCTL, Control, Printed
from queue_runner.host.services.program import (
    DEFAULT_LABEL,
    RESTART_AFTER_S,
    STOP_TIMEOUT_S,
    Program,
    ServiceStatus,
    write_definition,
)

_START_S = 15.0
_SETTLED_S = 1.0
_EX_CONFIG = 78


@dataclass
class Launchd:
    """The LaunchAgent of one queue. The fields after `program` describe the machine; tests replace them."""

    program: Program
    launchctl: str = LAUNCHCTL
    user_home: Path = field(default_factory=Path.home)
    uid: int = field(default_factory=os.getuid)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    kind: str = "launchd"

    @property
    def plist(self) -> Path:
        """Path at which launchd finds the plist at every login."""
        return self.user_home / "Library" / "LaunchAgents" / f"{self.program.label}.plist"

    @property
    def log(self) -> Path:
        name = "worker" if self.program.label == DEFAULT_LABEL else self.program.label
        return self.user_home / "Library" / "Logs" / "mpsq" / f"{name}.log"

    def definition(self) -> dict[str, Any]:
        """Return the plist as a dictionary. Omitted on purpose: AbandonProcessGroup, Nice, LowPriorityIO, UserName."""
        return {
            "Label": self.program.label,
            "ProgramArguments": self.program.argv,
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},  # exit 0 means: a restart cannot fix it
            "ThrottleInterval": RESTART_AFTER_S,
            "ProcessType": "Interactive",  # any other type throttles every measurement
            "ExitTimeOut": STOP_TIMEOUT_S,
            "EnvironmentVariables": dict(self.program.environment),
            "WorkingDirectory": str(self.program.home),
            "StandardOutPath": str(self.log),
            "StandardErrorPath": str(self.log),
            "LimitLoadToSessionType": ["Aqua", "Background"],  # Background: without a login at the screen (ssh)
            "Umask": 0o077,
            "SoftResourceLimits": {"NumberOfFiles": 4096},
        }

    def install(self) -> str:
        """Load the service and check that it runs. Change nothing that is already right."""
        self._refuse_root()
        self._refuse_protected()
        definition = plistlib.dumps(self.definition(), sort_keys=False)
        loaded = self._control.loaded()
        for domain, job in loaded.items():
            if len(loaded) > 1 or job.leaving or self._written() != definition:
                break
            if job.running:
                return f"{self.program.label} is already installed and running (process {job.pid}); nothing was changed"
            if self._control.kickstart(domain):
                return self._see_it_run(domain, "started", job.runs or 0)
        for domain in loaded:
            self._control.bootout(domain, STOP_TIMEOUT_S + 5)
        # only while nothing is loaded, so that the loaded plist is always the written one
        write_definition(self.plist, definition, self.log)
        domain = self._control.bootstrap(self._control.domain(), self.plist)
        return self._see_it_run(domain, "reinstalled" if loaded else "installed", 0)

    def uninstall(self) -> str:
        """Remove the service from launchd and its plist from the disk."""
        self._refuse_root()
        loaded = self._control.loaded()
        was_there = bool(loaded) or self.plist.exists()
        for domain in loaded:
            self._control.bootout(domain, STOP_TIMEOUT_S + 5)
        try:
            self.plist.unlink(missing_ok=True)
        except OSError as error:
            raise MpsqError(f"{self.plist} cannot be removed: {error.strerror}", "remove it manually") from error
        if not was_there:
            return f"{self.program.label} was not installed"
        return (
            f"{self.program.label} is uninstalled; the queue stays in {self.program.home}, and an active run continues"
        )

    def start(self) -> str:
        """Load and start the service from its plist, through install when that is outdated."""
        self._refuse_root()
        if self._written() is None:
            raise MpsqError(f"{self.program.label} is not installed", "mpsq service install")
        loaded = self._control.loaded()
        if len(loaded) > 1 or not self._is_right():
            return self.install()
        for domain, job in loaded.items():
            if job.running:
                return f"{self.program.label} is already running (process {job.pid})"
            if not job.leaving and self._control.kickstart(domain):
                return self._see_it_run(domain, "started", job.runs or 0)
        return self._see_it_run(self._control.bootstrap(self._control.domain(), self.plist), "started", 0)

    def stop(self) -> str:
        """Unload the service: launchd would start it again otherwise. Its plist stays for the next login."""
        self._refuse_root()
        loaded = self._control.loaded()
        for domain in loaded:
            self._control.bootout(domain, STOP_TIMEOUT_S + 5)
        if not loaded:
            return f"{self.program.label} does not run"
        return f"{self.program.label} is stopped until mpsq service start or the next login; an active run continues"

    def restart(self) -> str:
        """Restart the worker, through install when the definition is outdated. Loaded in two domains, it stays in the
        one where it runs."""
        self._refuse_root()
        loaded = self._control.loaded()
        if loaded and self._is_right():
            domain_to_keep = next((domain for domain, job in loaded.items() if job.running), next(iter(loaded)))
            for domain in loaded.keys() - {domain_to_keep}:
                self._control.bootout(domain, STOP_TIMEOUT_S + 5)
            if self._control.kickstart(domain_to_keep, kill=True):
                return self._see_it_run(domain_to_keep, "restarted", loaded[domain_to_keep].runs or 0)
        return self.install()

    def status(self) -> ServiceStatus:
        """Return launchd's status, and all problems that would spoil a measurement."""
        label, there = self.program.label, self.plist.exists()
        try:
            loaded = self._control.loaded()
        except MpsqError as error:
            return ServiceStatus(there, False, None, error.message, ((error.message, error.hint),))
        job = next((j for j in loaded.values() if j.running), next(iter(loaded.values()), None))
        if job is None and not there:
            return ServiceStatus(False, False, None, f"{label} is not installed")
        detail = f"{label}: {job.state or 'loaded'} in {', '.join(loaded)}" if job else f"{label}: not loaded"
        running = job is not None and job.running
        return ServiceStatus(True, running, job.pid if job else None, detail, tuple(self._problems(job)))

    # -- current state ----------------------------------------------------------------------------------------------

    @property
    def _control(self) -> Control:
        return Control(self.program.label, self.launchctl, self.uid, self.clock, self.sleep)

    def _problems(self, job: Printed | None) -> list[tuple[str, str]]:
        problems = []
        again = "mpsq service install"
        if job is None:
            problems.append((f"{self.plist} exists, but launchd has not loaded it", again))
        elif job.throttled:
            problems.append((f"launchd throttles it and every job it starts (spawn type {job.spawn_type})", again))
        if self._written() is None:
            problems.append(
                (f"launchd runs it, but {self.plist} is missing: it will not start at the next login", again)
            )
        elif not self._is_right():
            problems.append(("it was installed for another queue, or by another version or Python", again))
        if not Path(self.program.python).exists():
            problems.append((f"its Python is gone: {self.program.python}", again))
        if job is not None and not job.running:
            problems.append(self._why_down(job))
        return problems

    def _why_down(self, job: Printed) -> tuple[str, str]:
        if job.last_exit_code == _EX_CONFIG:
            return (
                f"launchd could not start it ({job.last_exit}): a path in its plist cannot be opened",
                f"look at {self.log}",
            )
        if job.last_exit_code:
            return (
                f"it exited with code {job.last_exit_code} and is restarted every {RESTART_AFTER_S} s",
                f"read {self.log}",
            )
        if job.last_exit_code == 0:
            return "it exited, and a restart would not have helped", f"read {self.log}, then mpsq service restart"
        return f"it is not running ({job.last_signal or job.state or 'state unknown'})", f"read {self.log}"

    def _written(self) -> bytes | None:
        try:
            return self.plist.read_bytes()
        except OSError:
            return None

    def _is_right(self) -> bool:
        """Return whether the written definition differs at most in the installing shell's environment."""
        try:
            written = plistlib.loads(self._written() or b"")
        except (ValueError, ExpatError):  # InvalidFileException is a ValueError
            return False
        definition = self.definition()
        for plist in (written, definition):
            environment = plist.get("EnvironmentVariables") if isinstance(plist, dict) else None
            if not isinstance(environment, dict):
                return False
            plist["EnvironmentVariables"] = {k: v for k, v in environment.items() if k.startswith("MPSQ_")}
        return bool(written == definition)

    def _see_it_run(self, domain: str, done: str, runs_before: int) -> str:
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
            raise MpsqError(
                f"launchd loaded {self.program.label}, but no longer has it", "run mpsq service install again"
            )
        if not job.running:
            sentence, fix = self._why_down(job)
            raise MpsqError(f"{self.program.label} is {done}, but {sentence}", fix)
        if job.throttled:
            raise MpsqError(
                f"launchd runs {self.program.label} with limits (spawn type {job.spawn_type})",
                "its measurements would be wrong: run mpsq service uninstall, then install; see docs/macos.md",
            )
        logout = "; it stops when you log out" if domain.startswith("gui/") else ""
        return f"{self.program.label} is {done} and running (process {job.pid}, {domain}{logout})"

    # -- refusals ---------------------------------------------------------------------------------------------------

    def _refuse_root(self) -> None:
        if self.uid == 0 or os.environ.get("SUDO_UID"):
            raise MpsqError(
                "a LaunchAgent belongs to a user, not to root", "run mpsq service without sudo, as yourself"
            )

    def _refuse_protected(self) -> None:
        import queue_runner

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
