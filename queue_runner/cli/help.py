"""mpsq help."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner import tables
from queue_runner.cli.common import new_app

app = new_app()


@app.command("help")
def help_(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[all | COMMAND]", help="all, or the command to explain.")
    ] = None,
) -> None:
    """List all commands, or explain one."""
    from queue_runner.cli import main

    if words and words != ["all"]:
        raise typer.Exit(main.main([*words, "--help"]))
    if not words:
        raise typer.Exit(main.main(["--help"]))
    longest = max(map(len, main.COMMANDS))
    for title, commands in main.SECTIONS.items():
        print(f"{title}:")
        named = {f"  {name:<{longest}}": line for name, line in commands.items()}
        print(tables.facts([*named.items()], prose=named) + "\n")
