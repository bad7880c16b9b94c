"""mpsq on: machines for --on."""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from queue_runner import __version__, config_file, units
from queue_runner.cli.common import Yes, confirmed, hint, new_app, new_home, say
from queue_runner.cli.doctor import print_checks
from queue_runner.errors import UsageError

app = new_app("Set up machines for submit --on.")


@app.callback()
def on() -> None:
    """Set up machines for submit --on."""


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name for --on: the profile [on.NAME].")],
    ssh: Annotated[str, typer.Option("--ssh", metavar="HOST", help="What ssh takes, such as me@box.")],
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The Python there that has your framework; default: python3."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Put mpsq on a machine that ssh reaches, test it, and name it for --on.

    A Python there that has this version of mpsq is used as it is. Otherwise mpsq and its dependencies are copied from
    here into an environment of their own, which also has the packages of that Python. Packages that differ for its
    platform come from the index of its pip.
    """
    from queue_runner.remote import provision, targets
    from queue_runner.remote.link import Link
    from queue_runner.remote.profile import find_profile

    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UsageError(f'"{name}" cannot be the name of a profile', "use letters, digits, _ and -, such as gpubox")
    layout = new_home()
    settings = config_file.load(layout.config)
    stored = settings.on.get(name, {})
    if stored.get("kind", "ssh") != "ssh" or name == "slurm":
        raise UsageError(f'"{name}" is a profile of Slurm already', "choose another name")
    host = find_profile(settings, f"ssh:{ssh}").host
    link = Link(host, python or stored.get("python") or "python3", "", tuple(shlex.split(stored.get("ssh", ""))))
    there = provision.look(link)
    with tempfile.TemporaryDirectory(prefix="mpsq-") as folder:
        package = None if there.mpsq == __version__ else provision.pack(Path(folder))
        its_mpsq = f"mpsq {there.mpsq}" if there.mpsq else "no mpsq"
        say(f"{host} has Python {there.python} ({link.python}), with {its_mpsq}")
        if package is None:
            say("nothing will be copied")
        else:
            place = provision.environment(package.version, link.python, there)
            files = f"mpsq {__version__} and {package.n_wheels - 1} packages ({units.size(package.n_bytes)})"
            say(f"{files} will be copied to {place} there")
        say(f"kind, host and python will be written to [on.{name}] in {layout.config}")
        if not confirmed("continue?", yes):
            say("nothing was changed")
            raise typer.Exit(1)
        used = link.python if package is None else provision.install(link, package, place)
    for key, value in {"kind": "ssh", "host": host, "python": used}.items():
        config_file.set_value(layout.config, f"on.{name}.{key}", value)
    checks = targets.checks(config_file.load(layout.config), layout, name, smoke=False)
    print_checks(checks)
    if any(check.verdict == "fail" for check in checks):
        raise typer.Exit(1)
    hint(f"mpsq submit ... --on {name}")
