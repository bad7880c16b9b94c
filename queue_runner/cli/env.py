"""mpsq env."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from queue_runner import tables
from queue_runner.cli.common import Json, hint, home, new_app, new_home, print_json, say
from queue_runner.errors import UsageError
from queue_runner.units import counted

if TYPE_CHECKING:
    from queue_runner.workloads.venvs import Venv

app = new_app("Manage named environments: other versions of torch, other frameworks.")

_SHOWN = ("torch", "mlx", "jax", "tinygrad")


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name for --env-name.")],
    pip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS", help='Arguments of uv pip install: "torch==2.14 numpy --index-url URL". Repeatable.'
        ),
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="The base interpreter; default: that of mpsq.")
    ] = None,
) -> None:
    """Create a venv with uv, install packages into it and record them."""
    from queue_runner.workloads import environment_create

    try:
        words = [word for text in pip or () for word in shlex.split(text)]
    except ValueError as error:
        raise UsageError(f"--pip cannot be read: {error}", "close the quotes inside it") from error
    start = f"creating {name}; torch takes minutes" if any("torch" in word for word in words) else f"creating {name}"
    made = environment_create.create(new_home(), name, words, python, on_start=lambda: say(start))
    print(f"{made.name}: Python {made.python_version}, {counted(len(made.packages), 'package')}, {made.folder}")
    hint(f"mpsq submit nanogpt --env-name {made.name}; several, separated by commas, are compared")


@app.command("list")
def list_(json: Json = False) -> None:
    """List the environments and their packages."""
    from queue_runner.workloads import venvs

    environs = venvs.every(home())
    if json:
        print_json("mpsq.envs/1", envs=[_object(venv) for venv in environs])
        return
    if not environs:
        say("no environments yet: mpsq env create NAME --pip torch")
        return
    rows = [_row(venv) for venv in environs]
    print(tables.table(rows, [tables.Column(key, key) for key in rows[0]]))


@app.command("remove")
def remove(name: Annotated[str, typer.Argument(metavar="ENV", help="A name from mpsq env list.")]) -> None:
    """Remove an environment that no waiting or running job needs."""
    from queue_runner.workloads import environment_create

    print(f"removed {environment_create.remove(home(), name)}")


def _object(venv: Venv) -> dict[str, Any]:
    fields = {name: value for name, value in asdict(venv).items() if name != "folder"}
    return {**fields, "python": str(venv.python)}


def _row(venv: Venv) -> dict[str, Any]:
    named = [f"{name} {venv.packages[name]}" for name in _SHOWN if name in venv.packages]
    return {
        "name": venv.name,
        "python": venv.python_version,
        "frameworks": ", ".join(named) or None,
        "packages": len(venv.packages),
        "folder": str(venv.folder),
    }
