"""Where a block can be sent: the targets of --on and their profiles, the tables [on.NAME] of config.toml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from queue_runner.checks import Check
from queue_runner.config import Config
from queue_runner.paths import Layout
from queue_runner.remote.answers import Down, Seen
from queue_runner.remote.block import Folder
from queue_runner.remote.placement import check_folder, profile_of
from queue_runner.remote.read_json import read_json
from queue_runner.remote.slurm import Slurm
from queue_runner.remote.ssh import Ssh
from queue_runner.units import parse_duration

POLL_S = 10.0
GRACE_S = 60.0
"""How long a silent block is waited for after the scheduler calls it over: NFS shows a new name up to 60 s late, the
default acdirmax of nfs(5)."""
BOX_GRACE_S = 10.0
"""The same for a box, which is asked about its own disk."""


class Target(Protocol):
    """A place that runs blocks. Every method may take as long as its commands' time limit; but for `abort` one thread
    uses a target."""

    kind: str
    poll_s: float
    grace_s: float
    told: dict[str, Any]
    """What its nodes have to know beside the block itself."""

    down: Down | None
    """That it does not answer: until the time of the next try every call is Unreachable at once. None where it does,
    and where nothing waits for its answers."""

    def folder(self, token: str) -> Folder:
        """Return the block's folder as the front reads and writes it."""

    def send(self, token: str, options: Mapping[str, str]) -> str:
        """Submit the block whose folder is written; return its id. Raises: Unreachable, Refused, NotSent."""

    def look(self, token: str) -> Seen:
        """Return what is known of a block. Raises: Unreachable."""

    def fetch(self, token: str) -> None:
        """Bring what came back into the folder; where the target does not answer, `look` says so. Raises: OSError."""

    def has_started(self, token: str) -> bool:
        """Return whether the block was started: its fence is there, and is not the front's. Raises: OSError."""

    def void(self, token: str) -> bool:
        """Make a block void, or find that it is; False when it was started before. Raises: OSError, Unreachable."""

    def request(self, token: str, name: str) -> None:
        """Leave a request, `stop` or `cancel/12.3`, for the node. Raises: OSError."""

    def end(self, token: str, *, hard: bool) -> None:
        """Ask for the end of a block. Raises: Unreachable."""

    def remove(self, token: str) -> None:
        """Remove the folder of a block that is over. Raises: OSError, Unreachable."""

    def abort(self) -> None:
        """End the call that another thread waits for, and any later one: it is Unreachable then."""

    def checks(self, name: str, *, smoke: bool) -> Iterator[Check]:
        """Examine what blocks need, here and as far as it can be asked there; `name` is that of the profile, for the
        remedies. `smoke` may start something small there and remove it."""


def of(config: Config, layout: Layout, name: str) -> Target:
    """Return the target that --on names. Raises: UsageError for an unknown one, or without what it needs."""
    found = profile_of(config, name)
    poll_s = parse_duration(found["poll"], f"on.{name}.poll") if "poll" in found else POLL_S
    grace_s = parse_duration(found["grace"], f"on.{name}.grace") if "grace" in found else None
    if found["kind"] == "ssh":
        return Ssh(name, found, layout, poll_s, BOX_GRACE_S if grace_s is None else grace_s)
    check_folder(name, found)
    return Slurm(found, poll_s, GRACE_S if grace_s is None else grace_s)


def mirrored(layout: Layout) -> dict[str, str]:
    """Return the blocks of boxes that have left a folder here: their tokens, and the names of their targets."""
    paths = sorted(layout.blocks.iterdir()) if layout.blocks.is_dir() else []
    told = {path.name: read_json(Folder(path).instructions) or {} for path in paths}
    return {token: str(about["to"]) for token, about in told.items() if "to" in about}


def checks(settings: Config, layout: Layout, name: str, *, smoke: bool) -> list[Check]:
    """Run the checks of what --on NAME means. Raises: as `of`."""
    return list(of(settings, layout, name).checks(name, smoke=smoke))
