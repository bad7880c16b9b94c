"""mpsq web."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import home, new_app

app = new_app()


@app.command("web")
def web(
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="The port; 0 takes a free one.")] = 8642,
    write: Annotated[
        bool, typer.Option("--write", help="Allow to cancel, hold, release, move and retry jobs from the page.")
    ] = False,
    open: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show the queue in a browser on this machine: what runs, the history, comparisons, logs.

    It prints the address and serves it until Ctrl-C, to this user on 127.0.0.1 alone; from another machine, reach it
    through ssh -L. It needs pip install 'mpsq[web]'. docs/web.md describes the pages and who may do what.
    """
    from queue_runner.web.start import Wanted, start

    home()  # raises if the home belongs to another user
    start(Wanted(port, write, open))
