"""Where a block can be sent: the targets of --on and their profiles, the tables [on.NAME] of config.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping

from queue_runner.checks import Check
from queue_runner.config_file import Config
from queue_runner.errors import UsageError
from queue_runner.paths import Layout
from queue_runner.remote.block import Folder
from queue_runner.remote.json_files import read_json
from queue_runner.remote.slurm.cluster import Slurm
from queue_runner.remote.ssh import Ssh
from queue_runner.remote.target import Target
from queue_runner.units import parse_duration

POLL_S = 10.0
GRACE_S = 60.0
"""How long a silent block is waited for after the scheduler calls it over: NFS shows a new name up to 60 s late, the
default acdirmax of nfs(5)."""
BOX_GRACE_S = 10.0
"""The same for a box, which is asked about its own disk."""
_HOST = re.compile(r"(?!-)[A-Za-z0-9_.:@%+\[\]/-]+")


def profile_of(settings: Config, name: str) -> Mapping[str, str]:
    """Return the profile that `--on NAME` means, with its `kind`, and for a box its `host`.

    Raises: UsageError for an unknown one.
    """
    kind, colon, host = name.partition(":")
    stored = settings.on.get(host if colon else name, {})
    if colon:
        stored = stored if stored.get("kind") == "ssh" else {}
        profile = {**stored, "kind": kind, "host": stored.get("host", host)}
    else:
        profile = {"kind": name, **({"host": name} if stored.get("kind") == "ssh" else {}), **stored}
    if profile["kind"] == "ssh" and "host" in profile:
        if not _HOST.fullmatch(profile["host"]):
            raise UsageError(
                f'"{profile["host"]}" is not a valid host', "--on ssh:HOST takes what ssh takes, such as me@box"
            )
        return profile
    if colon or profile["kind"] != "slurm":
        hint = "--on takes slurm, ssh:HOST, or the name of a profile of kind slurm or ssh"
        raise UsageError(f'there is no target "{name}"', hint)
    return profile


def check_folder(name: str, profile: Mapping[str, str]) -> None:
    """Raise UsageError for a profile of Slurm without the folder that it needs."""
    if not profile.get("folder", "").startswith("/"):
        raise UsageError(
            f"on.{name}.folder is not set to a folder that this machine and the nodes share",
            f"mpsq config set on.{name}.folder /path/on/the/shared/disk",
        )


def of(config: Config, layout: Layout, name: str) -> Target:
    """Return the target that --on names. Raises: UsageError for an unknown one, or without what it needs."""
    profile = profile_of(config, name)
    is_box = profile["kind"] == "ssh"
    poll_s = parse_duration(profile["poll"], f"on.{name}.poll") if "poll" in profile else POLL_S
    grace_s = BOX_GRACE_S if is_box else GRACE_S
    if "grace" in profile:
        grace_s = parse_duration(profile["grace"], f"on.{name}.grace")
    if is_box:
        return Ssh(name, profile, layout, poll_s, grace_s)
    check_folder(name, profile)
    return Slurm(profile, poll_s, grace_s)


def mirrored(layout: Layout) -> dict[str, str]:
    """Return the blocks of boxes that have left a folder here: their tokens, and the names of their targets."""
    paths = sorted(layout.blocks.iterdir()) if layout.blocks.is_dir() else []
    targets = {path.name: (read_json(Folder(path).instructions) or {}).get("to") for path in paths}
    return {token: str(name) for token, name in targets.items() if name is not None}


def checks(settings: Config, layout: Layout, name: str, *, smoke: bool) -> list[Check]:
    """Run the checks of the target that --on names. Raises: as `of`."""
    return list(of(settings, layout, name).checks(name, smoke=smoke))
