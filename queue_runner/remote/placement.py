"""What --on asks for: the target and the options of its block, stored with every job (JobSpec.on)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping, Sequence

from queue_runner import config_file, units
from queue_runner.errors import UsageError
from queue_runner.host import redact
from queue_runner.remote import block_store
from queue_runner.remote.profile import Profile, find_profile
from queue_runner.remote.slurm import commands
from queue_runner.remote.target import Unreachable
from queue_runner.spec import MOST_TASKS, OF_NODE, JobSpec
from queue_runner.store import read
from queue_runner.submit import environment_axis
from queue_runner.submit.submit_options import Request

_HERE_ALONE = {
    "find_max": "--find-max decides about the next run after each, which a block cannot",
    "secrets": "--secret values are not sent to other machines",
}
_NOT_ON_A_BOX = {
    "resume": "--resume continues from a checkpoint that is on the box",
    "python": "--python names an interpreter of this machine; the profile's `python` is the one there",
    "env_name": "--env-name names an environment of this machine; the profile's `python` is the one there",
}
_PLACES = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "MANPATH", "PWD", "OLDPWD", "TMPDIR", "TMP", "TEMP", "TERM", "LANG"),
    *("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "DISPLAY", "HOSTNAME", "HOSTTYPE", "MAIL", "_", "SHLVL", "EDITOR"),
)
_PLACES_FROM = (
    *("SSH_", "XDG_", "LC_", "LD_", "DYLD_", "CONDA_", "PYENV_", "UV_", "HOMEBREW_", "DBUS_", "__CF"),
    *OF_NODE,
)
"""Variables, and beginnings of names of them, that say where things are on this machine: a box has its own."""


def placed(request: Request, specs: Sequence[JobSpec]) -> list[JobSpec]:
    """Return the cells with where they are sent. Raises: UsageError for options that do not go together, and for a
    target that does not exist or whose profile lacks what it needs."""
    options = {
        "partition": request.partition,
        "gpus": None if request.gpus is None else str(request.gpus),
        "time": None if request.time_s is None else f"{request.time_s:g}",
        "nodes": None if request.nodes_at_once is None else str(request.nodes_at_once),
        "sbatch": " ".join([*["--exclusive"] * request.whole_node, *filter(None, [request.sbatch])]) or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    others = [{"nodes": "nodes-at-once"}.get(name, name) for name in given if name != "gpus"]
    others = ["whole-node"] if request.whole_node else others
    if request.on is None:
        if others:
            raise UsageError(f"--{others[0]} requires --on slurm", "add --on slurm")
        return list(specs)
    _refuse(request, _HERE_ALONE)
    _refuse_tokens(request)
    profile = find_profile(config_file.load(environment_axis.home(request).config), str(request.on))
    is_box = profile.is_box
    if is_box:
        if others:
            raise UsageError(f"--{others[0]} applies to Slurm only", f"leave it out: {request.on} has no scheduler")
        _refuse(request, _NOT_ON_A_BOX)
    else:
        _check_slurm(request, profile)
        profile = profile.for_block(given)
        _check_time(request, profile, specs)
        with contextlib.suppress(Unreachable):  # the worker asks again
            commands.check(profile)
        if profile.nodes_at_once is not None:
            given["nodes"] = str(profile.nodes_at_once)
    on = {"to": request.on, "kind": "ssh"} if is_box else {"to": request.on, **given}
    sent = {id(spec.env): sent_variables(spec.env, request.env, keeps_places=not is_box) for spec in specs}
    return [
        spec.changed(on=on, env=sent[id(spec.env)], copy=spec.kind == "command" if is_box else spec.copy)
        for spec in specs
    ]


def _refuse(request: Request, options: Mapping[str, str]) -> None:
    for name, why in options.items():
        if getattr(request, name):
            raise UsageError(f"--on {request.on}: {why}", f"remove --{name.replace('_', '-').removesuffix('s')}")


def sent_variables(env: Mapping[str, str], explicit: Iterable[str], *, keeps_places: bool) -> dict[str, str]:
    """Return the variables that are sent to another machine: those of --env, those whose values may be shown, and, with
    `keeps_places`, those that say where things are."""

    def is_sent(name: str, value: str) -> bool:
        is_place = name in _PLACES or name.startswith(_PLACES_FROM)
        return name in explicit or (keeps_places if is_place else redact.is_public(name, value))

    return {name: value for name, value in env.items() if is_sent(name, value)}


def _refuse_tokens(request: Request) -> None:
    """Raise UsageError for a token in the command line or in a variable."""
    places = {"the command line": request.argv, **{f"--env {name}": (value,) for name, value in request.env.items()}}
    for place, texts in places.items():
        if any(map(redact.has_token, texts)):
            message = f"--on {request.on}: {place} contains a token, and tokens are not sent to other machines"
            raise UsageError(
                message, "keep it on that machine, in a file that only you can read, and let the job read that"
            )


def _check_time(request: Request, profile: Profile, specs: Sequence[JobSpec]) -> None:
    """Raise UsageError if a task cannot run its rounds within its time limit, as earlier runs there took."""
    layout = environment_axis.home(request)
    if profile.time_s is None or not layout.db.exists():
        return
    with read.reading(layout.db) as connection:
        known_s = block_store.known_times_s(connection, str(request.on), [spec.content_hash() for spec in specs])
    if len(known_s) < len(specs):
        return
    tasks = profile.nodes_at_once or MOST_TASKS
    n_rounds = max(1, -(-request.repeats // tasks))
    rounds_s = n_rounds * sum(known_s)
    needed_s = rounds_s + min(commands.WARN_S, rounds_s / 3)  # of a short time limit, SIGTERM takes the last quarter
    if needed_s > profile.time_s:
        rounds = f"{units.counted(n_rounds, 'round')} of {units.counted(len(specs), 'row')}"
        time = units.duration(profile.time_s)
        message = f"--time {time} is too short: a task has {rounds} and needs {units.duration(needed_s)}"
        fewer = f"share them among more tasks: --nodes-at-once {request.repeats}"
        fewer = fewer if n_rounds > 1 else "submit fewer rows at a time, each time with the baseline"
        raise UsageError(f"--on {request.on}: {message}", f"give --time {-(-needed_s // 60):.0f}m, or {fewer}")


def _check_slurm(request: Request, profile: Profile) -> None:
    if shutil.which("sbatch") is None:
        raise UsageError(
            "there is no Slurm here: sbatch is not on PATH",
            "submit from a login node of the cluster, or leave --on out to run it on this machine",
        )
    profile.shared_folder()
    config_file.split(request.sbatch or "", "--sbatch")
    if request.nodes_at_once is not None and request.nodes_at_once < 1:
        raise UsageError(f"--nodes-at-once {request.nodes_at_once} would run nothing", "give 1 or more")
    if request.time_s is not None and request.time_s < 60:
        raise UsageError(f"--time {units.duration(request.time_s)} is too short for Slurm", "give 1m or more")
