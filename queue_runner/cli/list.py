"""mpsq list."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner import tables
from queue_runner.cli.common import WHOLE_JOBS, Json, Tags, home, new_app, print_json, say
from queue_runner.model import parse_selector

app = new_app()

LIMIT = 20


@app.command("list")
def list_(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help=f"{WHOLE_JOBS}.")] = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="Only jobs with this state or outcome: queued, running, failed, ..."),
    ] = None,
    tag: Tags = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show this many of the newest jobs.")] = LIMIT,
    all: Annotated[bool, typer.Option("--all", help="Show every job.")] = False,
    deleted: Annotated[bool, typer.Option("--deleted", help="Show only the deleted jobs.")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="One line per run instead of per job.")] = False,
    json: Json = False,
) -> None:
    """List jobs."""
    from queue_runner.monitor import listing
    from queue_runner.monitor.run_view import RunLine, select
    from queue_runner.store.read import reading

    selectors = tuple(parse_selector(text) for text in ids or ())
    filter = listing.Filter(selectors, state, tuple(tag or ()), None if all else limit + 1, deleted, by_run=runs)
    with reading(home().db) as connection:
        if json:
            jobs = listing.jobs(connection, filter)
            more = not all and len(jobs) > limit
            print_json("mpsq.list/1", jobs=jobs[more:], more=more)
            return
        named = {run.run for run in select(connection, selectors)} if runs and selectors else None

        def matches(run: RunLine) -> bool:
            return filter.shows(run) and (named is None or run.run in named)

        lines = listing.each_job(connection, filter, RunLine)
        newest = None if all else list(lines)
        more = newest is not None and len(newest) > limit
        shown = lines if newest is None else newest[more:]
        table = listing.table(shown, colour=tables.in_colour(), matches=matches if runs else None)
    if not table:
        say("no matching jobs")
        return
    print(table)
    if more:
        say(f"these are the newest {limit}; --all shows every job")
