"""Expansion of a grid: each cell in each environment (--env-name) and with each --mps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from queue_runner import paths
from queue_runner.errors import UsageError
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec

if TYPE_CHECKING:
    from queue_runner.submit.submit_options import Request
    from queue_runner.workloads.venvs import Venv


def with_environments(request: Request, specs: Sequence[JobSpec]) -> list[JobSpec]:
    """Return every cell in every environment with every set of MPS settings that the request names; unchanged if it
    names none.

    Raises: UsageError for an unknown environment, or MPS settings that are invalid or not for an MPS device.
    """
    if not request.env_name and not request.mps:
        return list(specs)
    named = _environments(request)
    settings = _settings(request)
    return [
        _with_settings(inside, switches)
        for spec in specs
        for inside in (_inside(spec, named) if named else [spec])
        for switches in settings
    ]


def home(request: Request) -> Layout:
    """Return the queue whose environments and workloads the request refers to."""
    return Layout(Path(request.home)) if request.home else Layout(paths.home())


def check_program(program: str, cwd: str, path: str | None) -> None:
    """Raise UsageError when there is no such program in PATH, unless its name contains a placeholder."""
    place = str(Path(cwd) / program) if "/" in program else program
    if "{" not in program and shutil.which(place, path=path) is None:
        hint = "give its path, or check PATH"
        if program in ("torchrun", "accelerate"):
            hint = f"give its path (VENV/bin/{program}); one process needs no launcher"
        raise UsageError(f'there is no program "{program}"', hint)


def _environments(request: Request) -> list[Venv]:
    from queue_runner.workloads import venvs

    if request.env_name and request.python is not None:
        raise UsageError("--python and --env-name both name an interpreter", "give one of them")
    layout = home(request)
    return [venvs.find(layout, name) for name in request.env_name]


def _inside(spec: JobSpec, named: Sequence[Venv]) -> Iterator[JobSpec]:
    for venv in named:
        env = venv.activated(spec.env)
        if spec.kind == "command":
            program = spec.argv[0]
            if "/" in program and Path(program).name.startswith("python"):
                raise UsageError(
                    f"the command names its own interpreter, {program}, so --env-name would have no effect",
                    f"write python instead: mpsq submit --env-name {venv.name} -- python ...",
                )
            check_program(program, spec.cwd, env.get("PATH"))
        yield spec.changed(env_name=venv.name, python=str(venv.python), env=env)


def _settings(request: Request) -> list[dict[str, str]]:
    from queue_runner.workloads import mps_switches

    settings: list[dict[str, str]] = []
    for switches in map(mps_switches.parse, request.mps or (mps_switches.NONE,)):
        for name in switches:
            if (variable := mps_switches.SWITCHES[name].variable) in request.env:
                raise UsageError(f"--mps {name} and --env {variable} set the same variable", "remove --env")
        settings += [] if switches in settings else [switches]
    return settings


def _with_settings(spec: JobSpec, settings: Mapping[str, str]) -> JobSpec:
    if settings and spec.device not in ("mps", "auto", None):
        raise UsageError(
            f"--mps has no effect on device {spec.device}", f"submit {spec.device} separately, without --mps"
        )
    if not settings:
        return spec
    from queue_runner.workloads import mps_switches

    return spec.changed(mps=settings, env=mps_switches.environment(settings, spec.env))
