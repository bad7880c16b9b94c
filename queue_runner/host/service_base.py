"""Common parts of the launchd and systemd services: the program, its limits and its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Program:
    """The program of a service: the worker of one queue, in one interpreter."""

    label: str
    python: str
    home: Path
    environment: Mapping[str, str]

    @property
    def argv(self) -> list[str]:
        """Return the command line. `python` stays unresolved: a virtual environment is found by the link's location."""
        return [self.python, "-m", "queue_runner.worker", "--service"]
