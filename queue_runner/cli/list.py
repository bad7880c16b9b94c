"""mpsq list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from queue_runner import tables, units
from queue_runner.cli.common import WHOLE_JOBS, Json, Tags, home, new_app, print_json, say
from queue_runner.model import parse_selector

if TYPE_CHECKING:
    from queue_runner.monitor.run_view import JobView, RunLine

app = new_app()

LIMIT = 20


@app.command("list")
def list_(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help=f"{WHOLE_JOBS}.")] = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="STATE", help="Only jobs with this state or outcome: queued, failed (any failure), ..."),
    ] = None,
    tag: Tags = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show only the newest N.")] = LIMIT,
    all: Annotated[bool, typer.Option("--all", help="Show every job.")] = False,
    deleted: Annotated[bool, typer.Option("--deleted", help="Show only the deleted jobs.")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="One line per run instead of per job.")] = False,
    json: Json = False,
) -> None:
    """List jobs."""
    from queue_runner.monitor import listing, run_view
    from queue_runner.monitor.run_view import RunLine
    from queue_runner.store.read import reading

    selectors = tuple(parse_selector(text) for text in ids or ())
    filter = listing.Filter(selectors, state, tuple(tag or ()), None if all else limit + 1, deleted)
    with reading(home().db) as connection:
        if json:
            jobs = listing.jobs(connection, filter)
            more = not all and len(jobs) > limit
            print_json("mpsq.list/1", jobs=jobs[more:], more=more)
            return
        each = listing.runs if runs else listing.each_job
        shown: Iterable[JobView[RunLine]] = each(connection, filter, RunLine)
        more = False
        if not all:
            newest = list(shown)
            run_ids = sorted(run.run_id for job in newest for run in job.runs)
            more = len(run_ids if runs else newest) > limit
            shown = newest if runs else newest[more:]
            if runs and more:
                listed = (run for job in newest for run in job.runs if run.run_id != run_ids[0])
                shown = run_view.jobs(listed)
        table = listing.table(shown, colour=tables.in_colour(), by_run=runs)
    if not table:
        say("no matching jobs")
        return
    print(table)
    if more:
        say(f"the newest {units.counted(limit, 'run' if runs else 'job')} only; --all shows every one")
