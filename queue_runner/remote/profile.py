"""What --on NAME means: the table [on.NAME] of config.toml, typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from queue_runner.config_file import SLURM, Config
from queue_runner.errors import UsageError
from queue_runner.units import parse_duration

BOX_GRACE_S = 10.0
"""How long a silent block is waited for after it is over, by the box itself, which is asked about its own disk."""
DURATIONS = ("poll", "grace", "time")
_HOST = re.compile(r"(?!-)[A-Za-z0-9_.:@%+\[\]/-]+")


class Profile(Struct, frozen=True, kw_only=True):
    """A table [on.NAME] (docs/remote.md); `name` is its own. A text that is not set is ""."""

    name: str
    kind: str = "slurm"
    folder: str = ""
    python: str = "python3"
    poll_s: float = 10.0
    grace_s: float = 60.0
    """How long a silent block is waited for after the scheduler calls it over: NFS shows a new name up to 60 s late,
    the default acdirmax of nfs(5)."""
    time_s: float | None = None
    nodes_at_once: int | None = None
    local: str = ""
    gpus: str = ""
    sbatch: str = ""
    slurm: Mapping[str, str] = field(default_factory=dict)
    """Options of sbatch by name (config_file.SLURM)."""
    env: str = ""
    """Variables for Slurm's commands, NAME=VALUE: SLURM_CONF or SLURM_CLUSTERS of another cluster."""
    setup: str = ""
    """A line of shell before mpsq starts on a node."""
    wrapper: str = ""
    """Words before the interpreter on a node, as of a container."""
    host: str = ""
    ssh: str = ""

    @property
    def is_box(self) -> bool:
        """Whether it is somebody's machine, without a scheduler and a shared folder."""
        return self.kind == "ssh"

    def shared_folder(self) -> Path:
        """Return the folder that this machine and the nodes of Slurm share. Raises: UsageError without one."""
        if not self.folder.startswith("/"):
            raise UsageError(
                f"on.{self.name}.folder is not set to a folder that this machine and the nodes share",
                f"mpsq config set on.{self.name}.folder /path/on/the/shared/disk",
            )
        return Path(self.folder)

    def for_block(self, options: Mapping[str, str]) -> Profile:
        """Return the profile with the options of a submission (JobSpec.on), whose `time` is in seconds."""
        partition = {"partition": options["partition"]} if options.get("partition") else {}
        return replace(
            self,
            slurm={**self.slurm, **partition},
            gpus=options.get("gpus") or self.gpus,
            nodes_at_once=int(options["nodes"]) if options.get("nodes") else self.nodes_at_once,
            time_s=float(options["time"]) if options.get("time") else self.time_s,
            sbatch=f"{self.sbatch} {options.get('sbatch', '')}".strip(),
        )

    @property
    def is_whole_node(self) -> bool:
        """Whether nobody else may be on the node of Slurm."""
        return "--exclusive" in shlex.split(self.sbatch)


def find_profile(settings: Config, name: str) -> Profile:
    """Return the profile that `--on NAME` means, for a box with its host.

    Raises: UsageError for an unknown one, or a duration or number that cannot be read.
    """
    kind, colon, host = name.partition(":")
    table = host if colon else name
    stored: dict[str, Any] = {key: text for key, text in settings.on.get(table, {}).items() if text}
    for key in stored.keys() & DURATIONS:
        stored[f"{key}_s"] = parse_duration(stored.pop(key), f"on.{table}.{key}")
    if (nodes := stored.pop("nodes-at-once", None)) is not None:
        if not nodes.isdecimal() or int(nodes) < 1:
            raise UsageError(f'on.{table}.nodes-at-once takes a number of nodes, not "{nodes}"', "give 1 or more")
        stored["nodes_at_once"] = int(nodes)
    stored["slurm"] = {key: stored.pop(key) for key in SLURM if key in stored}
    if colon:
        stored = {**(stored if stored.get("kind") == "ssh" else {}), "kind": kind}
    box = {"host": table, "grace_s": BOX_GRACE_S} if stored.get("kind") == "ssh" else {}
    profile = Profile(name=table, **{"kind": name, **box, **stored})
    if profile.kind not in ("slurm", "ssh") or (profile.is_box and not profile.host) or (colon and not profile.is_box):
        hint = "--on takes slurm, ssh:HOST, or the name of a profile of kind slurm or ssh"
        raise UsageError(f'there is no target "{name}"', hint)
    if profile.is_box and not _HOST.fullmatch(profile.host):
        raise UsageError(f'"{profile.host}" is not a valid host', "--on ssh:HOST takes what ssh takes, such as me@box")
    return profile
