"""A user service that runs the worker. The verbs and their results are the same for launchd and systemd."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from queue_runner.atomic_file import replacing
from queue_runner.errors import MpsqError
from queue_runner.host.command import plain_environment

STOP_TIMEOUT_S = 60
"""The worker's time between SIGTERM and SIGKILL; it needs well under a second."""

RESTART_AFTER_S = 10
"""Delay between starts of a crashing worker: a tighter loop would disturb an active run."""

INSTALL = "mpsq service install"

Problem = tuple[str, str]
"""A problem, and its remedy."""


@dataclass(frozen=True)
class ServiceStatus:
    """Status of a service, with everything that would spoil a measurement or end the service."""

    installed: bool
    running: bool
    pid: int | None
    detail: str
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Program:
    """The program of a service: the worker of one queue, in one interpreter.

    `python` stays unresolved: a virtual environment is found by the link's location. `mpsq` is the installed command,
    None where it is not beside that interpreter.
    """

    label: str
    python: str
    home: Path
    environment: Mapping[str, str]
    mpsq: str | None = None

    @property
    def argv(self) -> list[str]:
        """Return the command line, `mpsq worker --service`, which becomes the worker (exec)."""
        command = [self.mpsq] if self.mpsq else [self.python, "-m", "queue_runner.cli"]
        return [*command, "worker", "--service"]


@dataclass(frozen=True)
class ManagerState:
    """The service as its manager sees it. `known`: loaded. `alive`: running, or about to be started again. `settled`:
    an install would leave it as it is."""

    known: bool
    alive: bool
    running: bool
    settled: bool
    pid: int | None
    detail: str
    problems: tuple[Problem, ...]


@dataclass
class UserService(ABC):
    """A service of this user. What changes it returns a sentence about the result. Every method raises MpsqError, with
    a remedy, when the service manager refuses."""

    program: Program
    user_home: Path = field(default_factory=Path.home, kw_only=True)
    uid: int = field(default_factory=os.getuid, kw_only=True)

    kind: ClassVar[str]
    """launchd or systemd"""
    name: str = field(init=False)
    """the manager's name for it"""
    path: Path = field(init=False)
    """path of the definition"""
    log: Path = field(init=False)
    """path of the worker's log"""

    def install(self) -> str:
        """Install and start the service, whatever its previous state. Change nothing that is already right."""
        self._check_user()
        state = self._state()
        if state.settled and self._written() == self._content():
            if state.running:
                return f"{self.name} is already installed and running (process {state.pid}); nothing was changed"
            return self._start("started")
        was_there = state.known or self._written() is not None
        return self._load("reinstalled" if was_there else "installed")

    def uninstall(self) -> str:
        """Stop and remove the service; the queue stays."""
        self._check_user()
        if not self._state().known and self._written() is None:
            return f"{self.name} was not installed"
        self._stop(for_good=True)
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise MpsqError(f"{self.path} cannot be removed: {error.strerror}", "remove it manually") from error
        return f"{self.name} is uninstalled; the queue stays in {self.program.home}, and an active run continues"

    def start(self) -> str:
        """Start the installed service unless it runs, through install when its definition is outdated."""
        self._check_user()
        if self._written() is None:
            raise MpsqError(f"{self.name} is not installed", INSTALL)
        if not self._is_current():
            return self.install()
        state = self._state()
        if state.running:
            return f"{self.name} is already running (process {state.pid})"
        return self._start("started")

    def stop(self) -> str:
        """Stop the worker until it is started, or until the next login; a run continues."""
        self._check_user()
        if not self._state().alive:
            return f"{self.name} does not run"
        self._stop()
        return f"{self.name} is stopped until mpsq service start or the next login; an active run continues"

    def restart(self) -> str:
        """Restart the worker, through install when the service is missing or outdated; a run continues meanwhile."""
        self._check_user()
        return self._start("restarted") if self._is_current() and self._state().known else self.install()

    def status(self) -> ServiceStatus:
        """Return the current status."""
        written = self._written() is not None
        try:
            state = self._state()
        except MpsqError as error:
            return ServiceStatus(written, False, None, error.message, ((error.message, error.hint),) if written else ())
        if not written and not state.known:
            return ServiceStatus(False, False, None, f"{self.name} is not installed")
        problems = (*self._problems_of_definition(), *state.problems)
        return ServiceStatus(True, state.running, state.pid, f"{self.name}: {state.detail}", problems)

    def _problems_of_definition(self) -> Iterator[Problem]:
        if self._written() is None:
            yield f"{self.path} is missing: the service will not start at the next login", INSTALL
        elif not self._is_current():
            yield "it was installed for another queue, or by another version or Python", INSTALL
        if not Path(self.program.python).exists():
            yield f"its Python is gone: {self.program.python}", INSTALL

    def _written(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except OSError:
            return None

    def _is_current(self) -> bool:
        """Return whether the written definition differs at most in the installing shell's environment."""
        written = self._written()
        return written is not None and self._essence(written) == self._essence(self._content())

    def _write(self) -> None:
        """Write the definition, readable by all and writable by its user alone, or launchd refuses it.

        Raises: MpsqError when it, or the service's log, cannot be written.
        """
        try:
            self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.log.touch(0o600)
            self.log.open("ab").close()  # the manager opens it before it starts the program: fail early
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path, durable=False, mode=0o644) as partial:
                partial.write_bytes(self._content())
        except OSError as error:
            raise MpsqError(
                f"{error.filename or self.path} cannot be written: {error.strerror}", "fix that, then try again"
            ) from error

    # -- differences between the managers ---------------------------------------------------------------------------

    @abstractmethod
    def _check_user(self) -> None:
        """Raise: MpsqError when the service would belong to another user."""

    @abstractmethod
    def _content(self) -> bytes:
        """Return the content of the definition."""

    @abstractmethod
    def _essence(self, content: bytes) -> object:
        """Return a definition without the installing shell's environment, for a comparison."""

    @abstractmethod
    def _state(self) -> ManagerState:
        """Return the manager's view of the service."""

    @abstractmethod
    def _load(self, done: str) -> str:
        """Write the definition, load it and start the service. `done` is the verb of the returned sentence."""

    @abstractmethod
    def _start(self, done: str) -> str:
        """Start the installed service, or restart it if it runs, and check that it runs."""

    @abstractmethod
    def _stop(self, *, for_good: bool = False) -> None:
        """Stop the service until the next login, or for good."""


def run_tool(argv: Sequence[str], timeout_s: float, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of the service manager, with additional `variables`. Raises: MpsqError when it is missing or hangs."""
    try:
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=timeout_s, env={**plain_environment(), **variables}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise MpsqError(f"{argv[0]} did not answer within {timeout_s:.0f} s", "try again") from error
    except OSError as error:
        raise MpsqError(f"{argv[0]} cannot be run: {error.strerror}", "a service needs launchd or systemd") from error
