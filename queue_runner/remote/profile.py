"""What --on NAME means: the table [on.NAME] of config.toml, typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from queue_runner.config_file import Config
from queue_runner.errors import UsageError
from queue_runner.units import parse_duration

BOX_GRACE_S = 10.0
"""How long a silent block is waited for after it is over, by the box itself, which is asked about its own disk."""
DURATIONS = ("poll", "grace", "time")
_HOST = re.compile(r"(?!-)[A-Za-z0-9_.:@%+\[\]/-]+")


@dataclass(frozen=True, kw_only=True)
class Profile:
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
    local: str = ""
    partition: str = ""
    gpus: str = ""
    sbatch: str = ""
    host: str = ""
    ssh: str = ""

    @property
    def is_box(self) -> bool:
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
        given: dict[str, Any] = {name: options[name] for name in ("partition", "gpus", "sbatch") if options.get(name)}
        if options.get("time"):
            given["time_s"] = float(options["time"])
        return replace(self, **given)


def find_profile(settings: Config, name: str) -> Profile:
    """Return the profile that `--on NAME` means, for a box with its host.

    Raises: UsageError for an unknown one, or a duration that cannot be read.
    """
    kind, colon, host = name.partition(":")
    table = host if colon else name
    stored: dict[str, Any] = {key: text for key, text in settings.on.get(table, {}).items() if text}
    for key in stored.keys() & DURATIONS:
        stored[f"{key}_s"] = parse_duration(stored.pop(key), f"on.{table}.{key}")
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
