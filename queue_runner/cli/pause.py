"""mpsq pause."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import STILL_START, InLane, home, new_app, say
from queue_runner.text import plain

app = new_app()


@app.command("pause")
def pause(
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason, which mpsq status shows.")] = "by hand",
    lane: InLane = None,
) -> None:
    """Start no job until mpsq resume. Running jobs continue: mpsq suspend stops them."""
    from queue_runner.control import edit

    name = edit.lane_of(home(), lane)
    new = edit.pause(home(), plain(reason).strip() or "by hand", name)
    which = "the lane" if lane is None else f"lane {name}"
    print(f"{which} is paused" if new else f"{which} was already paused")
    if lane is not None:
        say(STILL_START)
