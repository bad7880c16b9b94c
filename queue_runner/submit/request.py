"""Request of a submission, as filled in by the command line, a file or the Python client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_SEED = 1337  # the seed of nanoGPT's train.py


@dataclass(frozen=True)
class Request:
    """A request for either a workload or a command (argv), never both. Lists are comma-separated."""

    workload: str | None = None
    argv: tuple[str, ...] = ()
    framework: str | None = None
    device: str | None = None
    compile: str | None = None
    config: str | None = None
    dtype: str | None = None
    sets: tuple[str, ...] = ()
    seed: int = DEFAULT_SEED
    repeats: int = 1
    priority: int = 0
    name: str | None = None
    tags: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    cwd: str | None = None
    python: str | None = None
    timeout_s: float | None = None
    parser: str | None = None
    allow_daemons: bool = False
    copy: bool = False
    allow_changed: bool = False
    stall: tuple[str, ...] = ()
    order_seed: int | None = None
    title: str = "mpsq submit"
    after: tuple[str, ...] = ()
    at: str | None = None
    deadline: str | None = None
    hold: bool = False
    note: str | None = None
    retries: int = 0
    backoff_s: float = 0.0
    retry_on: str | None = None
    resume: bool = False
    env_name: str | None = None
    mps: tuple[str, ...] = ()  # each a set of settings; several are swept
    home: str | None = None  # queue of its environments and workloads; MPSQ_HOME or the default if None
    find_max: str | None = None
    environment: Mapping[str, str] | None = None  # the job's environment; that of this process if None
