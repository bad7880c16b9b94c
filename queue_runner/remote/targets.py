"""Where a block can be sent: the targets of --on."""

from __future__ import annotations

from queue_runner.checks import Check
from queue_runner.config_file import Config
from queue_runner.paths import Layout
from queue_runner.remote.block import Folder
from queue_runner.remote.json_files import read_json
from queue_runner.remote.profile import find_profile
from queue_runner.remote.slurm.cluster import Slurm
from queue_runner.remote.slurm.cluster_checks import of_cluster
from queue_runner.remote.ssh import Ssh
from queue_runner.remote.target import Target


def of(config: Config, layout: Layout, name: str) -> Target:
    """Return the target that --on names. Raises: UsageError for an unknown one, or without what it needs."""
    profile = find_profile(config, name)
    return Ssh(name, profile, layout) if profile.is_box else Slurm(profile)


def mirrored(layout: Layout) -> dict[str, str]:
    """Return the blocks of boxes that have left a folder here: their tokens, and the names of their targets."""
    paths = sorted(layout.blocks.iterdir()) if layout.blocks.is_dir() else []
    targets = {path.name: (read_json(Folder(path).instructions) or {}).get("to") for path in paths}
    return {token: str(name) for token, name in targets.items() if name is not None}


def checks(settings: Config, layout: Layout, name: str, *, smoke: bool) -> list[Check]:
    """Run the checks of the target that --on names; `smoke` adds nothing for a box. Raises: as `of`."""
    profile = find_profile(settings, name)
    return [*(Ssh(name, profile, layout).checks() if profile.is_box else of_cluster(profile, smoke=smoke))]
