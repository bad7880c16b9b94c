"""The worker as a user service of launchd or systemd: the choice between them, and the program that they run."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import queue_runner
from queue_runner.config_file import Config
from queue_runner.errors import MpsqError
from queue_runner.host.services.user_service import Program, UserService
from queue_runner.paths import Layout

_CAPTURED = re.compile(r"PATH|PYTORCH_\w+|MPSQ_LOCKS")
_EPHEMERAL = re.compile(r"/(uv/(archive|builds|environments)-v\d+|pipx/\.cache|\.cache/(uv|pipx)|Caches/uv)/")


def for_this_machine(layout: Layout, settings: Config, *, platform: str = sys.platform) -> UserService:
    """Return the service of this queue on this machine.

    Raises: MpsqError when there is neither launchd nor systemd, or this interpreter cannot run a service.
    """
    program = program_for(layout, settings, sys.executable, os.environ)
    if platform == "darwin":
        from queue_runner.host.services.launchd import Launchd

        return Launchd(program)
    if platform.startswith("linux") and (systemctl := shutil.which("systemctl")):
        from queue_runner.host.services.systemd import Systemd

        return Systemd(program, layout.worker_log, systemctl)
    raise MpsqError(
        "this machine has neither launchd nor systemd to run a service",
        "keep `mpsq worker` running by other means: tmux, cron's @reboot, a container's entry point",
    )


def program_for(layout: Layout, settings: Config, python: str, environ: Mapping[str, str]) -> Program:
    """Return the worker's program with its environment: a service does not inherit the shell's.

    The version is part of it, so that an install after an upgrade restarts the worker.
    Raises: MpsqError when the interpreter is unknown, or lies in a cache that is cleaned.
    """
    if not Path(python).is_absolute():
        raise MpsqError("the path of this Python is unknown", "start mpsq by its full path, /path/to/venv/bin/mpsq")
    if _EPHEMERAL.search(python):
        raise MpsqError(
            f"{python} is in a cache that may be cleaned at any time",
            "install mpsq permanently first: uv tool install mpsq, or pip install it into a virtual environment",
        )
    captured = {k: v for k, v in environ.items() if _CAPTURED.fullmatch(k) and v.isprintable()}
    captured["PATH"] = _path(python, captured.get("PATH", os.defpath))
    ours = {"MPSQ_HOME": str(layout.home), "MPSQ_SERVICE_VERSION": queue_runner.__version__, "PYTHONUNBUFFERED": "1"}
    for value in (python, str(layout.home)):
        if not value.isprintable():
            raise MpsqError(
                f"{value!r} contains a control character, and a service definition must not", "rename the folder"
            )
    environment = dict(sorted({**captured, **ours}.items()))
    return Program(settings.service_label, python, layout.home, environment, _installed_command(python))


def _installed_command(python: str) -> str | None:
    """Return the path of the command `mpsq` beside this interpreter; None where there is none that starts it.

    Its first lines name its interpreter: `#!PYTHON`, or for a path that is long or has a space, a line of sh.
    """
    script = Path(python).with_name("mpsq")
    try:
        with script.open("rb") as file:
            head = b"".join(file.readline(4096) for _ in range(2)).decode("utf-8", "replace")
    except OSError:
        return None
    folder = re.escape(str(script.parent))
    return str(script) if re.search(rf"(#! ?|['\"]){folder}/python[\d.]*['\"\s]", head) else None


def _path(python: str, path: str) -> str:
    """Return PATH as of install: absolute folders only, without duplicates, always including the system's own."""
    places = [str(Path(python).parent), *path.split(os.pathsep), "/usr/bin", "/bin", "/usr/sbin", "/sbin"]
    return os.pathsep.join(dict.fromkeys(place for place in places if place.startswith("/")))
