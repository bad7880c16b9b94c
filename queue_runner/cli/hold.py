"""mpsq hold."""

from __future__ import annotations

from queue_runner.cli.common import Ids, Json, Tags, chosen, home, new_app, tell

app = new_app()


@app.command("hold")
def hold(ids: Ids = None, tag: Tags = None, json: Json = False) -> None:
    """Hold waiting jobs until they are released."""
    from queue_runner.control import edit

    tell("mpsq.hold/1", edit.hold(home(), chosen(ids, tag)), json)
