"""What --on asks for: the target and the options of its block, stored with every job (JobSpec.on)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from queue_runner import config, units
from queue_runner.errors import UsageError
from queue_runner.spec import JobSpec
from queue_runner.submit import environments
from queue_runner.submit.request import Request

_HERE_ALONE = {
    "find_max": "--find-max decides about the next run after each, which a block cannot",
    "until_valid": "--until-valid would replace runs on another node, with which they cannot be compared",
    "resume": "--resume continues from a checkpoint that is on another node",
    "secrets": "--secret values are not sent to other machines",
}


def placed(request: Request, specs: Sequence[JobSpec]) -> list[JobSpec]:
    """Return the cells with where they are sent. Raises: UsageError for options that do not go together, and for a
    target that does not exist or whose profile lacks what it needs."""
    given = {
        "partition": request.partition,
        "gpus": None if request.gpus is None else str(request.gpus),
        "time": None if request.time_s is None else f"{request.time_s:g}",
        "sbatch": request.sbatch,
    }
    said = {name: value for name, value in given.items() if value is not None}
    if request.on is None:
        if others := [name for name in said if name != "gpus"]:
            raise UsageError(f"--{others[0]} is of --on slurm", "add --on slurm")
        return list(specs)
    for name, why in _HERE_ALONE.items():
        if getattr(request, name):
            raise UsageError(f"--on {request.on}: {why}", f"remove --{name.replace('_', '-').removesuffix('s')}")
    _check(request)
    return [replace(spec, on={"to": request.on, **said}) for spec in specs]


def _check(request: Request) -> None:
    name = str(request.on)
    profile = config.load(environments.home(request).config).on.get(name, {})
    kind = profile.get("kind", name)
    if kind != "slurm":
        raise UsageError(f'there is no target "{name}"', "--on takes slurm, or the name of a profile of that kind")
    if shutil.which("sbatch") is None:
        raise UsageError(
            "there is no Slurm here: sbatch is not on PATH",
            "submit from a login node of the cluster, or leave --on out to run it on this machine",
        )
    if not profile.get("folder", "").startswith("/"):
        raise UsageError(
            f"the profile on.{name} has no folder that this machine and the nodes share",
            f"mpsq config set on.{name}.folder /path/on/the/shared/disk",
        )
    if "time" in profile:
        units.parse_duration(profile["time"], f"on.{name}.time")
    if request.time_s is not None and request.time_s < 60:
        raise UsageError(f"--time {units.duration(request.time_s)} is shorter than Slurm counts", "give 1m or more")
