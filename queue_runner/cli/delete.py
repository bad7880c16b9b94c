"""mpsq delete."""

from __future__ import annotations

from typing import Annotated

import typer

from queue_runner import units
from queue_runner.cli.common import JobIds, Json, Yes, confirmed, home, new_app, print_json, say
from queue_runner.errors import MpsqError
from queue_runner.model import parse_selector

app = new_app()


@app.command("delete")
def delete(
    ids: JobIds,
    results: Annotated[
        bool, typer.Option("--results", help="Also delete the results from the database, permanently.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Remove the files of ended jobs and hide the jobs.

    Logs, events, checkpoints and working copies are removed. Results stay in reports unless --results is given; mpsq
    list --deleted shows the hidden jobs. A job that waits or runs must be cancelled first.
    """
    from queue_runner.control import delete as use_case

    if results and not confirmed(f"delete the results of {' '.join(ids)} for good?", yes):
        say("nothing was deleted")
        raise typer.Exit(1)
    found = use_case.delete(home(), [parse_selector(text) for text in ids], results=results)
    if json:
        print_json("mpsq.delete/1", jobs=found.jobs, results=results, freed_bytes=found.freed_bytes, stuck=found.stuck)
    else:
        jobs = f"job {found.jobs[0]}" if len(found.jobs) == 1 else f"{units.count(len(found.jobs))} jobs"
        kept = "with all results" if results else "its results stay in reports"
        print(f"{jobs} deleted, {kept}; {units.size(found.freed_bytes)} freed")
    if found.stuck:
        raise MpsqError("\n".join(["some files could not be removed:", *found.stuck]), "fix that, then run mpsq gc")
