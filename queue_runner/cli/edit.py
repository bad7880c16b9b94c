"""mpsq edit."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import Ids, Json, chosen, home, many, new_app, print_json, remark, tell
from queue_runner.cli.typer_options import submit_option
from queue_runner.errors import UsageError
from queue_runner.model import parse_selector

app = new_app()

Words = Annotated[list[str] | None, typer.Option(metavar="WORD", help="Add a tag. Repeatable.")]


@app.command("edit")
def edit(
    ids: Ids = None,
    priority: Annotated[int | None, typer.Option(metavar="N", help="Jobs with a higher priority run first.")] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="ID[:any|fail]", help="Wait for exactly these jobs, '' for none. Repeatable."),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Do not start before 22:30 or +2h; '' removes the time.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="Skip the job if it has not started by then; '' removes it.")
    ] = None,
    retries: Annotated[int | None, typer.Option(metavar="N", help="Retry automatically, at most N times.")] = None,
    timeout: Annotated[str | None, submit_option("timeout")] = None,
    note: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A note to keep with the job; '' removes it.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The name in lists and reports.")] = None,
    tag: Words = None,
    untag: Annotated[list[str] | None, typer.Option(metavar="WORD", help="Remove a tag. Repeatable.")] = None,
    top: Annotated[bool, typer.Option("--top", help="Move it before all waiting jobs.")] = False,
    bottom: Annotated[bool, typer.Option("--bottom", help="Move it after all waiting jobs.")] = False,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Move it directly before this job.")] = None,
    json: Json = False,
) -> None:
    """Change jobs, or their place in the queue.

    Names, notes and tags can be changed at any time, --timeout until a job starts, the rest until it ends. A moved job
    takes the priority of its new position if its own priority would keep it elsewhere.
    """
    from queue_runner.control import changes
    from queue_runner.store.editing import Where

    change = changes.Edit(
        priority=priority,
        after=tuple(filter(None, after)) if after else None,
        at=at,
        deadline=deadline,
        note=note,
        name=name,
        tags=tuple(tag or ()),
        untags=tuple(untag or ()),
        retries=retries,
        timeout=timeout,
    )
    places = [Where.TOP] * top + [Where.BOTTOM] * bottom + [Where.BEFORE] * bool(before)
    if len(places) > 1 or (places and change != changes.Edit()):
        raise UsageError(
            "--top, --bottom and --before cannot be combined with other changes", "run mpsq edit once for each change"
        )
    if not places and change == changes.Edit():
        raise UsageError("edit needs a change to make", "give --priority, --after, --at, --name, --tag, --top, ...")
    if places:
        others = [parse_selector(before)] if before else []
        moved = changes.move(home(), chosen(ids, None), places[0], others)
        tell("mpsq.edit/1", moved, json, jobs=sorted({int(run.run.partition(".")[0]) for run in moved}))
        return
    jobs = changes.edit(home(), chosen(ids, None), change, note=remark)
    if json:
        print_json("mpsq.edit/1", jobs=jobs, runs=[])
    else:
        print(f"{many(jobs, 'job')} {'was' if len(jobs) == 1 else 'were'} changed")
