"""mpsq logs."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated

import typer

from queue_runner.cli.common import hint, home, new_app
from queue_runner.model import parse_selector

app = new_app()


@app.command("logs")
def logs(
    id: Annotated[str, typer.Argument(metavar="ID", help="12, 12.3, g4 or @last.")] = "@last",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the selected runs have ended.")
    ] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Show stderr instead of stdout.")] = False,
    both: Annotated[bool, typer.Option("--both", help="Show both; the job's stderr goes to stderr.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, metavar="N", help="Only the last N lines.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the bytes unchanged, with progress bars and escape sequences.")
    ] = False,
) -> None:
    """Print or follow the output of a job.

    If several runs match, the running one is shown, else the one that started last. --follow continues with the next
    run of the job or group (a repeat, a retry), reports starts and ends on stderr, and exits with 0 whatever the
    outcome; mpsq wait exits with an error if a job fails.

    A progress bar that uses carriage returns shows only its last state, and escape sequences are removed, in a pipe
    too. --raw keeps both.
    """
    from queue_runner.monitor import log_files as use_case
    from queue_runner.monitor.log_text import Outputs
    from queue_runner.monitor.run_view import select
    from queue_runner.store.read import reading

    layout, selector = home(), parse_selector(id)
    with reading(layout.db) as connection:
        runs = select(connection, [selector])
    out = Outputs(sys.stdout, sys.stderr, raw=raw)
    open_logs = use_case.opener(out, stdout=both or not stderr, stderr=both or stderr)
    if follow and any(run.state != "DONE" for run in runs):
        from queue_runner.monitor.follow import Follower

        past = {run.run_id for run in runs if run.state == "DONE"} - {use_case.choose(runs).run_id}
        with closing(Follower(layout, selector, open_logs, out.say, tail=tail, past=past)) as follower:
            follower.follow()
        return
    folder = use_case.folder_of(layout, use_case.choose(runs))
    sources = open_logs(folder, tail)
    if not use_case.copy(sources) and tail != 0 and not both:
        hint(f"it wrote nothing to {'stderr' if stderr else 'stdout'}: --both shows all")
    use_case.end(sources)
