"""mpsq resume."""

from __future__ import annotations

from queue_runner.cli.common import home, new_app

app = new_app()


@app.command("resume")
def resume() -> None:
    """Let the lane go on after mpsq pause or mpsq drain."""
    from queue_runner.control import edit

    print("the lane goes on" if edit.pause(home(), None) else "the lane was not paused")
