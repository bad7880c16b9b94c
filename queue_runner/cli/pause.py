"""mpsq pause."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import home, new_app
from queue_runner.text import plain

app = new_app()


@app.command("pause")
def pause(
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason, which mpsq status shows.")] = "by hand",
) -> None:
    """Start no job until mpsq resume. Running jobs continue: mpsq suspend stops them."""
    from queue_runner.control import edit

    new = edit.pause(home(), plain(reason).strip() or "by hand")
    print("the lane is paused" if new else "the lane was already paused")
