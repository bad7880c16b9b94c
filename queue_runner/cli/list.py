"""mpsq list."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from queue_runner import tables, units
from queue_runner.cli.common import Json, groups, home, new_app, print_json, say
from queue_runner.model import parse_selector

app = new_app()

LIMIT = 20


@app.command("list")
def list_(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="12, g4 or @last.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only jobs with this state or outcome: queued, running, failed, ...")
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only jobs of this group: g4 or @last. Repeatable.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only jobs with this tag. Repeatable: with all tags.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show this many of the newest jobs.")] = LIMIT,
    all: Annotated[bool, typer.Option("--all", help="Show every job.")] = False,
    deleted: Annotated[bool, typer.Option("--deleted", help="Show the jobs that mpsq delete has hidden.")] = False,
    runs: Annotated[bool, typer.Option("--runs", help="One line per run instead of per job.")] = False,
    json: Json = False,
) -> None:
    """List jobs."""
    from queue_runner.monitor import listing
    from queue_runner.store.read import reading

    selectors = tuple(parse_selector(text) for text in [*(ids or ()), *groups(group)])
    wanted = listing.Filter(selectors, state, tuple(tag or ()), None if all else limit + 1, deleted)
    layout = home()
    with reading(layout.db) as connection:
        jobs = listing.jobs(connection, wanted)
    more = not all and len(jobs) > limit
    if more:
        jobs = jobs[1:]
    if json:
        print_json("mpsq.list/1", jobs=jobs, more=more)
        return
    _print(jobs, runs)
    if more:
        say(f"these are the newest {limit}; --all shows every job")


def _print(jobs: list[dict[str, Any]], runs: bool) -> None:
    from queue_runner.monitor import listing

    if not jobs:
        say("no matching jobs")
        return
    if runs:
        rows = [{**run, "id": run["run"], "state": listing.ending(run)} for job in jobs for run in job["runs"]]
    else:
        rows = [{**job, "id": job["job"], "state": listing.job_ending(job)} for job in jobs]
        for row in rows:
            row["ok"] = f"{row['succeeded']}/{row['repeats']}"
    columns = [
        tables.Column("id", "run" if runs else "job", right=not runs),
        tables.Column("group_id", "group", words=lambda group: f"g{group}"),
        tables.Column("name", "name", words=lambda name: tables.elide(name, 14)),
        tables.Column("asks", "asks", flexible=True),
        tables.Column("state", "state"),
        tables.Column("median_s", "ms/iter", words=lambda s: units.ms(s), right=True),
    ]
    if not runs:
        columns.insert(4, tables.Column("ok", "ok", right=True))
    print(tables.table([{**row, "asks": listing.question(row)} for row in rows], columns))
