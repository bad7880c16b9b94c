"""mpsq release."""

from __future__ import annotations

from queue_runner.cli.common import Ids, Json, Tags, chosen, home, new_app, tell

app = new_app()


@app.command("release")
def release(ids: Ids = None, tag: Tags = None, json: Json = False) -> None:
    """Release held jobs."""
    from queue_runner.control import edit

    tell("mpsq.release/1", edit.release(home(), chosen(ids, tag)), json)
