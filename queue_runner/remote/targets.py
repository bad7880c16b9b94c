"""Where a block can be sent: the targets of --on and their profiles, the tables [on.NAME] of config.toml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from queue_runner.checks import Check
from queue_runner.config import Config
from queue_runner.errors import UsageError
from queue_runner.remote.answers import Seen
from queue_runner.remote.block import Folder
from queue_runner.remote.slurm import Slurm
from queue_runner.units import parse_duration

POLL_S = 10.0
GRACE_S = 60.0
"""How long a silent block is waited for after the scheduler calls it over: NFS shows a new name up to 60 s late, the
default acdirmax of nfs(5)."""


class Target(Protocol):
    """A place that runs blocks. Every method may take as long as its commands' time limit."""

    kind: str
    poll_s: float
    grace_s: float
    local: str

    def folder(self, token: str) -> Folder:
        """Return the block's folder as the front reads and writes it."""

    def send(self, token: str, options: Mapping[str, str]) -> str:
        """Submit the block whose folder is written; return its id. Raises: Unreachable, Refused."""

    def look(self, token: str) -> Seen:
        """Return what is known of a block. Raises: Unreachable."""

    def fetch(self, token: str) -> None:
        """Bring what came back into the folder. Raises: OSError."""

    def has_fence(self, token: str) -> bool:
        """Return whether the block was started, or made void. Raises: OSError."""

    def void(self, token: str) -> bool:
        """Make a block void; False when it was started before. Raises: OSError."""

    def request(self, token: str, name: str) -> None:
        """Leave a request, `stop` or `cancel/12.3`, for the node. Raises: OSError."""

    def end(self, token: str, *, hard: bool) -> None:
        """Ask for the end of a block. Raises: Unreachable."""

    def remove(self, token: str) -> None:
        """Remove the folder of a block that is over."""

    def checks(self, name: str, *, smoke: bool) -> Iterator[Check]:
        """Examine what blocks need, here and as far as it can be asked there; `name` is that of the profile, for the
        remedies. `smoke` may start something small there and remove it."""


def profile(config: Config, name: str) -> Mapping[str, str]:
    """Return the profile of a target by its name, `slurm`; empty where config.toml has none."""
    return config.on.get(name, {})


def of(config: Config, name: str) -> Target:
    """Return the target that --on names. Raises: UsageError for an unknown one, or without what it needs."""
    found = profile(config, name)
    if name != "slurm" and found.get("kind") != "slurm":
        raise UsageError(f'there is no target "{name}"', "--on takes slurm, or the name of a profile of kind slurm")
    if not found.get("folder", "").startswith("/"):
        raise UsageError(
            f"the profile on.{name} has no folder that this machine and the nodes share",
            f"mpsq config set on.{name}.folder /path/on/the/shared/disk",
        )
    poll_s = parse_duration(found["poll"], f"on.{name}.poll") if "poll" in found else POLL_S
    grace_s = parse_duration(found["grace"], f"on.{name}.grace") if "grace" in found else GRACE_S
    return Slurm(found, poll_s, grace_s)
