"""What launchd's and systemd's services have in common: the program, its limits and its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_LABEL = "dev.mpsq.worker"

STOP_TIMEOUT_S = 60
"""What the worker gets between SIGTERM and SIGKILL; it needs well under a second."""

RESTART_AFTER_S = 10
"""Between two starts of a worker that crashes: a tighter loop would disturb the run that goes on meanwhile."""


@dataclass(frozen=True)
class ServiceStatus:
    """What the service manager says. `problems` are (what is wrong, what to do about it)."""

    installed: bool
    running: bool
    pid: int | None
    detail: str
    problems: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Program:
    """What a service manager is to run: the worker of one queue, in one interpreter."""

    label: str
    python: str
    home: Path
    environment: Mapping[str, str]

    @property
    def argv(self) -> list[str]:
        """The command line. `python` stays unresolved: a virtual environment is found by the link's own place."""
        return [self.python, "-m", "queue_runner.worker", "--service"]
