"""mpsq completion."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import new_app

app = new_app()

EPILOG = (
    "For the current shell only: source <(mpsq completion bash), or in fish: mpsq completion fish | source. "
    "For every shell: mpsq completion bash > ~/.local/share/bash-completion/completions/mpsq; "
    "in zsh > _mpsq in a folder of fpath; in fish > ~/.config/fish/completions/mpsq.fish"
)


@app.command("completion", epilog=EPILOG)
def completion(shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the script that completes commands, options, ids and names with TAB."""
    from queue_runner.cli.complete import shells

    print(shells.script(shell), end="")
