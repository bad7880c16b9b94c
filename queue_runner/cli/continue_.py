"""mpsq continue."""

from __future__ import annotations

from queue_runner.cli.common import Ids, Json, Tags, chosen, home, new_app, tell

app = new_app()


@app.command("continue")
def continue_(ids: Ids = None, tag: Tags = None, json: Json = False) -> None:
    """Continue jobs that mpsq suspend stopped."""
    from queue_runner.control import suspend

    tell("mpsq.continue/1", suspend.go_on(home(), chosen(ids, tag)), json)
