"""The worker as a LaunchAgent: its plist, and the steps by which launchd takes it, keeps it and lets it go.

Every key and every step has its reason in docs/macos.md. launchd changes its mind only by and by: bootout returns before
the job is gone, and a bootstrap in between fails with 5 and leaves the service down. So each step looks at what is there.
"""

from __future__ import annotations

import os
import plistlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queue_runner.errors import MpsqError
from queue_runner.host import launchctl as ctl
from queue_runner.host.launchctl import LAUNCHCTL, Answer, Printed
from queue_runner.host.service import DEFAULT_LABEL, RESTART_AFTER_S, STOP_TIMEOUT_S, Program, ServiceStatus

_PATIENCE_S = 30.0
_START_S = 10.0
_EX_CONFIG = 78
_PROTECTED = ("Documents", "Desktop", "Downloads", "Library/Mobile Documents")


@dataclass
class Launchd:
    """The LaunchAgent of one queue. The fields after `program` are the machine; tests put a stand-in there."""

    program: Program
    launchctl: str = LAUNCHCTL
    user_home: Path = field(default_factory=Path.home)
    uid: int = field(default_factory=os.getuid)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    kind: str = "launchd"

    @property
    def plist(self) -> Path:
        """Where launchd looks for it at every login."""
        return self.user_home / "Library" / "LaunchAgents" / f"{self.program.label}.plist"

    @property
    def log(self) -> Path:
        name = "worker" if self.program.label == DEFAULT_LABEL else self.program.label
        return self.user_home / "Library" / "Logs" / "mpsq" / f"{name}.log"

    def definition(self) -> dict[str, Any]:
        """The plist as a dictionary. Not in it on purpose: AbandonProcessGroup, Nice, LowPriorityIO, UserName."""
        return {
            "Label": self.program.label,
            "ProgramArguments": self.program.argv,
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},  # exit 0 means: a restart cannot mend it
            "ThrottleInterval": RESTART_AFTER_S,
            "ProcessType": "Interactive",  # with any other, every measurement is made under limits
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
        """Load the service and see it run; what is already so is left alone."""
        self._refuse_root()
        self._refuse_protected()
        wanted = plistlib.dumps(self.definition(), sort_keys=False)
        loaded = self._loaded()
        same = self._written() == wanted
        if same and len(loaded) == 1 and not (job := next(iter(loaded.values()))).leaving:
            domain = next(iter(loaded))
            if job.running:
                return f"{self.program.label} is installed and running already (process {job.pid}); nothing was changed"
            self._must(self._call("kickstart", self._service(domain)), "start it")
            return self._wait_for_start(domain, "started")
        for domain in loaded:
            self._bootout(domain)
        self._write(wanted)  # only while nothing is loaded: so what is loaded is always what is written
        domain = self._bootstrap(self._domain())
        return self._wait_for_start(domain, "installed" if not loaded else "installed anew")

    def uninstall(self) -> str:
        """Take the service out of launchd and its plist off the disk."""
        self._refuse_root()
        loaded = self._loaded()
        was_there = bool(loaded) or self.plist.exists()
        for domain in loaded:
            self._bootout(domain)
        try:
            self.plist.unlink(missing_ok=True)
        except OSError as error:
            raise MpsqError(f"{self.plist} cannot be removed: {error.strerror}", "remove it by hand") from error
        if not was_there:
            return f"{self.program.label} was not installed"
        return f"{self.program.label} is uninstalled; the queue stays in {self.program.home}, and a run goes on to its end"

    def restart(self) -> str:
        """Start the worker anew. A definition that has changed takes the way of install."""
        self._refuse_root()
        loaded = self._loaded()
        if not loaded or self._written() != plistlib.dumps(self.definition(), sort_keys=False):
            return self.install()
        domain = next(iter(loaded))
        answer = self._call("kickstart", "-k", self._service(domain))
        if answer.code == ctl.NOT_FOUND:
            return self.install()
        self._must(answer, "restart it")
        return self._wait_for_start(domain, "restarted")

    def status(self) -> ServiceStatus:
        """What launchd says, and everything about it that would spoil a measurement."""
        try:
            loaded = self._loaded()
        except MpsqError as error:
            return ServiceStatus(self.plist.exists(), False, None, error.message, ((error.message, error.hint),))
        job = next((j for j in loaded.values() if j.running), next(iter(loaded.values()), None))
        if job is None and not self.plist.exists():
            return ServiceStatus(False, False, None, f"{self.program.label} is not installed")
        detail = f"{self.program.label}: {job.state or 'loaded'} in {', '.join(loaded)}" if job else "written, but not loaded"
        running = job is not None and job.running
        return ServiceStatus(True, running, job.pid if job else None, detail, tuple(self._problems(job)))

    # -- what is there ----------------------------------------------------------------------------------------------

    def _problems(self, job: Printed | None) -> list[tuple[str, str]]:
        found = []
        again = "mpsq service install"
        if job is None:
            found.append((f"{self.plist} is there, but launchd has not loaded it", again))
        elif job.throttled:
            found.append((f"launchd throttles it and every job below it (spawn type {job.spawn_type})", again))
        written = self._written()
        if written is None:
            found.append((f"launchd runs a service whose {self.plist.name} is gone", again))
        elif written != plistlib.dumps(self.definition(), sort_keys=False):
            found.append(("it was installed by another version of mpsq, for another queue or in another environment", again))
        if not Path(self.program.python).exists():
            found.append((f"its Python is gone: {self.program.python}", again))
        if job is not None and not job.running:
            found += self._why_down(job)
        return found

    def _why_down(self, job: Printed) -> list[tuple[str, str]]:
        if job.last_exit_code == _EX_CONFIG:
            return [(f"launchd could not start it ({job.last_exit}): its log or folder cannot be opened", f"look at {self.log}")]
        if job.last_exit_code:
            return [(f"it ended with code {job.last_exit_code} and is started again every {RESTART_AFTER_S} s", f"read {self.log}")]
        if job.last_exit_code == 0:
            return [("it ended by itself: a restart would not have helped", f"read {self.log}, then mpsq service restart")]
        return [(f"it does not run ({job.state or 'state unknown'})", f"read {self.log}")]

    def _loaded(self) -> dict[str, Printed]:
        """The job in each domain that has it. It is in both, if a login over ssh came before one at the screen."""
        found = {}
        for domain in (f"gui/{self.uid}", f"user/{self.uid}"):
            if (job := self._look(domain)) is not None:
                found[domain] = job
        return found

    def _look(self, domain: str) -> Printed | None:
        answer = self._call("print", self._service(domain))
        if answer.code == ctl.OK:
            return ctl.parse_print(answer.output)
        if answer.code in (ctl.NOT_FOUND, ctl.NO_SUCH_DOMAIN, ctl.ESRCH):
            return None
        raise self._error(answer, "look at it")

    def _domain(self) -> str:
        gui = f"gui/{self.uid}"
        return gui if self._call("print", gui).code == ctl.OK else f"user/{self.uid}"

    def _written(self) -> bytes | None:
        try:
            return self.plist.read_bytes()
        except OSError:
            return None

    # -- steps ------------------------------------------------------------------------------------------------------

    def _bootstrap(self, domain: str) -> str:
        """Load the plist; returns the domain that took it."""
        self._call("enable", self._service(domain))  # a `disable` outlives reboots; an answer of its own it has none
        deadline, pause_s = self.clock() + _PATIENCE_S, 0.25
        while True:
            answer = self._call("bootstrap", domain, str(self.plist))
            if answer.code == ctl.OK:
                return domain
            if answer.code == ctl.NO_SUCH_DOMAIN and domain.startswith("gui/"):
                return self._bootstrap(f"user/{self.uid}")
            if answer.code not in (ctl.EIO, ctl.EINPROGRESS, ctl.EALREADY):
                raise self._error(answer, "load it")
            job = self._look(domain)
            if answer.code != ctl.EINPROGRESS and job is not None and not job.leaving:
                return domain  # it said no because it has it
            if self.clock() >= deadline:
                raise self._error(answer, "load it")
            self.sleep(pause_s)
            pause_s = min(2 * pause_s, 4.0)

    def _bootout(self, domain: str) -> None:
        """Unload the job and wait until it is gone."""
        deadline, pause_s = self.clock() + STOP_TIMEOUT_S + 5, 0.1
        answer = self._call("bootout", self._service(domain))
        while self._look(domain) is not None:
            if self.clock() >= deadline:
                raise self._error(answer, "unload it")
            self.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
            if answer.code == ctl.EINPROGRESS or (answer.code == ctl.EIO and not self._is_leaving(domain)):
                answer = self._call("bootout", self._service(domain))

    def _is_leaving(self, domain: str) -> bool:
        job = self._look(domain)
        return job is None or job.leaving

    def _wait_for_start(self, domain: str, done: str) -> str:
        """See that it runs and without limits. A job that ended at once, or that launchd could not start, is an error."""
        deadline = self.clock() + _START_S
        while (job := self._look(domain)) is None or not job.running:
            if job is not None and (job.last_exit_code is not None or self.clock() >= deadline):
                sentence, fix = self._why_down(job)[0]
                raise MpsqError(f"{self.program.label} is {done}, but {sentence}", fix)
            if self.clock() >= deadline:
                raise MpsqError(f"launchd took {self.program.label} and lost it again", "mpsq service install once more")
            self.sleep(0.1)
        if job.throttled:
            raise MpsqError(
                f"launchd runs {self.program.label} with limits (spawn type {job.spawn_type})",
                "its measurements would be wrong: mpsq service uninstall, then install; docs/macos.md says how to look",
            )
        logout = "; it stops when you log out" if domain.startswith("gui/") else ""
        return f"{self.program.label} is {done} and running (process {job.pid}, {domain}{logout})"

    def _write(self, content: bytes) -> None:
        """The plist must be its user's and writable by nobody else, or launchd refuses it."""
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.open("ab").close()  # launchd opens it before it starts the program: find out now
            self.plist.parent.mkdir(parents=True, exist_ok=True)
            descriptor, partial = tempfile.mkstemp(prefix=".mpsq-", dir=self.plist.parent)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            Path(partial).chmod(0o644)
            Path(partial).replace(self.plist)
        except OSError as error:
            raise MpsqError(f"{error.filename or self.plist} cannot be written: {error.strerror}", "mend it, then again") from error

    # -- refusals and words -----------------------------------------------------------------------------------------

    def _refuse_root(self) -> None:
        if self.uid == 0 or os.environ.get("SUDO_UID"):
            raise MpsqError("a LaunchAgent belongs to a user, not to root", "run mpsq service without sudo, as yourself")

    def _refuse_protected(self) -> None:
        import queue_runner

        for what, path in (
            ("this Python", Path(self.program.python)),
            ("mpsq itself", Path(queue_runner.__file__).parent),
            ("the queue", self.program.home),
        ):
            if place := protected_place(path, self.user_home):
                raise MpsqError(
                    f"{what} lies in {place}, which macOS keeps closed to services: {path}",
                    "move it, for instance below ~/src or ~/Library/Application Support, and install again",
                )

    def _service(self, domain: str) -> str:
        return f"{domain}/{self.program.label}"

    def _call(self, *arguments: str) -> Answer:
        return ctl.call(self.launchctl, arguments)

    def _must(self, answer: Answer, what: str) -> None:
        if answer.code not in (ctl.OK, ctl.EALREADY):
            raise self._error(answer, what)

    def _error(self, answer: Answer, what: str) -> MpsqError:
        said = answer.message.splitlines()[0] if answer.message else f"code {answer.code}"
        return MpsqError(f"launchd would not {what}: {said}", f"launchctl error {answer.code} explains; see docs/macos.md")


def protected_place(path: Path, user_home: Path) -> str | None:
    """The place that macOS closes to services (TCC) and that `path` lies in; None elsewhere. A path there is refused
    with EPERM to a service even though it works in a terminal, so the refusal must not be read as "not there"."""
    for candidate in (path, path.resolve()):
        text = str(candidate).casefold()
        for name in _PROTECTED:
            if (text + "/").startswith(str(user_home / name).casefold() + "/"):
                return f"~/{name}"
    if path.resolve().is_relative_to("/Volumes"):
        return "another volume"
    return None
