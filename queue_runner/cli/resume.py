"""mpsq resume."""

from __future__ import annotations

from queue_runner.cli.common import InLane, home, new_app

app = new_app()


@app.command("resume")
def resume(lane: InLane = None) -> None:
    """Resume the lane after mpsq pause or mpsq drain."""
    from queue_runner.control import edit

    name = edit.lane_of(home(), lane)
    which = "the lane" if lane is None else f"lane {name}"
    print(f"{which} is resumed" if edit.pause(home(), None, name) else f"{which} was not paused")
