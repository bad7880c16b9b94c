"""Common parts of the launchd and systemd services: the program, its limits and its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from queue_runner.atomic_file import replacing
from queue_runner.errors import MpsqError

DEFAULT_LABEL = "dev.mpsq.worker"

STOP_TIMEOUT_S = 60
"""The worker's time between SIGTERM and SIGKILL; it needs well under a second."""

RESTART_AFTER_S = 10
"""Delay between starts of a crashing worker: a tighter loop would disturb an active run."""


@dataclass(frozen=True)
class ServiceStatus:
    """Status from the service manager. `problems` are (problem, remedy)."""

    installed: bool
    running: bool
    pid: int | None
    detail: str
    problems: tuple[tuple[str, str], ...] = ()


def write_definition(path: Path, content: bytes, log: Path) -> None:
    """Write a service's definition, readable by all and writable by its user alone, or launchd refuses it.

    Raises: MpsqError when it, or the service's log, cannot be written.
    """
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.touch(0o600)
        log.open("ab").close()  # the manager opens it before it starts the program: fail early
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=False, mode=0o644) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise MpsqError(
            f"{error.filename or path} cannot be written: {error.strerror}", "fix that, then try again"
        ) from error


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
