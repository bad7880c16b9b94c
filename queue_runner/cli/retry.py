"""mpsq retry."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import Ids, Json, Tags, chosen, home, many, new_app, print_json, remark, say_obstacles

app = new_app()


@app.command("retry")
def retry(
    ids: Ids = None,
    tag: Tags = None,
    all: Annotated[bool, typer.Option("--all", help="Also retry runs that succeeded.")] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume from the last checkpoint; reports show the run as a separate row."),
    ] = False,
    json: Json = False,
) -> None:
    """Retry runs that did not succeed, as new runs of the same jobs; the old runs are kept."""
    from queue_runner.control import new_attempts as use_case

    layout = home()
    retried = use_case.retry(layout, chosen(ids, tag), succeeded_too=all, resumed=resume, note=remark)
    if json:
        print_json("mpsq.retry/1", runs=retried)
    else:
        print(f"{many([run.new for run in retried])} queued, in place of {many([run.old for run in retried])}")
    say_obstacles(layout)
