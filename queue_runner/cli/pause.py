"""mpsq pause."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import home, new_app

app = new_app()


@app.command("pause")
def pause(
    reason: Annotated[str, typer.Option(metavar="TEXT", help="What status says of it.")] = "by hand",
) -> None:
    """Let nothing start until mpsq resume. What runs goes on: mpsq suspend stops it."""
    from queue_runner.control import edit
    from queue_runner.text import plain

    new = edit.pause(home(), plain(reason).strip() or "by hand")
    print("the lane is paused" if new else "the lane was paused already")
