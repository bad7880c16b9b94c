"""mpsq drain."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import home, new_app, say

app = new_app()


@app.command("drain")
def drain(
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Give up waiting after this: 90s, 15m, 2h; exit 124.")
    ] = None,
) -> None:
    """Let the current job finish, start none, and say when nothing runs.

    The lane stays paused, also when waiting is given up: mpsq resume lets it go on.
    """
    from queue_runner import units
    from queue_runner.control import edit
    from queue_runner.monitor import wait as waiting
    from queue_runner.monitor.queue_state import idle

    layout = home()
    limit_s = units.parse_duration(timeout, "--timeout") if timeout else None
    edit.pause(layout, "drained")
    if not idle(layout):
        say("nothing new starts; waiting for the end of what runs")
    waiting.until_idle(layout, limit_s)
    print("nothing runs, and nothing starts until mpsq resume")
