"""mpsq rerun."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner.cli.common import JobIds, Json, home, new_app, print_json, queued, remind, say_obstacles
from queue_runner.cli.typer_options import submit_option, title
from queue_runner.errors import UsageError
from queue_runner.model import parse_selector

app = new_app()


@app.command("rerun")
def rerun(
    ctx: typer.Context,
    ids: JobIds,
    repeats: Annotated[int | None, typer.Option(metavar="N", help="Number of repeats; default: as before.")] = None,
    rounds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Add N rounds to a whole submission, such as g4, instead of queueing new jobs."),
    ] = None,
    timeout: Annotated[str | None, submit_option("timeout")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Queue it on hold, until mpsq resume ID.")] = False,
    snapshot: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="auto, copy or off (off runs the current code); default: as before."),
    ] = None,
    json: Json = False,
) -> None:
    """Queue jobs again, with exactly the code that they ran.

    Settings, variables, interpreter and seed stay the same. If the code has changed, the new job runs in a copy of the
    old code. With --rounds, reports use old and new rounds.
    """
    from queue_runner.control import resubmission as use_case
    from queue_runner.submit.submit_options import snapshot_mode

    layout = home()
    mode = snapshot and snapshot_mode(snapshot)
    options = use_case.RerunOptions(repeats, hold, mode, timeout)
    selectors = [parse_selector(text) for text in ids]
    if rounds is None:
        done = use_case.rerun(layout, selectors, options, title(ctx))
    elif options != use_case.RerunOptions():
        raise UsageError(
            "--rounds cannot be combined with other options", "added rounds repeat the earlier ones unchanged"
        )
    else:
        done = use_case.add_rounds(layout, selectors, rounds)
    remind(done.notes, layout, json)
    if json:
        print_json("mpsq.rerun/1", group=done.group, jobs=done.jobs, runs=done.runs)
    else:
        print(queued(done.group, done.jobs, done.runs, held=hold))
    say_obstacles(layout)
