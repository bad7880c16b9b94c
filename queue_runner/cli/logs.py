"""mpsq logs."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated

import typer

from queue_runner.cli.common import A_JOB, home, new_app, say
from queue_runner.model import Outcome, parse_selector

app = new_app()


@app.command("logs")
def logs(
    id: Annotated[str, typer.Argument(metavar="ID", help=f"{A_JOB}.")] = "@last",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the output until the selected runs have ended.")
    ] = False,
    out: Annotated[bool, typer.Option("--out", help="Only stdout.")] = False,
    err: Annotated[bool, typer.Option("--err", help="Only stderr.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, metavar="N", help="Only the last N lines.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the bytes unchanged, with progress bars and escape sequences.")
    ] = False,
) -> None:
    """Print or follow the output of a job: stdout and stderr, in order of time.

    If several runs match, the running one is shown, else the one that started last. --follow continues with the next
    run of the job or group (another round, a retry), and says on stderr when a run starts or ends. mpsq logs exits
    with 0 even if the job failed; mpsq wait exits with an error then.

    mpsq prints only the last state of a progress bar and removes escape sequences.
    """
    from queue_runner.monitor import log_files as use_case
    from queue_runner.monitor.log_text import Outputs
    from queue_runner.monitor.run_view import select
    from queue_runner.store.read import reading

    layout, selector = home(), parse_selector(id)
    with reading(layout.db) as connection:
        runs = select(connection, [selector])
    outputs = Outputs(sys.stdout, sys.stderr, raw=raw)
    stream = None if out == err else "stdout" if out else "stderr"
    open_log = use_case.opener(outputs, stream)
    if follow and any(run.state != "DONE" for run in runs):
        from queue_runner.monitor.follow import Follower

        past = {run.run_id for run in runs if run.state == "DONE"} - {use_case.choose(runs).run_id}
        with closing(Follower(layout, selector, open_log, outputs.say, tail=tail, past=past)) as follower:
            follower.follow()
        return
    run = use_case.choose(runs)
    log = open_log(use_case.folder_of(layout, run), tail)
    wrote = log.copy()
    log.end()
    if not wrote and tail != 0:
        where = f" to {stream}" if stream else ""
        say(f"run {run.run} {'wrote nothing' if run.outcome else 'has written nothing yet'}{where}")
    elif len(runs) > 1:
        say(f"this is the log of run {run.run}, one of {len(runs)} runs")
    if run.outcome == Outcome.TIMED_OUT:
        from queue_runner.monitor.explanation import with_more_time

        say(f"run {run.run} was ended by its time limit: {with_more_time(run)}")
