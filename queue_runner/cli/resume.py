"""mpsq resume."""

from __future__ import annotations

from queue_runner.cli.common import home, new_app

app = new_app()


@app.command("resume")
def resume() -> None:
    """Resume the lane after mpsq pause or mpsq drain."""
    from queue_runner.control import edit

    print("the lane is resumed" if edit.pause(home(), None) else "the lane was not paused")
