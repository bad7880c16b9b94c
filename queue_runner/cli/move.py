"""mpsq move."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import Ids, Json, Tags, chosen, home, new_app, tell
from queue_runner.errors import UsageError
from queue_runner.model import parse_selector

app = new_app()


@app.command("move")
def move(
    ids: Ids = None,
    tag: Tags = None,
    top: Annotated[bool, typer.Option("--top", help="Before all waiting jobs.")] = False,
    bottom: Annotated[bool, typer.Option("--bottom", help="After all waiting jobs.")] = False,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Directly before this job.")] = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Directly after this job.")] = None,
    json: Json = False,
) -> None:
    """Change the order of waiting jobs.

    A job takes the priority of its new position if its own priority would keep it elsewhere.
    """
    from queue_runner.control import edit
    from queue_runner.store.edit import Where

    wishes = [Where.TOP] * top + [Where.BOTTOM] * bottom + [Where.BEFORE] * bool(before) + [Where.AFTER] * bool(after)
    if len(wishes) != 1:
        raise UsageError("move needs exactly one position", "use --top, --bottom, --before ID or --after ID")
    others = [parse_selector(before or after or "")] if before or after else []
    tell("mpsq.move/1", edit.move(home(), chosen(ids, tag), wishes[0], others), json)
