"""mpsq completion."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import new_app, say

app = new_app()

EPILOG = "For the current shell only: source <(mpsq completion bash), or in fish: mpsq completion fish | source"


@app.command("completion", epilog=EPILOG)
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
    install: Annotated[
        bool, typer.Option("--install", help="Write it to the file where that shell looks for it.")
    ] = False,
) -> None:
    """Print the script that completes commands, options, ids and names with TAB."""
    from queue_runner.cli.complete import shells

    if not install:
        print(shells.script(shell), end="")
        return
    done = shells.install(shell)
    print(done.path)
    say(done.remains)
